"""What every optimizer with narrow state shares: the storage apart from the update."""

import math
from typing import Any

from keras import ops

from keras_scalify import backend
from keras_scalify.optimizers.block_storage import BlockStorage
from keras_scalify.optimizers.narrow_weights import (
    NarrowWeights,
    is_overwritten,
    is_scales,
    narrow_format,
)
from keras_scalify.optimizers.random_bits import random_bits
from keras_scalify.optimizers.storages import STORAGES, parse_state_dtype


class ScaledState(NarrowWeights):
    """Mixin before a Keras optimizer: its moments in narrow formats.

    A subclass names its moments and computes an update from float32 ones; how they rest
    between steps is decided here. With `state_dtype="float32"` nothing changes: the
    optimizer is Keras's own, bit for bit (on Torch, whose own runs as list operations,
    to rounding).

    Attributes:
        stock: the Keras optimizer that a subclass is mixed into.
        moments: name of each moment to what it is: "signed", "root" or "ratio".
    """

    stock: Any
    moments: dict[str, str]
    built: Any
    iterations: Any

    def __init__(
        self,
        *args,
        state_dtype: Any = "float16",
        seed: int = 0,
        min_size: int = 4096,
        **kwargs,
    ):
        storages = parse_state_dtype(state_dtype, self.moments)
        for name, value, least in (("seed", seed, None), ("min_size", min_size, 0)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or (least is not None and value < least):
                allowed = "an integer" if least is None else "an integer of at least 0"
                raise ValueError(
                    f"`{name}` must be {allowed}. Received: {name}={value!r}"
                )
        super().__init__(*args, **kwargs)
        self.state_dtype = state_dtype
        self.seed = seed
        self.min_size = min_size
        self._storages = storages
        self._slots: dict[str, list] = {}
        self._is_wide = True

    @property
    def is_stock(self) -> bool:
        wide_state = all(s.format.is_identity for s in self._storages.values())
        return wide_state and self._is_wide

    def storage(self, name: str, shape):
        """A slot's storage: float32 for a small variable where others have 8 bits.

        Args:
            name: of the slot, which begins with that of its moment.
            shape: of the variable.
        """
        storage = self._storages[name.split("_")[0]]
        is_byte = isinstance(storage, BlockStorage) or storage.is_relative
        if is_byte and math.prod(shape) < self.min_size:
            return STORAGES["float32"]["signed"]
        return storage

    def slot_names(self) -> list[str]:
        """What is stored of each variable; a name begins with that of its moment."""
        return list(self.moments)

    def build(self, variables) -> None:
        """Create the state of every variable that is updated."""
        if self.built:
            return
        self._is_wide = all(narrow_format(v) is None for v in variables)
        if self.is_stock:
            super().build(variables)
            return
        # The stock one would add its own slots: what every optimizer has is above it.
        super(self.stock, self).build(variables)
        self._slots = {name: [] for name in self.slot_names()}
        for variable in variables:
            overwritten = is_overwritten(variable)
            for name, slots in self._slots.items():
                storage = self.storage(name, variable.shape)
                slot = None if overwritten else storage.add(self, variable, name)
                slots.append(slot)

    def apply(self, grads, trainable_variables=None):
        if not self.is_stock:
            grads = [g if g is None else backend.dense(g) for g in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Keras's own update, or the one on narrow state."""
        index = self._get_variable_index(variable)
        if is_scales(self._trainable_variables[index]):
            return  # they follow their data
        step = super().update_step if self.is_stock else self.scaled_step
        step(gradient, variable, learning_rate)

    def scaled_step(self, gradient, variable, learning_rate) -> None:
        """Update one variable and its state."""
        raise NotImplementedError

    def widen(self, gradient, variable):
        """The gradient, float32, of the variable's shape."""
        g = ops.cast(ops.convert_to_tensor(gradient), "float32")
        # A gradient that was sparse has no static shape, and blocks need one.
        return ops.reshape(g, variable.shape)

    def random_bits(self, variable, index: int):
        """32 random bits an element, of this step."""
        # The variable's shape is always known, that of a sparse gradient is not.
        return random_bits(variable.shape, self.seed, index, self.iterations)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        own = {
            "state_dtype": self.state_dtype,
            "seed": self.seed,
            "min_size": self.min_size,
        }
        return {**config, **own}
