"""The boundary on TensorFlow."""

import tensorflow as tf

from keras_scalify import config, scaling
from keras_scalify.backend.parts import (
    arrays,
    attention_dtype,
    constant,
    indices,
    recomputed,
    scalar,
    update,
)
from keras_scalify.equations import Equation
from keras_scalify.formats import Format
from keras_scalify.rounding import round_to_format

__all__ = [
    "amax",
    "arrays",
    "attention_dtype",
    "can_assign",
    "constant",
    "custom_vjp",
    "dense",
    "einsum",
    "gradients",
    "indices",
    "is_native",
    "mean_square",
    "quantize",
    "recomputed",
    "scalar",
    "transpose",
    "update",
]

_DTYPES = {
    "float8_e4m3fn": tf.dtypes.experimental.float8_e4m3fn,
    "float8_e5m2": tf.dtypes.experimental.float8_e5m2,
    "float16": tf.float16,
    "bfloat16": tf.bfloat16,
    "float32": tf.float32,
}


# A reduction in two steps: to parts of so many lanes, from a size where they pay.
PARTS, LANES, LEAST_SIZE = 16, 64, 1 << 14


def is_native() -> bool:
    """Real float8 arrays: as set by config, by default where there is a GPU."""
    form = config.matmul()
    if form == "auto":
        return bool(tf.config.list_logical_devices("GPU"))
    return form == "native"


def amax(x, axis=None):
    """Largest finite magnitude along the axis, float32; 0 where there is none."""
    if axis is not None or not _has_parts(x):
        return scaling.finite_amax(x, axis)
    return scaling.finite_amax(x, largest=_largest)


def mean_square(x):
    """mean(x**2), a float32 scalar, positive and finite."""
    return scaling.mean_square(x, _sum if _has_parts(x) else tf.reduce_sum)


def _has_parts(x) -> bool:
    """Whether to reduce in two steps: a CPU's threads share parts and add vectors."""
    size = x.shape.num_elements()
    whole = size is not None and size >= LEAST_SIZE and size % (PARTS * LANES) == 0
    return whole and not is_native()


# XLA would merge two reductions of a kind that nothing stands between.
def _sum(x):
    parts = tf.reduce_sum(tf.reshape(x, (PARTS, -1, LANES)), 1)
    return tf.reduce_sum(parts / LANES) * LANES


def _largest(x, axis, initial):
    parts = tf.reduce_max(tf.reshape(x, (PARTS, -1, LANES)), 1)
    bits = tf.bitcast(parts, tf.int32)  # of no negative number: in the same order
    return tf.bitcast(tf.reduce_max(bits), tf.float32)


def custom_vjp(forward, backward):
    """A function of float tensors with its own backward pass. See backend/jax.py."""

    @tf.custom_gradient
    def primal(*tensors):
        outputs, residuals = forward(*tensors)

        def pull(*cotangents):
            return backward(residuals, cotangents, (True,) * len(tensors))

        return outputs, pull

    return lambda *tensors: primal(*(tf.convert_to_tensor(t) for t in tensors))


def quantize(x, scale, format: Format):
    """x / scale on the format's grid: a real array of it if native, else float32."""
    x = tf.cast(x, tf.float32)
    if not is_native():
        return round_to_format(x, scale, format)
    clipped = tf.clip_by_value(x * (1.0 / scale), -format.max, format.max)
    kept = tf.where(tf.math.is_finite(x), clipped, x)
    return tf.cast(kept, _DTYPES[format.name])


def einsum(equation: Equation, a, b, scales, dtype):
    """The product of two quantized operands times both scales.

    TensorFlow has no float8 matmul. On a GPU under jit_compile, XLA turns dequantize,
    then dot in bfloat16 into the float8 library call.
    """
    if a.dtype.size == b.dtype.size == 1:
        wide = tf.bfloat16 if dtype == "bfloat16" else tf.float32
        # Both scales on one side: see backend/jax.py.
        scale = tf.clip_by_value(scales[0] * scales[1], *scaling.SCALE_LIMITS)
        a, b = tf.cast(a, wide) * tf.cast(scale, wide), tf.cast(b, wide)
        return tf.cast(tf.einsum(str(equation), a, b), dtype)
    a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    y = tf.einsum(str(equation), a, b)
    # One scale after the other: their product may leave the range where y does not.
    return tf.cast(y * scales[0] * scales[1], dtype)


def can_assign(variable, value) -> bool:
    """Always: TensorFlow's variables are assigned inside loops too."""
    return True


def gradients(function, variables):
    """The gradients of a scalar function without arguments by Keras variables."""
    with tf.GradientTape() as tape:
        y = function()
    return tape.gradient(y, [v.value for v in variables])


def transpose(function, shape, cotangent):
    """The transpose of a function linear in a float32 tensor of this shape."""
    zeros = tf.zeros(shape)
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        y = function(zeros)
    return tape.gradient(y, zeros, tf.cast(cotangent, tf.float32))


def dense(x):
    """The dense tensor of a gradient, an embedding's too: repeated indices add up."""
    if not isinstance(x, tf.IndexedSlices):
        return x
    return tf.math.unsorted_segment_sum(x.values, x.indices, x.dense_shape[0])
