"""Domain assertions and the numpy oracle that the tests compare with."""

import sys

import ml_dtypes
import numpy as np


def to_numpy(x):
    """A numpy array of a backend's tensor, a Keras variable or an array-like."""
    if keras := sys.modules.get("keras"):
        x = keras.ops.convert_to_numpy(x)
    return np.asarray(x)


def assert_power_of_two(x):
    """Assert that every element of `x` is a positive, finite power of two."""
    x = to_numpy(x).astype(np.float64)
    mantissa, _ = np.frexp(x)
    assert np.all(np.isfinite(x) & (mantissa == 0.5)), f"not powers of two: {x}"


def sqnr_db(reference, value):
    """Signal to quantization noise, `10 log10(sum r**2 / sum (r - v)**2)`, in dB.

    It is infinite where the two are equal, and NaN where either holds a NaN.
    """
    reference = to_numpy(reference).astype(np.float64)
    value = to_numpy(value).astype(np.float64)
    assert reference.shape == value.shape, f"{reference.shape} != {value.shape}"
    noise = np.sum((reference - value) ** 2)
    if noise == 0:
        return np.inf
    with np.errstate(divide="ignore"):  # an all-zero reference: -inf dB
        return float(10 * np.log10(np.sum(reference**2) / noise))


def assert_sqnr(reference, value, db):
    """Assert that `value` is within `db` decibels of the reference, or better."""
    measured = sqnr_db(reference, value)
    assert measured >= db, f"SQNR {measured:.1f} dB, want at least {db} dB"


def relative_error(a, b):
    """`norm(a - b) / norm(b)` in float64; 0 where both are zero."""
    a, b = (to_numpy(x).astype(np.float64) for x in (a, b))
    assert a.shape == b.shape, f"{a.shape} != {b.shape}"
    difference, size = np.linalg.norm(a - b), np.linalg.norm(b)
    if size == 0:
        return 0.0 if difference == 0 else np.inf
    return float(difference / size)


def oracle_quantize(x, format_name, scale):
    """The data of `x` in a format, as float32: `cast(clip(x / scale))`.

    Args:
        x: Array-like. It is divided in float32.
        format_name: Name of a dtype of numpy or ml_dtypes, such as "float8_e4m3fn".
        scale: A power of two, so that `x` is about the result times `scale`.

    Returns:
        A float32 array on the format's grid. Finite elements saturate at the format's
        largest value; NaN and infinity are cast as they are (e4m3fn has no infinity,
        and makes it NaN).
    """
    dtype = np.dtype(getattr(ml_dtypes, format_name, format_name))
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    with np.errstate(all="ignore"):  # overflow before the clip, NaN in the cast
        data = to_numpy(x).astype(np.float32) / np.float32(scale)
        overflowed = np.isinf(data) & np.isfinite(to_numpy(x))
        clipped = np.clip(data, -largest, largest)
        data = np.where(np.isfinite(data) | overflowed, clipped, data)
        return data.astype(dtype).astype(np.float32)


def assert_same(a, b):
    """Assert that two arrays, or lists of them, are equal bit for bit, NaN included."""
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
        return
    a, b = to_numpy(a), to_numpy(b)
    assert a.dtype == b.dtype, f"{a.dtype} != {b.dtype}"
    np.testing.assert_array_equal(a, b)
