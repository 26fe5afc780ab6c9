"""Measuring through XLA on a CPU, which writes what it computes before a reduction."""

import math

from keras import ops

from keras_scalify.scaling import clip_mean_square, finite_amax
from keras_scalify.scaling import mean_square as masked_mean_square

# Below, a condition costs more than the passes over memory that it saves.
LEAST_SIZE = 1 << 14


def amax(x, axis=None):
    """`max(|x_i|)` over the finite entries, float32: masked only where that matters."""
    if _is_small(x):
        return finite_amax(x, axis)
    low = ops.min(x, axis, initial=float("inf"))
    largest = ops.maximum(ops.max(x, axis, initial=float("-inf")), -low)
    largest = ops.cast(largest, "float32")
    # A CPU computes only one side of a condition.
    is_finite = ops.all(ops.isfinite(largest))
    return ops.cond(is_finite, lambda: largest, lambda: finite_amax(x, axis))


def mean_square(x):
    """`mean(x_i**2)`, float32, positive and finite: masked only where that matters."""
    if _is_small(x):
        return masked_mean_square(x)
    total = ops.sum(ops.square(ops.cast(x, "float32")))
    count = ops.maximum(ops.cast(ops.size(x), "float32"), 1.0)
    square = clip_mean_square(total / count)
    return ops.cond(ops.isfinite(total), lambda: square, lambda: masked_mean_square(x))


def _is_small(x) -> bool:
    # A size may be unknown: None on TensorFlow, a symbol where JAX exports a program.
    known = all(isinstance(size, int) for size in x.shape)
    return known and math.prod(x.shape) < LEAST_SIZE
