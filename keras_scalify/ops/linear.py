"""matmul and einsum in a recipe's formats."""

import string
from typing import Any

from keras import ops

from keras_scalify.equations import parse
from keras_scalify.ops.products import EinsumProduct
from keras_scalify.ops.propagation import propagate, scaled_op
from keras_scalify.ops.quantized_product import propagated_product
from keras_scalify.recipes import get_recipe
from keras_scalify.scaled_tensor import ScaledTensor


def product_square(fans, x_square, w_square):
    """The mean square of a product: K x w, gradients N w h and M x h.

    Args:
        fans: (K, N, M), the number of terms that each entry of y, dx and dw sums.
        x_square, w_square: float32 scalars.
    """
    contracted, outputs, rows = fans
    return propagate(
        lambda x, w: contracted * x * w,
        lambda h, x, w: (outputs * w * h, rows * x * h),
        x_square,
        w_square,
    )


def _einsum(equation, x1, x2, recipe="float8"):
    get_recipe(recipe)
    return ops.einsum(equation, x1, x2)


def _matmul(x1, x2, recipe="float8"):
    get_recipe(recipe)
    return ops.matmul(x1, x2)


@scaled_op(
    "x1 x2", "K x w", "N w h, M x h", "K, N, M: terms of each sum", plain=_einsum
)
def einsum(equation, x1, x2, recipe: Any = "float8"):
    """keras.ops.einsum of two operands, quantized by a recipe; plain ones are not.

    The roles are x1 "input", x2 "kernel". Every label stands in two of the three terms.
    """
    recipe = get_recipe(recipe)
    product = EinsumProduct(parse(equation))
    if not recipe.is_identity:
        return propagated_product(product, x1, x2, recipe)
    fans = product.fans(x1.value, x2.value)
    value = ops.einsum(equation, x1.value, x2.value)
    return ScaledTensor(value, product_square(fans, x1.mean_square, x2.mean_square))


@scaled_op(
    "x1 x2", "K x w", "N w h, M x h", "K, N, M: terms of each sum", plain=_matmul
)
def matmul(x1, x2, recipe: Any = "float8"):
    """keras.ops.matmul, quantized by a recipe; plain operands are not.

    Shapes (..., M, K) and (K, N), or (..., M, K) and (..., K, N) with equal leading
    sizes.
    """
    recipe = get_recipe(recipe)
    if recipe.is_identity:
        fans = EinsumProduct(parse(_equation(x1, x2))).fans(x1.value, x2.value)
        square = product_square(fans, x1.mean_square, x2.mean_square)
        return ScaledTensor(ops.matmul(x1.value, x2.value), square)
    return einsum(_equation(x1, x2), x1, x2, recipe)


def _equation(x1, x2):
    ranks = len(x1.shape), len(x2.shape)
    if ranks[0] < 2 or ranks[1] not in (2, ranks[0]):
        raise ValueError(
            "matmul has a rule for shapes (..., M, K) and (K, N) or (..., K, N). "
            "Received: "
            f"x1.shape={tuple(x1.shape)}, x2.shape={tuple(x2.shape)}"
        )
    leading = string.ascii_uppercase[: ranks[0] - 2]
    right = leading if ranks[1] > 2 else ""
    return f"{leading}mk,{right}kn->{leading}mn"
