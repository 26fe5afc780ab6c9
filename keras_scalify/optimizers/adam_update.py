"""Adam's update with moments that rest in a narrow format."""

from typing import Any

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.formats import FORMATS
from keras_scalify.optimizers.random_bits import high_half, mix, random_bits
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from keras_scalify.optimizers.storage import get_storage


class AdamUpdate:
    """Mixin before keras.optimizers.Adam or a subclass: the storage of its moments.

    With `state_dtype="float32"` it changes nothing. Otherwise, with g the gradient, in
    float32:

        m = m + (1 - beta_1) (g - m)
        v = r**2 + (1 - beta_2) (g**2 - r**2),  r = sqrt(v)
        variable = variable - lr sqrt(1 - beta_2**t) / (1 - beta_1**t) m / (r + epsilon)

    and m and r (not v, which spans twice the exponents) are stored, rounded
    stochastically: one step moves v by about 1 - beta_2 of itself, less than half a
    unit in the last place, so rounding to nearest would lose the decay. Variables
    narrower than float32 are rounded the same way.
    """

    def __init__(self, *args, state_dtype: str = "float16", seed: int = 0, **kwargs):
        storage = get_storage(state_dtype)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"`seed` must be an integer. Received: seed={seed!r}")
        super().__init__(*args, **kwargs)
        self._storage = storage
        self.state_dtype = state_dtype
        self.seed = seed
        self._slots: dict[str, list] = {}

    @property
    def _is_stock(self) -> bool:
        return self._storage.format.is_identity

    def build(self, variables):
        if self.built:
            return
        if self._is_stock:
            super().build(variables)
            return
        # Adam.build would add its own slots; the one above it makes what every
        # optimizer has.
        super(keras.optimizers.Adam, self).build(variables)
        names = ["momentum", "velocity_root"]
        names += ["velocity_hat_root"] if self.amsgrad else []
        self._slots = {name: [] for name in names}
        for variable in variables:
            for name, slots in self._slots.items():
                overwritten = getattr(variable, "overwrite_with_gradient", False)
                slot = None if overwritten else self._storage.add(self, variable, name)
                slots.append(slot)

    def apply(self, grads, trainable_variables=None):
        if not self._is_stock:
            grads = [g if g is None else backend.dense(g) for g in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        if self._is_stock:
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        g = ops.cast(ops.convert_to_tensor(gradient), "float32")
        # The variable's shape is always known, that of a sparse gradient is not.
        bits = random_bits(variable.shape, self.seed, index, self.iterations)
        amax = self._storage.amax(g)
        m = self._update_momentum(self._slots["momentum"][index], g, amax, bits)
        r = self._update_root(index, g, amax, high_half(bits))
        denominator = r + self.epsilon
        # A coordinate without any gradient yet must not become 0 / 0 with epsilon = 0.
        step = m / ops.where(denominator > 0, denominator, 1.0)
        self._move(variable, step * self._rate(learning_rate), bits)

    def _rate(self, learning_rate):
        """`lr sqrt(1 - beta_2**t) / (1 - beta_1**t)`, float32."""
        t = ops.cast(self.iterations + 1, "float32")
        powers = [ops.power(ops.cast(b, "float32"), t) for b in self._betas]
        rate = ops.cast(learning_rate, "float32")
        return rate * ops.sqrt(1.0 - powers[1]) / (1.0 - powers[0])

    @property
    def _betas(self):
        return self.beta_1, self.beta_2

    def _update_momentum(self, slot, g, amax, bits):
        """The new first moment, which it also stores."""
        beta = self.beta_1
        m = self._storage.read(slot)
        m = m + (g - m) * (1.0 - beta)

        def bound(old):
            return beta * old + (1.0 - beta) * amax

        self._storage.write(self, slot, m, bound, bits)
        return m

    def _update_root(self, index, g, amax, bits):
        """The root of the new second moment (amsgrad: of its maximum), also stored."""
        beta = self.beta_2
        slot = self._slots["velocity_root"][index]
        v = ops.square(self._storage.read(slot))
        r = ops.sqrt(v + (ops.square(g) - v) * (1.0 - beta))

        def bound(old):
            return ops.sqrt(beta * old * old + (1.0 - beta) * amax * amax)

        self._storage.write(self, slot, r, bound, bits, keep_positive=True)
        if not self.amsgrad:
            return r
        hat = self._slots["velocity_hat_root"][index]
        r = ops.maximum(self._storage.read(hat), r)

        def hat_bound(old):
            return ops.maximum(old, slot.amax.value)

        self._storage.write(self, hat, r, hat_bound, mix(bits), keep_positive=True)
        return r

    def _move(self, variable, step, bits):
        """Subtract the step; round stochastically where the variable is narrow."""
        dtype = standardize_dtype(variable.dtype)
        row = FORMATS.get(dtype)
        if row is None or row.is_identity:
            self.assign_sub(variable, ops.cast(step, dtype))
            return
        moved = ops.cast(ops.convert_to_tensor(variable), "float32") - step
        rounded = stochastic_round(moved, row, mix(bits))
        self.assign(variable, ops.cast(rounded, dtype))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "state_dtype": self.state_dtype, "seed": self.seed}
