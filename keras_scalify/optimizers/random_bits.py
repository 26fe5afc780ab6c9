"""Random bits from a counter: a few integer operations on an index and the step.

A full random generator would cost more than the optimizer step it serves. The bits
depend on nothing but the seed, the variable's number, the step and the element's index,
so they are the same on every backend, in every sharding and after a reload.
"""

from keras import ops

from keras_scalify import backend
from keras_scalify.backend import arrays

# The two multipliers, as signed 32-bit numbers, of the mixer that hash-prospector found
# to have the least bias of its form (Wellons, "Prospecting for hash functions", 2018).
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)
_GOLDEN = 0x9E3779B1 - (1 << 32)  # 2**32 / golden ratio, odd


def mix(x):
    """A bijection of int32: every input bit flips each output bit half the time."""
    x = (x ^ _shift(x, 16)) * _FIRST
    x = (x ^ _shift(x, 15)) * _SECOND
    return x ^ _shift(x, 16)


def random_bits(shape, seed: int, stream: int, step):
    """32 random bits an element.

    Args:
        shape: of the result, static.
        seed: Python int.
        stream: Python int, such as the variable's number; streams are unrelated.
        step: int scalar tensor; steps are unrelated.

    Returns:
        int32 tensor of `shape`.
    """
    return bits_from(0, shape, random_key(seed, stream, step))


def random_key(seed: int, stream: int, step):
    """What the bits of all elements have in common, an int32 scalar tensor."""
    stream = ops.convert_to_tensor(_wrap(seed * 0x5851F42D + stream), dtype="int32")
    return mix(ops.cast(step, "int32") ^ mix(stream))


def bits_from(start: int, shape, key):
    """The bits of the elements from `start` on; start is a Python int."""
    index = backend.indices(shape, key)
    return mix(index * _GOLDEN + (key + _wrap(start * _GOLDEN)))


def low_bits(bits, count: int):
    """The `count` lowest bits, as int32 in [0, 2**count)."""
    return bits & ((1 << count) - 1)


def high_bits(bits):
    """The 20 upper bits, moved down.

    They share 8 with the 20 lower ones, of which they are the least and the most
    significant: what is rounded with both has nothing in common worth the name.
    """
    return _shift(bits, 12)


def _shift(x, count: int):
    """Logical shift to the right: int32 has the arithmetic one."""
    return arrays.right_shift(x, count) & ((1 << (32 - count)) - 1)


def _wrap(value: int) -> int:
    """A Python int as a signed 32-bit number."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
