"""ScaledDense."""

import string
from typing import Any

import keras
from keras import ops

from keras_scalify.layers.quantized_kernel import QuantizedKernel, cast_inputs


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledDense(QuantizedKernel, keras.layers.Dense):
    """`y = activation(q(x) @ q(kernel) + bias)`, q quantizing to the recipe's formats.

    A keras.layers.Dense with its matmul, and both matmuls of its gradient, in low precision: each
    operand is divided by a power of two, clipped and rounded to its format, once a step. Products
    are summed in float32. Bias and activation are computed in the compute dtype.

    Args:
        units: positive integer, size N of the output.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8": e4m3 for x and
            kernel, e5m2 for the gradient, scales measured in the step. "float32" is
            keras.layers.Dense exactly.
        **kwargs: every other argument of keras.layers.Dense.

    Input: float tensor (..., K), any leading dimensions, also empty. Other dtypes are cast.
    Output: (..., N) in the compute dtype.

    Raises:
        ValueError: an unknown recipe; a dtype policy of Keras's own quantization; what Dense raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledDense(4, activation="relu")
    >>> layer(np.ones((2, 3), "float32")).shape == (2, 4)
    True

    Reference: Balança et al., "Scalify: scale propagation for efficient low-precision LLM training"
    (2024).
    """

    def __init__(self, units, *args, recipe: Any = "float8", **kwargs):
        super().__init__(units, *args, recipe=recipe, **kwargs)

    def call(self, inputs, training=None):
        if self.recipe.is_identity:
            return super().call(inputs, training=training)
        x = cast_inputs(inputs, self.compute_dtype)
        y = self.quantized_product(_equation(len(x.shape)), x, training)
        if self.lora_enabled:
            y = ops.add(y, self._lora_product(x))
        if self.bias is not None:
            y = ops.add(y, ops.cast(self.bias, y.dtype))
        return y if self.activation is None else self.activation(y)

    def _lora_product(self, x):
        """The adapters' part, in the compute dtype."""
        a, b = (
            ops.cast(v, x.dtype) for v in (self.lora_kernel_a, self.lora_kernel_b)
        )
        return ops.matmul(ops.matmul(x, a), b) * (self.lora_alpha / self.lora_rank)


def _equation(rank: int) -> str:
    """ "abk,kn->abn" with as many leading labels as x has leading dimensions."""
    leading = string.ascii_lowercase[: rank - 1].replace("k", "A").replace("n", "B")
    return f"{leading}k,kn->{leading}n"
