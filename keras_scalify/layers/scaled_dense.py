"""ScaledDense."""

import string
from typing import Any

import keras
from keras import ops

from keras_scalify.equations import parse
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.ops.products import EinsumProduct


@replaces_keras_layer
class ScaledDense(QuantizedKernel, keras.layers.Dense):
    """`y = activation(q(x) @ q(kernel) + bias)`, q quantizing to the recipe's formats.

    A keras.layers.Dense with its matmul, and both matmuls of its gradient, in low
    precision: each operand is divided by a power of two, clipped and rounded to its
    format, once a step. Products are summed in float32. Bias and activation are
    computed in the compute dtype.

    Args:
        units: positive integer, size N of the output.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8": e4m3
            for x and kernel, e5m2 for the gradient, scales measured in the step.
            "float32" is keras.layers.Dense exactly.
        weight_dtype: "float16" or "bfloat16": between steps the kernel rests as data of
            this dtype and one float32 power-of-two scale, `kernel = data * scale`, and
            is rounded stochastically. Needs an optimizer of ks.optimizers; Keras's own
            raise a ValueError (eager Torch: after the first step), and its callback
            SwapEMAWeights fails on TensorFlow. A gradient more than 2**11 times as
            large as the largest of the step before is clipped to that. `layer.kernel`
            is the product, float32; `layer.assign_kernel(value)` sets it: wrappers that
            assign to `layer.kernel`, such as SpectralNormalization, fail. Default None:
            as the dtype policy says.
        **kwargs: every other argument of keras.layers.Dense.

    Input: float tensor (..., K), any leading dimensions, also empty; other dtypes are
        cast.
        Or a ScaledTensor of one: then nothing is measured but the kernel.
    Output: (..., N) in the compute dtype; a ScaledTensor if the input was.

    Raises:
        ValueError: an unknown recipe or weight_dtype; a dtype policy of Keras's own
            quantization; what Dense raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledDense(4, activation="relu")
    >>> tuple(layer(np.ones((2, 3), "float32")).shape)
    (2, 4)

    Reference: Balança et al., "Scalify: scale propagation for efficient low-precision
    LLM training" (2024), algorithm 6.
    """

    def __init__(self, units, *args, recipe: Any = "float8", **kwargs):
        super().__init__(units, *args, recipe=recipe, **kwargs)

    def product(self, x):
        return EinsumProduct(parse(_equation(len(x.shape))))

    def adapt(self, x, a, b):
        return ops.matmul(ops.matmul(x, a), b)


def _equation(rank: int) -> str:
    """ "ABk,kn->ABn" with as many leading labels as x has leading dimensions."""
    leading = string.ascii_uppercase[: rank - 1]
    return f"{leading}k,kn->{leading}n"
