"""ScaledEinsumDense."""

import string

import keras
from keras import ops

from keras_scalify.equations import parse
from keras_scalify.layers.adoption import adopt, stock_arguments
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.ops.products import EinsumProduct


@replaces_keras_layer
class ScaledEinsumDense(QuantizedKernel, keras.layers.EinsumDense):
    """`y = activation(einsum(equation, q(x), q(kernel)) + bias)`. See ScaledDense.

    A keras.layers.EinsumDense in a recipe's formats.

    Args:
        *args, **kwargs: those of keras.layers.EinsumDense. Every label of `equation`
            must stand in two of its three terms; an ellipsis stands for leading
            dimensions.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.

    Raises:
        ValueError: an unknown recipe, an equation of another kind.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledEinsumDense("abc,cde->abde", (None, 2, 4))
    >>> tuple(layer(np.ones((3, 5, 8), "float32")).shape)
    (3, 5, 2, 4)
    """

    def product(self, x):
        return EinsumProduct(parse(explicit(self.equation, len(x.shape))))

    def adapt(self, x, a, b):
        term = parse(explicit(self.equation, len(x.shape)))
        last, rank = term.w[-1], _unused(str(term))
        if last not in term.w_free:
            return ops.einsum(str(term), x, ops.matmul(a, b))
        inner = term.y.replace(last, rank)
        narrow = ops.einsum(f"{term.x},{term.w[:-1]}{rank}->{inner}", x, a)
        return ops.einsum(f"{inner},{rank}{last}->{term.y}", narrow, b)


def explicit(equation: str, rank: int) -> str:
    """The equation with its ellipsis spelled out for an input of this rank."""
    equation = equation.replace(" ", "")
    if "..." not in equation:
        return equation
    named = len(equation.split(",")[0].replace("...", ""))
    free = [c for c in string.ascii_uppercase if c not in equation]
    return equation.replace("...", "".join(free[: rank - named]))


def _unused(equation: str) -> str:
    return next(c for c in string.ascii_letters if c not in equation)


def scaled_projection(layer, **settings):
    """A ScaledEinsumDense like a layer's EinsumDense that is not built."""
    projection = ScaledEinsumDense(
        **stock_arguments(layer),
        **settings,
        activity_regularizer=layer.activity_regularizer,
        name=layer.name,
        dtype=layer.dtype_policy,
    )
    # A mask of the inputs is the outer layer's affair: no warning that it ends.
    projection.supports_masking = True
    return projection


def adopt_projection(layer, **settings) -> None:
    """Make a layer's EinsumDense that is built a ScaledEinsumDense."""
    adopt(layer, ScaledEinsumDense, **settings)
    layer.supports_masking = True
