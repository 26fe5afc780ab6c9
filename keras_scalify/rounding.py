"""Rounding float32 values to the grid of a narrower format, by their bits.

The result stays float32. The compiler cannot simplify this away, as it does (x + c) -
c for a constant c, and on a CPU it is faster than the conversion to float8 and back,
with the same bits.
"""

from keras import ops

from keras_scalify.formats import Format
from keras_scalify.scaling import BIAS, EXPONENT_MASK, MANTISSA_BITS

HALF = 1 << (MANTISSA_BITS - 1)  # the mantissa of 1.5
SIGN = -(1 << 31)


def round_to_format(x, scale, format: Format):
    """Nearest value of `format` to `x / scale`, ties to even, saturating.

    Finite values beyond the largest finite value of the format become it. NaN stays
    NaN; an infinity stays one, or becomes NaN in a format that has none, so that an
    overflow is seen by whoever looks for it (loss scaling does).

    Args:
        x: float32, any shape.
        scale: float32 scalar, a power of two.
        format: a row of FORMATS.

    Returns:
        float32 of the same shape, every value exactly representable in `format`.
    """
    scaled = x * (1.0 / scale)
    if format.is_identity:
        return scaled
    clipped = ops.clip(scaled, -format.max, format.max)
    spans_float32 = not format.is_scaled
    rounded = (round_mantissa if spans_float32 else _round_sum)(clipped, format)
    return ops.where(ops.isfinite(x), rounded, x if format.has_inf else float("nan"))


def round_mantissa(x, format: Format):
    """Nearest, ties to even: half an ulp less one, plus the odd bit, then cut."""
    dropped = MANTISSA_BITS - format.mantissa_bits
    bits = ops.view(x, "int32")
    odd = ops.bitwise_and(ops.right_shift(bits, dropped), 1)
    bits = bits + odd + ((1 << (dropped - 1)) - 1)
    return ops.view(ops.bitwise_and(bits, -(1 << dropped)), "float32")


def _round_sum(x, format: Format):
    """Nearest, ties to even, subnormals too: what is left of x beside a large number.

    The number is 1.5 times the power of two whose float32 neighbors are as far apart as
    the format's are at x. It differs by element, which no compiler simplifies away.
    """
    dropped = MANTISSA_BITS - format.mantissa_bits
    bits = ops.view(x, "int32")
    exponent = ops.bitwise_and(bits, EXPONENT_MASK)
    least = (format.min_exponent + BIAS) << MANTISSA_BITS
    large = ops.maximum(exponent, least) + ((dropped << MANTISSA_BITS) | HALF)
    large = ops.view(large, "float32")
    rounded = ops.view((x + large) - large, "int32")
    return ops.view(ops.bitwise_or(rounded, ops.bitwise_and(bits, SIGN)), "float32")
