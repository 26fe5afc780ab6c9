"""How moments rest between steps: in a narrow float, with one scale a tensor."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from keras_scalify import backend
from keras_scalify.backend import arrays
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
    amax, carried from step to step, and the amax of the gradient.

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
        """What a bound needs to know of the gradient: its amax, float32 scalar."""
        return backend.amax(gradient) if self.format.is_scaled else None

    def scale(self, amax):
        """The scales for moments of at most amax; None for none."""
        if amax is None:
            return None
        return amax_to_scale(amax, self.format, self.MARGIN, arrays)

    def read(self, slot: Slot):
        """The moment, float32, which a later step does not change."""
        amax = None if slot.amax is None else ops.convert_to_tensor(slot.amax)
        moment = self.decode(ops.convert_to_tensor(slot.data), self.scale(amax))
        # On Torch a cast to the same dtype is the variable itself, assigned in place.
        return ops.copy(moment) if self.format.is_identity else moment

    def encode(self, moment, scale, bits, keep_positive):
        """The data of a moment, rounded stochastically.

        Args:
            moment: float32.
            scale: of the moment.
            bits: int32 of the moment's shape, at least 16 random low bits.
            keep_positive: whether a positive moment must not become 0. None is
                negative then.
        """
        if self.format.is_identity:
            return moment
        if scale is not None:
            moment = moment * (1.0 / scale)
        rounded = stochastic_round(moment, self.format, bits, keep_positive)
        return arrays.cast(rounded, self.dtype)

    def decode(self, data, scale):
        """The moment of data, float32."""
        wide = arrays.cast(data, "float32")
        return wide if scale is None else wide * scale
