"""Sums, products and choices of ScaledTensors and Python numbers."""

from keras import ops

from keras_scalify.ops.propagation import scaled_op
from keras_scalify.ops.shapes import broadcast_shape, with_copies
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled
from keras_scalify.scaling import clip_mean_square


def _value(x):
    return x.value if is_scaled(x) else x


def _square(x):
    """The mean square of an operand: a number's is its square."""
    return x.mean_square if is_scaled(x) else min(float(x) ** 2, 2.0**126)


@scaled_op("x1 x2", "a + b", "h, h", "a number c counts as c^2", kind="number")
def add(x1, x2):
    """x1 + x2, broadcast as keras.ops.add."""
    return _sum(ops.add, x1, x2)


@scaled_op("x1 x2", "a + b", "h, h", "a number c counts as c^2", kind="number")
def subtract(x1, x2):
    """x1 - x2, broadcast as keras.ops.subtract."""
    return _sum(ops.subtract, x1, x2)


def _sum(op, x1, x2):
    x1, x2 = _broadcast(x1, x2)
    square = _square(x1) + _square(x2)
    return ScaledTensor(op(_value(x1), _value(x2)), square)


@scaled_op("x1 x2", "a b", "h b, h a", "a number c counts as c^2", kind="number")
def multiply(x1, x2):
    """x1 * x2, broadcast as keras.ops.multiply."""
    x1, x2 = _broadcast(x1, x2)
    square = clip_mean_square(_square(x1) * _square(x2))
    return ScaledTensor(ops.multiply(_value(x1), _value(x2)), square)


def _broadcast(x1, x2):
    """Operands whose gradients count the copies that broadcasting makes of them."""
    if not (is_scaled(x1) and is_scaled(x2)):
        return x1, x2
    shape = broadcast_shape(x1.value, x2.value)
    return with_copies(x1, shape), with_copies(x2, shape)


def _divide(x1, x2):
    if is_scaled(x1) or is_scaled(x2):
        raise ValueError(
            "divide has a rule for a ScaledTensor by a Python number only. Received: "
            f"x1={type(x1).__name__}, x2={type(x2).__name__}. Use ks.ops.unscale first."
        )
    return ops.divide(x1, x2)


@scaled_op("x1", "a / c^2", "h / c^2", "by a number only", plain=_divide)
def divide(x1, x2):
    """x1 / c for a Python number c."""
    if not isinstance(x2, (int, float)):
        _divide(x1, x2)
    square = clip_mean_square(x1.mean_square / float(x2) ** 2)
    return ScaledTensor(ops.divide(x1.value, x2), square)


@scaled_op("x", "x", "h")
def negative(x):
    """-x."""
    return ScaledTensor(ops.negative(x.value), x.mean_square)


@scaled_op(
    "x1 x2",
    "(a + b) / 2",
    "h / 2, h / 2",
    "half from each; beside a number x counts alone, whatever the number: a, h",
    kind="number",
)
def where(condition, x1=None, x2=None):
    """x1 where the condition holds, else x2. A number, also -inf, spoils no scale."""
    value = ops.where(condition, _value(x1), _value(x2))
    shape = tuple(ops.shape(value))
    x1, x2 = (with_copies(x, shape) if is_scaled(x) else x for x in (x1, x2))
    if is_scaled(x1) and is_scaled(x2):
        return ScaledTensor(value, (x1.mean_square + x2.mean_square) / 2)
    return ScaledTensor(value, (x1 if is_scaled(x1) else x2).mean_square)
