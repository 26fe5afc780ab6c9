"""quantize, dequantize and both in a row, for a single tensor."""

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.formats import get_format
from keras_scalify.rounding import round_to_format
from keras_scalify.scaling import amax_to_scale


def quantize(x, format: str = "float8_e4m3fn", scale=None):
    """`clip(x / scale, -max, max)` rounded to a format, ties to even, and the scale.

    Args:
        x: float tensor, any shape.
        format: a name in FORMATS. Default "float8_e4m3fn".
        scale: float32 scalar, a power of two. Default: the smallest with `amax(x) /
            scale <= max`.

    Returns:
        (data, scale): data of x's shape in the format's dtype, scale a float32 scalar.
        NaN stays NaN, an infinity stays one or becomes NaN in a format without.

    Raises:
        ValueError: an unknown format.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> data, scale = ks.ops.quantize(np.array([1.0, 1000.0], "float32"))
    >>> float(scale)
    4.0
    """
    row = get_format(format)
    x = ops.cast(ops.convert_to_tensor(x), "float32")
    scale = amax_to_scale(backend.amax(x), row) if scale is None else scale
    scale = ops.convert_to_tensor(scale, dtype="float32")
    return ops.cast(round_to_format(x, scale, row), format), scale


def dequantize(data, scale, dtype: str = "float32"):
    """`data * scale`.

    Args:
        data: tensor in a narrow format, any shape.
        scale: float32 scalar.
        dtype: of the result. Default "float32".

    Returns:
        tensor of data's shape and `dtype`.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> data, scale = ks.ops.quantize(np.array([1.0, 1000.0], "float32"))
    >>> [float(v) for v in ks.ops.dequantize(data, scale)]
    [1.0, 1024.0]
    """
    return ops.cast(ops.cast(data, "float32") * scale, dtype)


def qdq(x, format: str = "float8_e4m3fn", scale=None):
    """`dequantize(quantize(x))`: what a matmul in this format sees of x. The gradient
    passes as is.

    Args:
        x: float tensor, any shape.
        format: a name in FORMATS. Default "float8_e4m3fn".
        scale: float32 scalar, a power of two. Default: the smallest with `amax(x) /
            scale <= max`.

    Returns:
        tensor of x's shape and dtype.

    Raises:
        ValueError: an unknown format.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> [float(v) for v in ks.ops.qdq(np.array([1.0, 1.03, 1000.0], "float32"))]
    [1.0, 1.0, 1024.0]
    """
    row = get_format(format)
    x = ops.convert_to_tensor(x)
    dtype = standardize_dtype(x.dtype)

    def forward(x):
        wide = ops.cast(x, "float32")
        s = amax_to_scale(backend.amax(x), row) if scale is None else scale
        return ops.cast(round_to_format(wide, s, row) * s, dtype), ()

    def backward(residuals, cotangents, needed):
        return cotangents

    return backend.custom_vjp(forward, backward)(x)
