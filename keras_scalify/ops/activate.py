"""The activation of a layer, given as Keras keeps it: a function or None."""

import keras

from keras_scalify import backend
from keras_scalify.backend import arrays
from keras_scalify.ops.activations import CURVES, HOMOGENEOUS, curve_mean_square, glu
from keras_scalify.ops.normalization import exp, log_softmax, softmax
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled

# Names that stand for the same function.
SYNONYMS = {"swish": "silu", "hard_swish": "hard_silu"}
# Activations that are no function of one entry alone.
OTHERS = {
    "exponential": exp,
    "glu": glu,
    "log_softmax": log_softmax,
    "softmax": softmax,
}


def has_rule(activation) -> bool:
    """Whether `activate` takes a layer's activation."""
    name = _name(activation)
    return activation is None or name == "linear" or name in CURVES or name in OTHERS


def activate(activation, x):
    """The activation of a plain or scaled tensor.

    Args:
        activation: a function, its name in Keras, or None.
        x: tensor or ScaledTensor.

    Raises:
        ValueError: the function has no rule for a ScaledTensor; names it.
    """
    activation = keras.activations.get(activation)
    if not is_scaled(x):
        return activation(x)
    name = _name(activation)
    if name == "linear":
        return x
    if name in CURVES:
        return ScaledTensor(activation(x.value), curve_mean_square(name, x.mean_square))
    if name in OTHERS:
        return OTHERS[name](x)
    raise ValueError(
        f"the activation {name!r} has no rule for a ScaledTensor. Use activation=None, "
        "then ks.ops.unscale, then the activation."
    )


def activate_sum(activation, x, bias):
    """`activation(x + bias)` of a plain or scaled x, by the rule of a scaled one.

    Args:
        activation: as Keras keeps it, or None.
        x: tensor, or a ScaledTensor whose mean square is already that of the sum.
        bias: tensor of x's dtype that broadcasts with x, or None.
    """
    scaled, name = is_scaled(x), _name(activation)
    terms = [x.value if scaled else x, *([] if bias is None else [bias])]
    if name in CURVES and name not in HOMOGENEOUS:
        # A gradient that is measured is written, and may have a second reader.
        value = backend.recomputed(
            lambda *terms: activation(_sum(*terms)), terms, apart=scaled
        )
        if not scaled:
            return value
        return ScaledTensor(value, curve_mean_square(name, x.mean_square))
    value = _sum(*terms)
    if scaled:
        return activate(activation, ScaledTensor(value, x.mean_square))
    return value if activation is None else activation(value)


def _sum(x, bias=None):
    return x if bias is None else arrays.add(x, bias)


def _name(activation) -> str:
    name = getattr(activation, "__name__", "")
    if getattr(keras.activations, name, None) is not activation:
        return f"{name or type(activation).__name__} of one's own"
    return SYNONYMS.get(name, name)
