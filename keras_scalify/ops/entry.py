"""Where a tensor enters and leaves the scale path, and is measured on the way."""

from keras import ops

from keras_scalify import backend
from keras_scalify.ops.propagation import RULES, Rule, refuse_symbolic, scaled_op
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


def _identity(x):
    return x


def scale(x):
    """A ScaledTensor of a tensor: its mean square, measured.

    Args:
        x: float tensor, any shape. A ScaledTensor is returned as it is.

    Returns:
        ScaledTensor. The gradient of its value is the gradient of x; that of its mean
        square is dropped.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> float(ks.ops.scale(np.full((4,), 3.0, "float32")).mean_square)
    9.0
    """
    if is_scaled(x):
        return ScaledTensor(*x)
    refuse_symbolic("scale", {"x": x})
    x = ops.convert_to_tensor(x)
    return ScaledTensor(x, backend.mean_square(ops.stop_gradient(x)))


def unscale(x):
    """The value of a ScaledTensor. Backward, the mean square of its gradient is
    measured.

    Args:
        x: ScaledTensor. A plain tensor is returned as it is.

    Returns:
        tensor.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.ones((2, 3), "float32"))
    >>> tuple(ks.ops.unscale(x).shape)
    (2, 3)
    """
    if not is_scaled(x):
        return x
    refuse_symbolic("unscale", {"x": x})
    return backend.custom_vjp(
        lambda value, square: (value, ()),
        lambda _, cotangents, needed: (
            cotangents[0],
            backend.mean_square(cotangents[0]),
        ),
    )(*x)


RULES["scale"] = Rule(
    forward="measured", backward="dropped", note="enters: x is a plain tensor"
)
RULES["unscale"] = Rule(
    forward="none", backward="measured", note="leaves: y is a plain tensor"
)


@scaled_op("x", "measured", "measured", plain=_identity)
def rescale(x):
    """Measure the mean square again, of the tensor and, backward, of its gradient."""
    return scale(unscale(x))


@scaled_op("x", "x", "measured", "Scalify's dynamic_rescale_l2_grad", plain=_identity)
def rescale_gradient(x):
    """Pass the tensor; measure the mean square of its gradient."""
    value, square = backend.custom_vjp(
        lambda value, square: ((value, square), ()),
        lambda _, cotangents, needed: (
            cotangents[0],
            backend.mean_square(cotangents[0]),
        ),
    )(*x)
    return ScaledTensor(value, square)
