"""Rounding up or down at random, so that the mean is exact."""

import numpy as np

from keras_scalify.backend import arrays
from keras_scalify.formats import Format
from keras_scalify.optimizers.random_bits import low_bits
from keras_scalify.scaling import MANTISSA_BITS, MIN_EXPONENT

_SIGN, _MAGNITUDE = -(1 << 31), (1 << 31) - 1
_NAN = 0x7FC00000
_HUGE = 2.0**102


def stochastic_round(x, format: Format, bits, keep_positive: bool = False):
    """One of the two neighbours of x in `format`, at random, so that the mean is x.

    Args:
        x: float32, any shape, at most `format.max`, infinite or NaN.
        format: a Format with a mantissa of at most 22 bits.
        bits: int32 of x's shape, at least 20 random low bits.
        keep_positive: whether a positive x becomes at least the smallest positive
            number. No x may be negative then.

    Returns:
        float32 of x's shape, every value exactly representable in the format. A
        representable x, NaN and infinities are returned as they are.
    """
    raised = rounded_bits(x, format, bits, keep_positive)
    kept = raised & -(1 << (MANTISSA_BITS - format.mantissa_bits))
    y = arrays.view(kept, "float32")
    y = lower_subnormals(y, format) if format.is_scaled else y
    if keep_positive:
        return y
    sign = arrays.view(x, "int32") & _SIGN
    return arrays.view(arrays.view(y, "int32") | sign, "float32")


def rounded_bits(x, format: Format, bits, keep_positive=False, largest: int = _NAN):
    """The bits of |x| with subnormals raised, of which the upper ones count.

    Random bits are added below the last kept bit: cut off, the sum is rounded. What is
    above `largest` becomes it: by default NaNs, one of which would overflow.
    """
    y = arrays.minimum(raised_bits(x, format), largest)
    if keep_positive:
        # Positive numbers, times _HUGE, are above any number of a format.
        least = 2.0 ** max(format.quantum_exponent, MIN_EXPONENT)
        least = (least + _normal(format)) / 2 if format.is_scaled else least
        huge = arrays.view(x * _HUGE, "int32") & _MAGNITUDE
        y = arrays.maximum(
            y, arrays.minimum(huge, int(np.float32(least).view("int32")))
        )
    return y + _noise(bits, MANTISSA_BITS - format.mantissa_bits)


def raised_bits(x, format: Format):
    """The bits of |x|, subnormals of the format moved up: the inverse is below.

    They move to the binade below the normal numbers, where float32's numbers are spaced
    evenly, as subnormals are: cutting off bits rounds both. No comparison: on a CPU a
    `where` takes as long as ten of these operations.
    """
    bits = arrays.view(x, "int32") & _MAGNITUDE
    if format.is_scaled:
        raised = (arrays.view(bits, "float32") + _normal(format)) * 0.5
        bits = arrays.maximum(bits, arrays.view(raised, "int32"))
    return bits


def lower_subnormals(y, format: Format):
    """Floats from raised bits."""
    return arrays.minimum(y, y * 2.0 - _normal(format))


def bits_of(number: float) -> int:
    """The bits of a float32."""
    return int(np.float32(number).view("int32"))


def _normal(format: Format) -> float:
    """The smallest normal number."""
    return 2.0**format.min_exponent


def _noise(bits, count: int):
    """Random integers in [0, 2**count), of 20 random bits if count is greater."""
    if count <= 20:
        return low_bits(bits, count)
    spread = arrays.left_shift(low_bits(bits, 20), count - 20)
    return spread + (1 << (count - 21))
