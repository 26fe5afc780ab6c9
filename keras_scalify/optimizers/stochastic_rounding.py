"""Rounding up or down at random, so that the mean is exact."""

from keras import ops

from keras_scalify.formats import Format
from keras_scalify.optimizers.random_bits import low_bits
from keras_scalify.scaling import MANTISSA_BITS

_SIGN = -(1 << 31)


def stochastic_round(x, format: Format, bits, keep_positive: bool = False):
    """One of the two neighbours of x in `format`, at random, so that the mean is x.

    Random bits are added below the last kept bit and the sum is cut off. The subnormal
    range is shifted up to the first normal binade, whose spacing is the same, and back.

    Args:
        x: float32, any shape, finite values at most `format.max`.
        format: a Format with a mantissa of at most 22 bits.
        bits: int32 of x's shape, at least 16 random low bits.
        keep_positive: whether a positive x becomes at least the smallest positive
            number.

    Returns:
        float32 of x's shape, every value exactly representable in the format. A
        representable x, NaN and infinities are returned as they are.
    """
    dropped = MANTISSA_BITS - format.mantissa_bits
    sign = ops.bitwise_and(ops.view(x, "int32"), _SIGN)
    magnitude = ops.abs(x)
    smallest_normal = 2.0**format.min_exponent
    offset = ops.where(magnitude < smallest_normal, smallest_normal, 0.0)
    raised = ops.view(magnitude + offset, "int32") + _noise(bits, dropped)
    cut = ops.view(ops.bitwise_and(raised, -(1 << dropped)), "float32")
    rounded = ops.minimum(cut - offset, format.max)
    if keep_positive:
        floor = ops.where(magnitude > 0, 2.0**format.quantum_exponent, 0.0)
        rounded = ops.maximum(rounded, floor)
    rounded = ops.view(ops.bitwise_or(ops.view(rounded, "int32"), sign), "float32")
    return ops.where(ops.isfinite(x), rounded, x)


def _noise(bits, count: int):
    """Random integers in [0, 2**count), of 16 random bits if count is greater."""
    if count <= 16:
        return low_bits(bits, count)
    spread = ops.left_shift(low_bits(bits, 16), count - 16)
    return spread + (1 << (count - 17))
