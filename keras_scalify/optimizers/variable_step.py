"""One step of one variable: its moments are decoded, updated and rounded."""

from math import prod
from typing import Any, NamedTuple

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.backend import arrays
from keras_scalify.optimizers.block_storage import BLOCK, blocks_of
from keras_scalify.optimizers.narrow_weights import narrow_format
from keras_scalify.optimizers.random_bits import bits_from, random_key
from keras_scalify.optimizers.storage import Scale, Slot, Storage


class Moment(NamedTuple):
    """How a moment of a variable rests, and its scales before and after the step."""

    storage: Storage
    slot: Slot
    old: Any
    new: Any


class Part:
    """Some elements of a variable, or all of them, in the middle of a step.

    Attributes:
        g: the gradient, float32.
        bits: 32 random bits an element, int32.
    """

    def __init__(self, g, bits, moments: dict[str, Moment], data):
        self.g, self.bits, self._moments = g, bits, moments
        self._data = dict(zip(moments, data, strict=True))
        self._scales = {name: m.old for name, m in moments.items()}

    def is_relative(self, name: str) -> bool:
        """Whether what rests is the moment's ratio to another one."""
        return self._moments[name].storage.is_relative

    def read(self, name: str):
        """The moment as it rests, float32: the old one, or the one written."""
        storage = self._moments[name].storage
        return storage.decode(self._data[name], self._scales[name])

    def write(self, name: str, moment, bits, keep_positive: bool = False):
        """Round the moment stochastically. See Storage.round."""
        storage, scale = self._moments[name].storage, self._moments[name].new
        self._scales[name] = scale
        self._data[name] = storage.round(moment, scale, bits, keep_positive)

    @property
    def data(self) -> list:
        """What is to rest."""
        pairs = zip(self._moments.values(), self._data.values(), strict=True)
        return [arrays.cast(data, m.storage.dtype) for m, data in pairs]


def update_variable(optimizer, gradient, variable, formula) -> None:
    """Update a variable and its moments.

    Args:
        optimizer: a ScaledState.
        gradient: of the variable.
        variable: as Keras hands it to `update_step`.
        formula: function of a Part, which it updates, to what is subtracted from its
            elements, float32.
    """
    index = optimizer._get_variable_index(variable)
    g = optimizer.widen(gradient, variable)
    moments = _moments(optimizer, index, g)
    key = random_key(optimizer.seed, index, optimizer.iterations)
    is_wide = narrow_format(optimizer._trainable_variables[index]) is None

    def elements(start, values, g):
        own = {name: _of_part(m, start, g) for name, m in moments.items()}
        data = values[: len(moments)]
        part = Part(g, bits_from(start, g.shape, key), own, data)
        step = formula(part)
        if not is_wide:
            return part.data, step
        w = values[-1]
        return [*part.data, w - arrays.cast(step, standardize_dtype(w.dtype))], None

    variables = [m.slot.data for m in moments.values()]
    variables += [variable] if is_wide else []
    step = backend.update(elements, variables, g, optimizer.assign)
    if not is_wide:
        step = arrays.reshape(step, g.shape)
        optimizer.move(variable, step, bits_from(0, g.shape, key))


def _moments(optimizer, index: int, g) -> dict[str, Moment]:
    """Every moment; its new scale is from a bound of what it can become."""
    moments: dict[str, Moment] = {}
    measured: dict[type, Any] = {}  # the amax of the gradient
    bounds: dict[str, Any] = {}
    for name, slots in optimizer._slots.items():
        storage, slot = optimizer.storage(name, g.shape), slots[index]
        if slot.amax is None:
            moments[name] = Moment(storage, slot, None, None)
            continue
        if type(storage) not in measured:
            measured[type(storage)] = storage.amax(g)
        old = ops.convert_to_tensor(slot.amax)
        bounds[name] = optimizer.bound(name, old, measured[type(storage)], bounds)
        scales = storage.scale(old), storage.scale(bounds[name])
        moments[name] = Moment(storage, slot, *scales)
        # On Torch `old` is the variable itself: only now is it no longer needed.
        optimizer.assign(slot.amax, bounds[name])
    return moments


def _of_part(moment: Moment, start: int, g) -> Moment:
    """A moment with the scales of the blocks of a part."""
    first, count = start // BLOCK, blocks_of(g.shape)

    def cut(scale):
        if scale is None or prod(scale.value.shape) <= count:
            return scale
        return Scale(*(s[first : first + count] for s in scale))

    return moment._replace(old=cut(moment.old), new=cut(moment.new))
