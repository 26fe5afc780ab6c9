"""Scales as pure functions: amax, powers of two by their bits, amax to scale.

Powers of two come from the exponent bits of a float32 and never from a logarithm, which
is wrong for some of them on some backends and differs between backends near the
subnormals.
"""

from keras import ops

from keras_scalify.formats import Format

MANTISSA_BITS = 23
MANTISSA_MASK = (1 << MANTISSA_BITS) - 1
EXPONENT_MASK = 0xFF << MANTISSA_BITS
BIAS = 127
# Scales stay in [2**-126, 2**126], so that a scale and its reciprocal are both normal
# numbers.
MIN_EXPONENT, MAX_EXPONENT = -126, 126
SCALE_LIMITS = 2.0**MIN_EXPONENT, 2.0**MAX_EXPONENT
# Powers of two between a propagated root mean square and the format's largest binade.
HEADROOM = 11
FLOAT32_MAX = 3.4028234663852886e38


def finite_amax(x, axis=None, largest=ops.max):
    """`max(|x_i|)` over the finite entries; 0 where there is none.

    Args:
        x: float tensor, any shape.
        axis: along which to reduce. Default: all.
        largest: what takes the largest entry of a tensor.

    Returns:
        float32, a scalar by default, never NaN or infinite.
    """
    magnitude = ops.abs(ops.cast(x, "float32"))
    magnitude = ops.where(magnitude <= FLOAT32_MAX, magnitude, 0.0)
    return largest(magnitude, axis=axis, initial=0.0)


def mean_square(x, total=ops.sum):
    """`mean(x_i**2)`, in [2**-126, 2**126].

    One pass. Non-finite entries count as 0, finite ones as at most 2**62, so that the
    sum stays finite or is clipped; what lies outside of the range has a root outside of
    [2**-63, 2**63] and would be clipped anyway.

    Args:
        x: float tensor, any shape, also empty.
        total: what sums all entries of a tensor.

    Returns:
        float32 scalar, positive and finite.
    """
    wide = ops.cast(x, "float32")
    kept = ops.where(ops.isfinite(wide), ops.clip(wide, -(2.0**62), 2.0**62), 0.0)
    count = ops.maximum(ops.cast(ops.size(wide), "float32"), 1.0)
    return clip_mean_square(total(ops.square(kept)) / count)


def clip_mean_square(value, ops=ops):
    """A mean square kept in [2**-126, 2**126]. For ops see amax_to_scale."""
    return ops.clip(value, *SCALE_LIMITS)


def mean_square_to_scale(value, format: Format, ops=ops):
    """Largest power of two at or below `sqrt(value)`, less the format's spare headroom.

    Half the exponent, rounded down. Data then has a root mean square in [1, 2), where
    e4m3 has 2**8.8 of room above and 2**9 below. A format with more than 2**12 above
    (e5m2, float16) is used higher up, at 2**4: one entry of 2**24 can be no further
    above the root mean square, and gradients have their long tail below.

    Args:
        value: float32 scalar, a mean square, or infinity where many add up.
        format: the format of the scaled data. One without need of a scale gives 1.
        ops: see amax_to_scale.

    Returns:
        float32 scalar, a power of two in [2**-68, 2**64]; 1 for a value of 0.
    """
    if not format.is_scaled:
        return ops.ones_like(value)
    spare = max(_split(format.max)[1] - HEADROOM, 0)
    # Half of the sum of the exponent's field and its bias. The odd bit is masked.
    half = ops.right_shift(ops.view(value, "int32"), 1)
    half = half + ((BIAS - 2 * spare) << (MANTISSA_BITS - 1))
    scale = ops.view(ops.bitwise_and(half, EXPONENT_MASK), "float32")
    return ops.where(value > 0, scale, 1.0)


def amax_to_scale(amax, format: Format, margin: int = 0, ops=ops):
    """Smallest power of two s with `amax / s <= format.max / 2**margin`.

    With `amax = m 2**e` and `format.max = M 2**E` (mantissas in [1, 2)), s is
    `2**(e - E)`, times 2 if m > M, times `2**margin`. Adding `all ones - bits of M` to
    the bits of amax carries into the exponent exactly when m > M.

    Args:
        amax: float32 scalar, not negative, finite.
        format: the format of the scaled data. One without need of a scale gives 1.
        margin: powers of two of headroom.
        ops: where its functions come from, such as backend.arrays.

    Returns:
        float32 scalar, a power of two in [2**-126, 2**126]; 1 for amax = 0.
    """
    if not format.is_scaled:
        return ops.ones_like(amax)
    mantissa, exponent = _split(format.max)
    carried = ops.view(amax, "int32") + (MANTISSA_MASK - mantissa)
    field = ops.right_shift(carried, MANTISSA_BITS) + (margin - exponent)
    field = ops.clip(field, MIN_EXPONENT + BIAS, MAX_EXPONENT + BIAS)
    scale = ops.view(ops.left_shift(field, MANTISSA_BITS), "float32")
    return ops.where(amax > 0, scale, 1.0)


def _split(value: float) -> tuple[int, int]:
    """The mantissa bits and the exponent of a positive Python number as a float32."""
    mantissa, exponent = value.hex().lower().split("p")
    fraction = int(float.fromhex(mantissa) * (1 << MANTISSA_BITS)) & MANTISSA_MASK
    return fraction, int(exponent)
