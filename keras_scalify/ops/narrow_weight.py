"""Weights that rest in 16 bits: `W = data * scale`."""

import contextlib
import contextvars
import functools
from typing import Any

import keras
from keras import ops

from keras_scalify import backend
from keras_scalify.formats import FORMATS
from keras_scalify.scaling import amax_to_scale

# The two entries of `scales`, float32 powers of two.
SCALE = 0  # W = data * scale
UNIT = 1  # the gradient that reaches data is that of W times unit; 0: not known yet

DTYPES = "float16", "bfloat16"
# Largest entries lie near 2**6: they may grow by 2**9, and normal numbers go down to
# 2**20 below them.
WEIGHT_MARGIN, LARGEST, LEAST = 9, 2.0**12, 2.0**-2
# Largest gradients lie near 2**0, so that one step may bring larger ones by 2**11, and
# sums over the calls of a shared layer still fit.
GRADIENT_MARGIN, LIMIT = 15, 2.0**11
INITIAL_SCALE = 2.0**-12  # of zeros

_updating = contextvars.ContextVar("updating", default=False)


def wide(data, scales):
    """`data * scales[0]`, float32.

    Its gradient is `h scales[1]`, clipped to +-2**11, in data's dtype; that of scales
    is (1, amax(h)): the way of amax(h) to the optimizer, whatever both are divided by.
    With a unit of 0 it comes from amax(h), and the optimizer finds it again.

    Args:
        data: float16 or bfloat16, any shape.
        scales: float32 (2,), powers of two.
    """
    return _wide(keras.backend.standardize_dtype(data.dtype))(data, scales)


@functools.cache
def _wide(dtype: str):
    def forward(data, scales):
        return ops.cast(data, "float32") * scales[SCALE], (scales,)

    def backward(residuals, cotangents, needed):
        (h,) = cotangents
        # An infinity must reach loss scaling as one; finite values are clipped.
        amax = backend.amax(h)
        found = ops.stack([ops.cast(amax > 0, "float32"), amax])
        g = ops.clip(h * used_unit(residuals[0][UNIT], found), -LIMIT, LIMIT)
        return ops.cast(ops.where(ops.isfinite(h), g, h), dtype), found

    return backend.custom_vjp(forward, backward)


def narrow(value, scale, dtype: str):
    """`value / scale`, rounded to the nearest in dtype; beyond its range saturated."""
    limit = FORMATS[dtype].max
    return ops.cast(ops.clip(value * (1.0 / scale), -limit, limit), dtype)


def scale_of(value):
    """The scale for a weight of this value, float32 scalar."""
    amax = backend.amax(value)
    scale = amax_to_scale(amax, FORMATS["float16"], WEIGHT_MARGIN)
    return ops.where(amax > 0, scale, INITIAL_SCALE)


def next_scale(scale, amax):
    """The scale for the next step.

    Args:
        scale: float32 scalar, of this step.
        amax: float32 scalar, of the data.
    """
    inside = (amax <= LARGEST) & ((amax >= LEAST) | (amax == 0))
    centered = amax_to_scale(amax, FORMATS["float16"], WEIGHT_MARGIN)
    return scale * ops.where(inside, 1.0, centered)


def next_unit(unit, gradient):
    """The unit for the next step, from the gradient of `scales`: (n, n amax) / any."""
    count, total = gradient[0], gradient[1]
    amax = ops.where(count > 0, total / ops.where(count > 0, count, 1.0), 0.0)
    known = (amax > 0) & ops.isfinite(amax)
    scale = amax_to_scale(
        ops.where(known, amax, 1.0), FORMATS["float16"], GRADIENT_MARGIN
    )
    return ops.where(known, 1.0 / scale, unit)


def used_unit(unit, gradient):
    """The unit of a step's gradient: the known one, or the one that it was given."""
    return ops.where(unit > 0, unit, next_unit(1.0, gradient))


@contextlib.contextmanager
def updating():
    """While an optimizer that knows of scaled weights updates them."""
    token = _updating.set(True)
    try:
        yield
    finally:
        _updating.reset(token)


class NarrowWeight(keras.constraints.Constraint):
    """The constraint of a narrow weight's data, and of its scales.

    It names the scales to the optimizer, applies the user's constraint to the weight,
    and stops optimizers that know nothing of scales: each calls the constraint of every
    variable it updates.

    Args:
        scales: the variable of the scales.
        inner: the constraint of the weight, or None.
        is_data: whether it is the constraint of the data (or of the scales).
    """

    def __init__(self, scales: Any, inner: Any = None, is_data: bool = True):
        self.scales, self.inner, self.is_data = scales, inner, is_data

    def __call__(self, value):
        if not _updating.get():
            raise ValueError(
                "A layer with `weight_dtype` must be trained with an optimizer of "
                "keras_scalify.optimizers, such as ScaledAdam: others know nothing of "
                "the scale of its weight."
            )
        value = ops.convert_to_tensor(value)
        if self.inner is None or not self.is_data:
            return value
        scales = ops.convert_to_tensor(self.scales)
        w = self.inner(ops.cast(value, "float32") * scales[SCALE])
        dtype = keras.backend.standardize_dtype(value.dtype)
        return narrow(w, scales[SCALE], dtype)


class OfWide:
    """A regularizer of the weight, given its data."""

    def __init__(self, scales, inner):
        self.scales, self.inner = scales, inner

    def __call__(self, data):
        data, scales = (ops.convert_to_tensor(v) for v in (data, self.scales))
        w = wide(data, scales)
        # Without a unit yet each gradient finds its own, and they could not be added.
        known = scales[UNIT] > 0
        return self.inner(ops.where(known, w, ops.stop_gradient(w)))


def parse_weight_dtype(weight_dtype):
    """weight_dtype, if it is None or one of DTYPES.

    Raises:
        ValueError: names what came and what is allowed.
    """
    if weight_dtype is None or weight_dtype in DTYPES:
        return weight_dtype
    raise ValueError(
        f"`weight_dtype` must be None, {' or '.join(map(repr, DTYPES))}. Received: "
        f"weight_dtype={weight_dtype!r}"
    )
