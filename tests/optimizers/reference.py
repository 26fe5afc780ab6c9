"""Numpy references: the random bits, and the neighbors of a number in a format."""

import ml_dtypes
import numpy as np


def mix(x):
    """The mixer of random_bits, on uint32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def random_bits(shape, seed, stream, step):
    """The counter hash, as the int32 that the backends return."""
    stream = np.array([(seed * 0x5851F42D + stream) % 2**32], np.uint32)
    key = mix(np.array([step], np.uint32) ^ mix(stream))
    index = np.arange(np.prod(shape, dtype=int), dtype=np.uint32).reshape(shape)
    return mix(index * np.uint32(0x9E3779B1) + key).astype(np.int32)


def neighbors(x, format_name):
    """The largest number of a format at or below x and the smallest at or above it.

    Args:
        x: Array of finite float32 within the format's range.
        format_name: Name of a dtype of numpy or ml_dtypes.

    Returns:
        Two float64 arrays, equal where x is in the format.
    """
    info = ml_dtypes.finfo(format_name)
    x = np.asarray(x, np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 1, int(info.minexp))
    quantum = np.ldexp(1.0, exponent - info.nmant)
    return np.floor(x / quantum) * quantum, np.ceil(x / quantum) * quantum
