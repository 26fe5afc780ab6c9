"""How an optimizer's moments rest between steps."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from keras_scalify import backend
from keras_scalify.formats import FORMATS, Format
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from keras_scalify.scaling import amax_to_scale


class Slot(NamedTuple):
    """The variables of one moment of one model variable."""

    data: Any  # of the model variable's shape, in the storage's dtype
    amax: Any  # float32 scalar that no |moment| exceeds, or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """Moments in a narrow float format, with a power-of-two scale per tensor.

    `moment = data * scale`, data rounded stochastically. The scale is not measured on
    the new moment, which would take a second pass over it: it comes from a bound of its
    amax, carried from step to step, and the amax of the gradient. See `write`.

    Attributes:
        format: the format that the data rests in.
    """

    format: Format

    # Data stays a factor of 2 or more below the largest number: room for rounding up.
    MARGIN = 1

    def add(self, optimizer, reference, name: str) -> Slot:
        """Create the variables of a moment, sharded like the model variable."""
        path = getattr(reference, "path", reference.name).replace("/", "_")
        data = optimizer.add_variable(
            shape=reference.shape,
            dtype=self.format.name,
            layout=getattr(reference, "_layout", None),
            name=f"{path}_{name}",
        )
        if not self.format.is_scaled:
            return Slot(data, None)
        amax = optimizer.add_variable(
            shape=(), dtype="float32", name=f"{path}_{name}_amax"
        )
        return Slot(data, amax)

    def amax(self, gradient):
        """What `write` needs to know of the gradient: its amax, float32 scalar."""
        return backend.amax(gradient) if self.format.is_scaled else None

    def read(self, slot: Slot):
        """The moment, float32."""
        data = ops.cast(slot.data.value, "float32")
        return data * self._scale(slot.amax.value) if self.format.is_scaled else data

    def write(self, optimizer, slot: Slot, moment, bound, bits, keep_positive=False):
        """Round the moment stochastically and store it.

        Args:
            moment: float32, the new moment.
            bound: function of the slot's amax to the new amax, which no |moment| may
                exceed.
            bits: int32 of the moment's shape, at least 16 random low bits.
            keep_positive: whether a positive moment must not become 0.
        """
        if self.format.is_scaled:
            amax = bound(slot.amax.value)
            moment = moment * (1.0 / self._scale(amax))
        data = stochastic_round(moment, self.format, bits, keep_positive)
        optimizer.assign(slot.data, ops.cast(data, self.format.name))
        if self.format.is_scaled:
            optimizer.assign(slot.amax, amax)

    def _scale(self, amax):
        return amax_to_scale(amax, self.format, self.MARGIN)


STORAGES = {
    name: Storage(format=FORMATS[name]) for name in ("float32", "bfloat16", "float16")
}


def get_storage(state_dtype: str) -> Storage:
    """The row of STORAGES called `state_dtype`.

    Raises:
        ValueError: names what came and what is allowed.
    """
    if not isinstance(state_dtype, str) or state_dtype not in STORAGES:
        raise ValueError(
            f"`state_dtype` must be one of {', '.join(STORAGES)}. "
            f"Received: state_dtype={state_dtype!r}"
        )
    return STORAGES[state_dtype]
