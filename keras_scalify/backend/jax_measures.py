"""Measuring on JAX, by XLA on a CPU: it writes what it computes before a reduction."""

import math

import jax.numpy as jnp
from jax import lax

from keras_scalify.scaling import clip_mean_square, finite_amax
from keras_scalify.scaling import mean_square as masked_mean_square

# Below, a condition costs more than the passes over memory that it saves.
LEAST_SIZE = 1 << 18


def amax(x, axis=None):
    """`max(|x_i|)` over the finite entries, float32: masked only where that matters."""
    if _is_small(x):
        return finite_amax(x, axis)
    largest = jnp.max(jnp.abs(x), axis, initial=0.0).astype("float32")
    # A CPU computes only one side of a condition.
    is_finite = jnp.all(jnp.isfinite(largest))
    return lax.cond(is_finite, lambda: largest, lambda: finite_amax(x, axis))


def mean_square(x):
    """`mean(x_i**2)`, float32, positive and finite: masked only where that matters."""
    if _is_small(x):
        return masked_mean_square(x)
    total = jnp.sum(jnp.square(x.astype("float32")))
    square = clip_mean_square(total / x.size)
    return lax.cond(jnp.isfinite(total), lambda: square, lambda: masked_mean_square(x))


def _is_small(x) -> bool:
    # A size is a symbol where a program is exported.
    known = all(isinstance(size, int) for size in x.shape)
    return not known or math.prod(x.shape) < LEAST_SIZE
