"""How moments rest between steps: in a narrow float, with one scale a tensor."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from keras_scalify import backend
from keras_scalify.backend import arrays
from keras_scalify.formats import Format
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from keras_scalify.scaling import amax_to_scale

_BITS_OF_BOTH = 254 << 23  # the bits of a power of two plus those of its inverse


class Slot(NamedTuple):
    """The variables of one moment of one model variable."""

    data: Any  # of the model variable's shape, in the storage's dtype
    amax: (
        Any  # float32, what no |moment| exceeds: of the tensor, of its blocks, or None
    )


class Scale(NamedTuple):
    """A power of two, or one a block, and its inverse."""

    value: Any
    inverse: Any


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
        """The Scale for moments of at most amax; None for none."""
        if amax is None:
            return None
        scale = amax_to_scale(amax, self.format, self.MARGIN, arrays)
        inverse = arrays.view(_BITS_OF_BOTH - arrays.view(scale, "int32"), "float32")
        # XLA computes a quotient once a block, and other operations once an element.
        return Scale(1.0 / inverse, 1.0 / scale)

    def read(self, slot: Slot):
        """The moment, float32, which a later step does not change."""
        amax = None if slot.amax is None else ops.convert_to_tensor(slot.amax)
        moment = self.decode(ops.convert_to_tensor(slot.data), self.scale(amax))
        # On Torch a cast to the same dtype is the variable itself, assigned in place.
        return ops.copy(moment) if self.format.is_identity else moment

    def encode(self, moment, scale, bits, keep_positive):
        """The data of a moment: rounded, and in the dtype that it rests in."""
        rounded = self.round(moment, scale, bits, keep_positive)
        return arrays.cast(rounded, self.dtype)

    def round(self, moment, scale, bits, keep_positive):
        """The data of a moment, rounded stochastically, before the cast to its dtype.

        Args:
            moment: float32.
            scale: a Scale, or None.
            bits: int32 of the moment's shape, at least 20 random low bits.
            keep_positive: whether a positive moment must not become 0. None is
                negative then.
        """
        if self.format.is_identity:
            return moment
        if scale is not None:
            moment = moment * scale.inverse
        return stochastic_round(moment, self.format, bits, keep_positive)

    def decode(self, data, scale):
        """The moment of data, cast to its dtype or not, as float32."""
        wide = arrays.cast(data, "float32")
        return wide if scale is None else wide * scale.value
