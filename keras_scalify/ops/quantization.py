"""quantize, dequantize and both in a row, for a single tensor."""

import math
import numbers

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.formats import get_format
from keras_scalify.ops.propagation import refuse_symbolic
from keras_scalify.rounding import round_to_format
from keras_scalify.scaled_tensor import is_scaled
from keras_scalify.scaling import SCALE_LIMITS, amax_to_scale


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
        ValueError: an unknown format, a number for a scale that is no power of two, a
            ScaledTensor or a symbolic tensor.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> data, scale = ks.ops.quantize(np.array([1.0, 1000.0], "float32"))
    >>> float(scale)
    4.0
    """
    row, x = get_format(format), ops.cast(_plain("quantize", x), "float32")
    _check_scale(scale)
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
    data, scale = (ops.cast(_plain("dequantize", t), "float32") for t in (data, scale))
    return ops.cast(data * scale, dtype)


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
        ValueError: an unknown format, a number for a scale that is no power of two, a
            ScaledTensor or a symbolic tensor.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> [float(v) for v in ks.ops.qdq(np.array([1.0, 1.03, 1000.0], "float32"))]
    [1.0, 1.0, 1024.0]
    """
    row, x = get_format(format), _plain("qdq", x)
    _check_scale(scale)
    dtype = standardize_dtype(x.dtype)

    def forward(x):
        wide = ops.cast(x, "float32")
        s = amax_to_scale(backend.amax(x), row) if scale is None else scale
        return ops.cast(round_to_format(wide, s, row) * s, dtype), ()

    def backward(residuals, cotangents, needed):
        return cotangents

    return backend.custom_vjp(forward, backward)(x)


def _plain(name: str, x):
    """x as a tensor."""
    if is_scaled(x):
        raise ValueError(
            f"keras_scalify.ops.{name} takes plain tensors. Received a ScaledTensor: "
            "use ks.ops.unscale."
        )
    refuse_symbolic(name, {"x": x})
    return ops.convert_to_tensor(x)


def _check_scale(scale) -> None:
    """Raise if a scale that is a number, whose value is known, is no power of two."""
    is_number, (low, high) = isinstance(scale, numbers.Real), SCALE_LIMITS
    if is_number and not (low <= scale <= high and math.frexp(scale)[0] == 0.5):
        raise ValueError(
            "`scale` must be a power of two, 2**-126 to 2**126. Received: "
            f"scale={scale!r}"
        )
