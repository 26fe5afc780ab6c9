"""Ops along an axis: softmax and its kin, normalization."""

import math

import keras
from keras import ops

from keras_scalify import backend
from keras_scalify.ops.entry import rescale_gradient
from keras_scalify.ops.gaussian import SOFTMAX_FIRST, lookup, softmax_moments
from keras_scalify.ops.propagation import propagate, scaled_op, times
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


def softmax_square(square, size):
    """E[p**2] of the softmax of `size` Gaussian logits of a mean square.

    A dynamic size has no table: min(e**x / n**2, 1 / n), the limits of small and large
        x.
    """
    if isinstance(size, int):
        table, _ = softmax_moments(max(size, 2))
        return lookup(table, square, SOFTMAX_FIRST, extrapolate=False)
    size = ops.cast(size, "float32")
    return ops.minimum(ops.exp(ops.minimum(square, 80.0)) / size, 1.0) / size


def softmax_gradient_square(h, square, size):
    """The mean square of `p (g - sum(p g))`, from that of g and of the logits.

    Of a dynamic size h E[p**2] (1 - n E[p**2]), which is too much for large logits.
    """
    if isinstance(size, int):
        _, table = softmax_moments(max(size, 2))
        return h * lookup(table, square, SOFTMAX_FIRST, extrapolate=False)
    p_square = softmax_square(square, size)
    size = ops.cast(size, "float32")
    return h * p_square * ops.maximum(1.0 - size * p_square, 2.0**-10)


@scaled_op(
    "x",
    "E[p^2], between 1/n^2 and 1/n",
    "h E[p^2 (1 - 2 p + sum(p^2))]",
    "logits Gaussian with mean square x; the limits are all equal and one alone",
)
def softmax(x, axis=-1):
    """keras.ops.softmax."""
    size = _size(x, axis)
    square = propagate(
        lambda a: softmax_square(a, size),
        lambda h, a: (softmax_gradient_square(h, a, size),),
        x.mean_square,
    )
    return ScaledTensor(ops.softmax(x.value, axis=axis), square)


@scaled_op("x", "x + (log n + x / 2)^2", "h (1 + n E[p^2])", "for x below 2 log n")
def log_softmax(x, axis=-1):
    """keras.ops.log_softmax."""
    size = _size(x, axis)
    log_size = ops.log(ops.cast(size, "float32"))
    n = ops.cast(size, "float32")
    square = propagate(
        lambda a: a + ops.square(log_size + a / 2),
        lambda h, a: (h * (1.0 + n * softmax_square(a, size)),),
        x.mean_square,
    )
    return ScaledTensor(ops.log_softmax(x.value, axis=axis), square)


@scaled_op("x", "e^(2x)", "h e^(2x)", "E[e^2z] of a Gaussian")
def exp(x):
    """keras.ops.exp."""
    square = propagate(
        lambda a: ops.exp(ops.minimum(2.0 * a, 80.0)),
        lambda h, a: (h * ops.exp(ops.minimum(2.0 * a, 80.0)),),
        x.mean_square,
    )
    return ScaledTensor(ops.exp(x.value), square)


@scaled_op(
    "x",
    "gamma + beta",
    "measured",
    "gamma and beta are measured",
)
def layer_normalization(x, gamma=None, beta=None, axis=-1, epsilon=None, **kwargs):
    """keras.ops.layer_normalization. The gradient of x is measured on its way back."""
    settings = {"axis": axis, **kwargs}
    if epsilon is not None:
        settings["epsilon"] = epsilon
    return _normalized(ops.layer_normalization, x, gamma, beta, settings)


@scaled_op("x", "gamma", "measured", "gamma is measured")
def rms_normalization(x, scale=None, axis=-1, epsilon=None):
    """keras.ops.rms_normalization. The gradient of x is measured on its way back."""
    settings = {"axis": axis, **({} if epsilon is None else {"epsilon": epsilon})}
    return _normalized(_rms_normalized, x, scale, None, settings)


def _rms_normalized(value, gamma, beta, **settings):
    """Keras's op, for a number too, which it does not take on Torch (3.15)."""
    if gamma is None or isinstance(gamma, (int, float)):
        value = ops.rms_normalization(value, **settings)
        return value if gamma is None else value * gamma
    return ops.rms_normalization(value, gamma, **settings)


def _normalized(op, x, gamma, beta, settings):
    x = rescale_gradient(x)
    if is_scaled(gamma) or is_scaled(beta):
        raise ValueError(
            "the parameters of a normalization must be plain: they are measured. "
            "Received a ScaledTensor: use ks.ops.unscale."
        )
    return ScaledTensor(
        op(x.value, gamma, beta, **settings), affine_square(gamma, beta)
    )


def affine_square(gamma, beta):
    """The mean square of a normalized tensor times gamma plus beta."""
    square = ops.ones((), "float32") if gamma is None else parameter_square(gamma)
    return square if beta is None else square + parameter_square(beta)


def parameter_square(x):
    """The mean square of a number or of a parameter, which is measured."""
    if isinstance(x, (int, float)):
        return ops.convert_to_tensor(min(float(x) ** 2, 2.0**126), dtype="float32")
    return backend.mean_square(ops.stop_gradient(ops.convert_to_tensor(x)))


def _dropout(x, rate, seed=None):
    return keras.random.dropout(x, rate, seed=seed)


@scaled_op("x", "x / (1 - rate)", "h / (1 - rate)", plain=_dropout)
def dropout(x, rate, seed=None):
    """keras.random.dropout."""
    value = _dropout(x.value, rate, seed)
    return ScaledTensor(value, times(x.mean_square, dropout_factor(rate)))


def dropout_factor(rate: float) -> float:
    """What dropout multiplies a mean square by; 1 where it leaves nothing but 0."""
    return 1.0 / (1.0 - rate) if rate < 1 else 1.0


def _size(x, axis):
    shape = ops.shape(x.value)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return math.prod(shape[a] for a in axes)
