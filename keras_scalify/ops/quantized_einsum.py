"""The quantized product and its two gradients: where scales meet data."""

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.equations import parse
from keras_scalify.recipes import Recipe
from keras_scalify.scaling import amax_to_scale


def quantized_einsum(
    equation: str, x, w, x_scale, w_scale, g_scale, g_amax, recipe: Recipe
):
    """`y = einsum(equation, q(x), q(w))`, with `dx` and `dw` from q(g) and the same q(x), q(w).

    q(t) is t divided by its scale, clipped and rounded to its role's format, each operand once.
    The backward pass keeps q(x) and q(w) and nothing else.

    Args:
        equation: einsum equation of two operands, such as "bk,kn->bn".
        x: compute dtype. The dtype of y and dx.
        w: the widest copy there is; dw has its dtype.
        x_scale, w_scale: float32 scalars, powers of two.
        g_scale: float32 scalar: the scale of g, or 0 to measure it in the backward pass.
        g_amax: float32 scalar, whose value is ignored and whose gradient is amax(g), or None.
        recipe: the formats of the three roles.

    Returns:
        y in x's dtype.
    """
    dtypes = standardize_dtype(x.dtype), standardize_dtype(w.dtype)
    product = parse(equation)

    def forward(x, w, x_scale, w_scale, g_scale, *channel):
        qx = backend.quantize(x, x_scale, recipe.format("input"))
        qw = backend.quantize(w, w_scale, recipe.format("kernel"))
        y = backend.einsum(product, qx, qw, (x_scale, w_scale), dtypes[0])
        return y, (qx, qw, x_scale, w_scale, g_scale)

    def backward(residuals, cotangents, needed):
        qx, qw, x_scale, w_scale, g_scale = residuals
        qg, g_scale, amax = _gradient_operand(cotangents[0], g_scale, recipe)
        dx = dw = None
        if needed[0]:
            scales = g_scale, w_scale
            dx = backend.einsum(product.input_gradient, qg, qw, scales, dtypes[0])
        if needed[1]:
            scales = x_scale, g_scale
            dw = backend.einsum(product.kernel_gradient, qx, qg, scales, dtypes[1])
        zero = ops.zeros_like(x_scale)
        return (dx, dw, zero, zero, zero, *((amax,) if g_amax is not None else ()))

    channel = () if g_amax is None else (g_amax,)
    return backend.custom_vjp(forward, backward)(
        x, w, x_scale, w_scale, g_scale, *channel
    )


def _gradient_operand(g, g_scale, recipe: Recipe):
    """q(g), its scale and amax(g)."""
    row = recipe.format("gradient")
    if recipe.gradient_scaling == "static":
        return backend.quantize(g, g_scale, row), g_scale, ops.zeros_like(g_scale)
    amax = backend.amax(g)
    measured = amax_to_scale(amax, row)
    scale = ops.where(g_scale > 0, g_scale, measured)
    return backend.quantize(g, scale, row), scale, amax
