"""How moments rest between steps: in a narrow float, with one scale a tensor."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from keras_scalify import backend
from keras_scalify.formats import Format
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from keras_scalify.scaling import amax_to_scale


class Slot(NamedTuple):
    """The variables of one moment of one model variable."""

    data: Any  # of the model variable's shape, in the storage's dtype
    amax: (
        Any  # float32, what no |moment| exceeds: of the tensor, of its blocks, or None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """Moments in a narrow float format, with a power-of-two scale per tensor.

    `moment = data * scale`, data rounded stochastically. The scale is not measured on
    the new moment, which would take a second pass over it: it comes from a bound of its
    amax, carried from step to step, and the amax of the gradient. See `write`.

    Attributes:
        format: the format that the data rests in. float32 keeps what it is given.
    """

    format: Format

    # Data stays a factor of 2 or more below the largest number: room for rounding up.
    MARGIN = 1
    is_relative = False

    @property
    def dtype(self) -> str:
        """The dtype that the data rests in."""
        return self.format.name

    def add(self, optimizer, reference, name: str) -> Slot:
        """Create the variables of a moment, sharded like the model variable."""
        path = getattr(reference, "path", reference.name).replace("/", "_")
        data = optimizer.add_variable(
            shape=reference.shape,
            dtype=self.dtype,
            layout=getattr(reference, "_layout", None),
            name=f"{path}_{name}",
        )
        shape = self.amax_shape(reference.shape)
        if shape is None:
            return Slot(data, None)
        name = f"{path}_{name}_amax"
        return Slot(data, optimizer.add_variable(shape, dtype="float32", name=name))

    def amax_shape(self, shape):
        """The shape of the bounds for a variable of this shape; None for none."""
        return () if self.format.is_scaled else None

    def amax(self, gradient):
        """What `write` needs to know of the gradient: its amax, float32 scalar."""
        return backend.amax(gradient) if self.format.is_scaled else None

    def read(self, slot: Slot):
        """The moment, float32, which a later `write` does not change."""
        moment = self.decode(slot.data.value, slot.amax)
        # On Torch a cast to the same dtype is the variable itself, assigned in place.
        return ops.copy(moment) if self.format.is_identity else moment

    def write(self, optimizer, slot: Slot, moment, bound, bits, keep_positive=False):
        """Round the moment stochastically and store it.

        Args:
            moment: float32, the new moment.
            bound: function of the slot's amax to the new amax, which no |moment| may
                exceed.
            bits: int32 of the moment's shape, at least 16 random low bits.
            keep_positive: whether a positive moment must not become 0.

        Returns:
            the moment as it will be read, float32.
        """
        amax = None if slot.amax is None else bound(slot.amax.value)
        data = self.encode(moment, amax, bits, keep_positive)
        optimizer.assign(slot.data, data)
        if amax is not None:
            optimizer.assign(slot.amax, amax)
        return self.decode(data, amax)

    def encode(self, moment, amax, bits, keep_positive):
        """The data of a moment."""
        if self.format.is_identity:
            return moment
        if amax is not None:
            moment = moment * (1.0 / self._scale(amax))
        rounded = stochastic_round(moment, self.format, bits, keep_positive)
        return ops.cast(rounded, self.dtype)

    def decode(self, data, amax):
        """The moment of data, float32."""
        wide = ops.cast(data, "float32")
        return wide if amax is None else wide * self._scale(amax)

    def _scale(self, amax):
        return amax_to_scale(ops.convert_to_tensor(amax), self.format, self.MARGIN)
