"""Sums, means, maxima and pools.

The value comes first: Keras's op says what is wrong with an argument.
"""

import math

from keras import ops

from keras_scalify.ops.gaussian import maximum_mean_square
from keras_scalify.ops.propagation import propagate, scaled_op, times
from keras_scalify.ops.shapes import size_product
from keras_scalify.scaled_tensor import ScaledTensor


@scaled_op("x", "n x", "h")
def sum(x, axis=None, keepdims=False):
    """keras.ops.sum."""
    count = _count(x, axis)
    square = propagate(lambda a: count * a, lambda h, a: (h,), x.mean_square)
    return ScaledTensor(ops.sum(x.value, axis=axis, keepdims=keepdims), square)


@scaled_op("x", "x / n", "h / n^2")
def mean(x, axis=None, keepdims=False):
    """keras.ops.mean."""
    value = ops.mean(x.value, axis=axis, keepdims=keepdims)
    count = _count(x, axis)
    square = propagate(
        lambda a: a / count, lambda h, a: (h / count / count,), x.mean_square
    )
    return ScaledTensor(value, square)


_MAXIMUM = "E[max^2] of n standard Gaussians, m; n at most 65536"


@scaled_op("x", "m x", "h / n", _MAXIMUM)
def max(x, axis=None, keepdims=False, initial=None):
    """keras.ops.max."""
    value = ops.max(x.value, axis=axis, keepdims=keepdims, initial=initial)
    count = _static(_count(x, axis))
    square = times(x.mean_square, maximum_mean_square(count), 1.0 / count)
    return ScaledTensor(value, square)


@scaled_op("inputs", "m x", "h outputs / inputs", _MAXIMUM + ", n the window")
def max_pool(inputs, pool_size, strides=None, padding="valid", data_format=None):
    """keras.ops.max_pool."""
    # Keras 3.15 lacks the default on JAX.
    strides = pool_size if strides is None else strides
    value = ops.max_pool(inputs.value, pool_size, strides, padding, data_format)
    window, stride = pool_sizes(inputs, pool_size, strides)
    square = times(inputs.mean_square, maximum_mean_square(window), 1.0 / stride)
    return ScaledTensor(value, square)


@scaled_op("inputs", "x / n", "h / n / stride", "n the window; overlaps add")
def average_pool(inputs, pool_size, strides=None, padding="valid", data_format=None):
    """keras.ops.average_pool."""
    strides = pool_size if strides is None else strides
    value = ops.average_pool(inputs.value, pool_size, strides, padding, data_format)
    window, stride = pool_sizes(inputs, pool_size, strides)
    square = times(inputs.mean_square, 1.0 / window, 1.0 / window / stride)
    return ScaledTensor(value, square)


def pool_sizes(x, pool_size, strides):
    """Entries in a window, and input entries for each output."""
    spatial = len(x.shape) - 2
    return tuple(
        s**spatial if isinstance(s, int) else math.prod(s) for s in (pool_size, strides)
    )


def _count(x, axis):
    """How many entries a reduction takes in: an int, or a float32 tensor if dynamic."""
    shape = ops.shape(x.value)
    axes = range(len(shape)) if axis is None else axis
    axes = (axes,) if isinstance(axes, int) else axes
    return size_product([shape[a] for a in axes])


def _static(count):
    # The expectation grows like 2 log n: a bound does for a dynamic or a huge one.
    return min(count, 65536) if isinstance(count, int) else 256
