"""The quantized product and its two gradients: where scales meet data."""

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.backend import arrays
from keras_scalify.recipes import Recipe
from keras_scalify.scaled_tensor import ScaledTensor
from keras_scalify.scaling import (
    amax_to_scale,
    clip_mean_square,
    mean_square_to_scale,
)


def quantized_product(product, x, w, scales, g_scale, g_amax, recipe: Recipe):
    """`y = product(q(x), q(w))`, with `dx` and `dw` from q(g) and the same q(x), q(w).

    q(t) is t divided by its scale, clipped and rounded to its role's format, each
    operand once. The backward pass keeps q(x) and q(w) and nothing else.

    Args:
        product: EinsumProduct or ConvProduct.
        x: compute dtype. The dtype of y and dx.
        w: the widest copy there is; dw has its dtype.
        scales: of x and w, float32 scalars, powers of two.
        g_scale: float32 scalar: the scale of g, or 0 to measure it in the backward
            pass.
        g_amax: float32 scalar, whose value is ignored and whose gradient is amax(g), or
            None.
        recipe: the formats of the three roles.

    Returns:
        y in x's dtype.
    """
    gradients = _Gradients(product, x, w)

    def forward(x, w, x_scale, w_scale, g_scale, *channel):
        y, residuals = gradients.forward(x, w, (x_scale, w_scale), recipe)
        return y, (*residuals, g_scale)

    def backward(residuals, cotangents, needed):
        *operands, g_scale = residuals
        g_scale, amax = _measured_scale(cotangents[0], g_scale, recipe)
        dx, dw = gradients(operands, cotangents[0], g_scale, recipe, needed)
        zero = arrays.zeros_like(g_scale)
        channel = () if g_amax is None else (amax,)
        return (dx, dw, zero, zero, zero, *channel)

    channel = () if g_amax is None else (g_amax,)
    return backend.custom_vjp(forward, backward)(x, w, *scales, g_scale, *channel)


def propagated_product(product, x: ScaledTensor, w: ScaledTensor, recipe: Recipe):
    """The same, with every scale from a mean square that came along: nothing is
    measured.

    The mean square of y is K x w; those of dx and dw are N w h and M x h, with K, N, M
    the number of terms that each entry of y, dx, dw sums and h the mean square of g.

    Returns:
        ScaledTensor.
    """
    gradients = _Gradients(product, x.value, w.value)
    fans = product.fans(x.value, w.value)

    def forward(x, w, x_square, w_square):
        scales = (
            _propagated_scale(x_square, recipe, "input"),
            _propagated_scale(w_square, recipe, "kernel"),
        )
        y, residuals = gradients.forward(x, w, scales, recipe)
        square = clip_mean_square(fans[0] * x_square * w_square, arrays)
        return (y, square), (*residuals, x_square, w_square)

    def backward(residuals, cotangents, needed):
        *operands, x_square, w_square = residuals
        g, h = cotangents
        g_scale = _propagated_scale(h, recipe, "gradient")
        dx, dw = gradients(operands, g, g_scale, recipe, needed)
        _, outputs, rows = fans
        return dx, dw, outputs * w_square * h, rows * x_square * h

    y = backend.custom_vjp(forward, backward)(
        x.value, w.value, x.mean_square, w.mean_square
    )
    return ScaledTensor(*y)


class _Gradients:
    """Both directions of one product, given the scales."""

    def __init__(self, product, x, w):
        self.product = product
        self.dtypes = standardize_dtype(x.dtype), standardize_dtype(w.dtype)
        self.shapes = ops.shape(x), ops.shape(w)

    def forward(self, x, w, scales, recipe: Recipe):
        """y, and the quantized operands with their scales."""
        qx = backend.quantize(x, scales[0], recipe.format("input"))
        qw = backend.quantize(w, scales[1], recipe.format("kernel"))
        y = self.product.forward(qx, qw, scales, self.dtypes[0])
        return y, (qx, qw, *scales)

    def __call__(self, operands, g, g_scale, recipe: Recipe, needed):
        """dx and dw, None where not needed."""
        qx, qw, x_scale, w_scale = operands
        qg = backend.quantize(g, g_scale, recipe.format("gradient"))
        dx = dw = None
        if needed[0]:
            scales, dtype, shape = (g_scale, w_scale), self.dtypes[0], self.shapes[0]
            dx = self.product.input_gradient(qg, qw, scales, dtype, shape)
        if needed[1]:
            scales, dtype, shape = (x_scale, g_scale), self.dtypes[1], self.shapes[1]
            dw = self.product.kernel_gradient(qx, qg, scales, dtype, shape)
        return dx, dw


def _measured_scale(g, g_scale, recipe: Recipe):
    """The scale of g and its amax."""
    if recipe.gradient_scaling == "static":
        return g_scale, arrays.zeros_like(g_scale)
    amax = backend.amax(g)
    measured = backend.scalar(amax_to_scale, amax, recipe.format("gradient"))
    return arrays.where(g_scale > 0, g_scale, measured), amax


def _propagated_scale(square, recipe: Recipe, role: str):
    return backend.scalar(mean_square_to_scale, square, recipe.format(role))
