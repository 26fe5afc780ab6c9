"""Activations: the value by Keras, the mean square by its Gaussian expectation."""

import functools
import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_scalify import backend
from keras_scalify.ops.arithmetic import multiply
from keras_scalify.ops.gaussian import lookup, moments
from keras_scalify.ops.propagation import (
    RULES,
    Rule,
    all_scaled,
    as_scaled,
    propagate,
    refuse_symbolic,
    scaled_op,
    times,
)
from keras_scalify.ops.shapes import split
from keras_scalify.scaled_tensor import ScaledTensor


def _softplus(z):
    return np.logaddexp(0.0, z)


def _sigmoid(z):
    return np.exp(-_softplus(-z))


def _gelu(z, approximate=True):
    if approximate:
        inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        return 0.5 * z * (1 + np.tanh(inner))
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def _elu(z, alpha=1.0):
    return np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0)))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805

# Name in Keras: the function on numpy arrays, arguments named and defaulted as in
# keras.ops.
CURVES: dict[str, Callable] = {
    "celu": lambda z, alpha=1.0: np.where(z > 0, z, alpha * _elu(z / alpha)),
    "elu": _elu,
    "gelu": _gelu,
    "hard_shrink": lambda z, threshold=0.5: np.where(np.abs(z) > threshold, z, 0.0),
    "hard_sigmoid": lambda z: np.clip(z / 6 + 0.5, 0, 1),
    "hard_silu": lambda z: z * np.clip(z / 6 + 0.5, 0, 1),
    "hard_tanh": lambda z: np.clip(z, -1, 1),
    "leaky_relu": lambda z, negative_slope=0.2: np.where(z > 0, z, negative_slope * z),
    "log_sigmoid": lambda z: -_softplus(-z),
    "mish": lambda z: z * np.tanh(_softplus(z)),
    "relu": lambda z: np.maximum(z, 0),
    "relu6": lambda z: np.clip(z, 0, 6),
    "selu": lambda z: _SELU_SCALE * _elu(z, _SELU_ALPHA),
    "sigmoid": _sigmoid,
    "silu": lambda z: z * _sigmoid(z),
    "soft_shrink": lambda z, threshold=0.5: (
        np.sign(z) * np.maximum(np.abs(z) - threshold, 0)
    ),
    "softplus": _softplus,
    "softsign": lambda z: z / (1 + np.abs(z)),
    "sparse_plus": lambda z: np.where(
        z <= -1, 0.0, np.where(z < 1, 0.25 * (z + 1) ** 2, z)
    ),
    "sparse_sigmoid": lambda z: np.clip(0.5 * (z + 1), 0, 1),
    "squareplus": lambda z, b=4: 0.5 * (z + np.sqrt(z**2 + b)),
    "tanh": np.tanh,
    "tanh_shrink": lambda z: z - np.tanh(z),
    "threshold": lambda z, threshold=0.0, default_value=0.0: np.where(
        z > threshold, z, default_value
    ),
}


# Those that scale with their argument: E[f(z)**2] / E[z**2], which is E[f'(z)**2] too.
HOMOGENEOUS: dict[str, Callable] = {
    "relu": lambda: 0.5,
    "leaky_relu": lambda negative_slope=0.2: (1 + negative_slope**2) / 2,
}


@backend.constant
@functools.cache
def _tables(name: str, arguments: tuple):
    return moments(functools.partial(CURVES[name], **dict(arguments)))


def curve_mean_square(name: str, square, **arguments):
    """E[f(z)**2] at a mean square of z, with E[f'(z)**2] h as its gradient."""
    if name in HOMOGENEOUS:
        return times(square, HOMOGENEOUS[name](**arguments))
    forward, backward = _tables(name, tuple(sorted(arguments.items())))
    return propagate(
        lambda x: lookup(forward, x), lambda h, x: (h * lookup(backward, x),), square
    )


def _curve_op(name: str):
    stock = getattr(ops, name, None) or getattr(keras.activations, name)

    def op(x, *args, **kwargs):
        if not all_scaled(name, {"x": x}):
            return stock(x, *args, **kwargs)
        refuse_symbolic(name, {"x": x})
        x = as_scaled(x)
        names = CURVES[name].__code__.co_varnames[1:] if args else ()
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        square = curve_mean_square(name, x.mean_square, **arguments)
        return ScaledTensor(stock(x.value, *args, **kwargs), square)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"keras.ops.{name}, of a plain or scaled tensor."
    tabulated = Rule(
        forward="E[f(z)^2]", backward="E[f'(z)^2] h", note=_NOTES.get(name, "tabulated")
    )
    RULES[name] = _LINEAR.get(name, tabulated)
    return op


_NOTES = {
    "sigmoid": "tabulated: between 1/4 for small x and 1/2 for large",
    "tanh": "tabulated: between x for small x and 1 for large",
}
_LINEAR = {
    "relu": Rule(forward="x / 2", backward="h / 2"),
    "leaky_relu": Rule(
        forward="x (1 + s^2) / 2", backward="h (1 + s^2) / 2", note="s: negative_slope"
    ),
}

CURVE_OPS = {name: _curve_op(name) for name in CURVES}


@scaled_op("x", "x E[sigmoid(z)^2]", "h (E[sigmoid(z)^2] + x E[sigmoid'(z)^2]) / 2")
def glu(x, axis=-1):
    """keras.ops.glu: the first half of the axis times the sigmoid of the second."""
    value, gate = split(x, 2, axis=axis)
    return multiply(value, CURVE_OPS["sigmoid"](gate))
