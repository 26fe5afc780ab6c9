"""The moments of an optimizer in float32, by the names that Keras gives them."""

from keras import ops

from keras_scalify.optimizers.random_bits import random_bits
from keras_scalify.optimizers.scaled_state import ScaledState

NAMES = "momentum", "velocity", "velocity_hat"  # how names of Keras's variables end
_ROOT = "_root"  # a slot of this name holds the root of a moment


def wide_moments(optimizer) -> dict[str, list]:
    """The moments of each variable that has one, float32 copies."""
    if not _is_scaled(optimizer):
        found = {name: _variables(optimizer, name) for name in NAMES}
        return {
            name: [ops.copy(ops.cast(v.value, "float32")) for v in variables]
            for name, variables in found.items()
            if variables
        }
    return {
        name.removesuffix(_ROOT): [
            _wide(optimizer, name, index, slot) for index, slot in _used(slots)
        ]
        for name, slots in optimizer._slots.items()
    }


def set_moments(optimizer, values) -> None:
    """Store what wide_moments returned of an optimizer like this one."""
    if not _is_scaled(optimizer):
        for name, moments in values.items():
            variables = _variables(optimizer, name)
            for variable, value in zip(variables, moments, strict=True):
                variable.assign(ops.cast(value, variable.dtype))
        return
    # Roots first: a first moment may be stored relative to one.
    for name in sorted(optimizer._slots, key=lambda name: not name.endswith(_ROOT)):
        moments = values[name.removesuffix(_ROOT)]
        used = _used(optimizer._slots[name])
        for (index, slot), value in zip(used, moments, strict=True):
            _store(optimizer, name, index, slot, value)


def _is_scaled(optimizer):
    return isinstance(optimizer, ScaledState) and not optimizer.is_stock


def _variables(optimizer, name):
    return [v for v in optimizer.variables if v.name.endswith(f"_{name}")]


def _used(slots):
    return [(index, slot) for index, slot in enumerate(slots) if slot is not None]


def _storage(optimizer, name, slot):
    return optimizer.storage(name, slot.data.shape)


def _root(optimizer, index):
    slot = optimizer._slots["velocity_root"][index]
    return _storage(optimizer, "velocity", slot).read(slot)


def _wide(optimizer, name, index, slot):
    storage = _storage(optimizer, name, slot)
    value = storage.read(slot)
    if storage.is_relative:
        return value * _root(optimizer, index)
    return value * value if name.endswith(_ROOT) else value


def _store(optimizer, name, index, slot, value):
    storage, is_root = _storage(optimizer, name, slot), name.endswith(_ROOT)
    if is_root:
        value = ops.sqrt(value)
    if storage.is_relative:
        root = _root(optimizer, index)
        value = value / ops.where(root == 0, 1.0, root)
    amax = storage.amax(value)
    bits = random_bits(value.shape, optimizer.seed, index, optimizer.iterations)
    data = storage.encode(value, storage.scale(amax), bits, is_root)
    optimizer.assign(slot.data, data)
    if slot.amax is not None:
        optimizer.assign(slot.amax, amax)
