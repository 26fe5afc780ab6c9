"""Ops that move, copy or choose entries."""

import math

import numpy as np
from keras import ops

from keras_scalify.ops.propagation import propagate, scaled_op, times
from keras_scalify.scaled_tensor import ScaledTensor


def _keeping(name: str):
    """An op that moves entries without losing or adding any."""
    stock = getattr(ops, name)

    def op(x, *args, **kwargs):
        return ScaledTensor(stock(x.value, *args, **kwargs), x.mean_square)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"keras.ops.{name}, of a plain or scaled tensor."
    return scaled_op("x", "x", "h")(op)


_KEEPING = (
    "expand_dims",
    "flip",
    "moveaxis",
    "reshape",
    "roll",
    "squeeze",
    "swapaxes",
    "transpose",
)
KEEPING_OPS = {name: _keeping(name) for name in _KEEPING}


def entries(shape) -> float:
    """Entries of a shape, a dynamic size counted as 1: for ratios."""
    return float(math.prod(s if isinstance(s, int) and s else 1 for s in shape))


def resized(x, value, forward: float = 1.0, backward: float = 1.0) -> ScaledTensor:
    """A ScaledTensor of a value made of x: mean square and gradient's by factors."""
    return ScaledTensor(value, times(x.mean_square, forward, backward))


def broadcast_shape(*tensors) -> tuple:
    """The shape that tensors broadcast to; dynamic sizes are tensors."""
    shapes = [tuple(ops.shape(t)) for t in tensors]
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(
        next((size for size in sizes if not _is_one(size)), 1)
        for sizes in zip(*padded, strict=True)
    )


def _is_one(size) -> bool:
    return isinstance(size, int) and size == 1


def with_copies(x: ScaledTensor, shape) -> ScaledTensor:
    """x, about to be broadcast to a shape: its gradient sums over the copies."""
    own = tuple(ops.shape(x.value))
    own = (1,) * (len(shape) - len(own)) + own
    copied = [theirs for mine, theirs in zip(own, shape, strict=True) if _is_one(mine)]
    return ScaledTensor(x.value, times(x.mean_square, 1.0, size_product(copied)))


@scaled_op("x", "x", "copies h")
def broadcast_to(x, shape):
    """keras.ops.broadcast_to."""
    x = with_copies(x, tuple(shape))
    return ScaledTensor(ops.broadcast_to(x.value, shape), x.mean_square)


@scaled_op("x", "x", "copies h")
def repeat(x, repeats, axis=None):
    """keras.ops.repeat."""
    value = ops.repeat(x.value, repeats, axis=axis)
    if not isinstance(repeats, int):
        repeats = np.mean(ops.convert_to_numpy(repeats))
    return resized(x, value, 1.0, float(repeats))


@scaled_op("inputs", "x", "h outputs / inputs", "entries outside get a gradient of 0")
def slice(inputs, start_indices, shape):
    """keras.ops.slice."""
    value = ops.slice(inputs.value, start_indices, shape)
    return resized(inputs, value, 1.0, entries(value.shape) / entries(inputs.shape))


@scaled_op("x", "x each", "h / parts each", "the parts' gradients add up")
def split(x, indices_or_sections, axis=0):
    """keras.ops.split. Returns a list of ScaledTensors."""
    values = ops.split(x.value, indices_or_sections, axis=axis)
    whole = x.shape[axis]
    return [resized(x, v, 1.0, (v.shape[axis] or 1) / (whole or 1)) for v in values]


@scaled_op("x", "x inputs / outputs", "h", "the constant is 0 or of x's size")
def pad(x, pad_width, mode="constant", constant_values=None):
    """keras.ops.pad. A constant that is not 0 counts as one of x's own size."""
    settings = {} if constant_values is None else {"constant_values": constant_values}
    value = ops.pad(x.value, pad_width, mode=mode, **settings)
    filled = mode == "constant" and not constant_values
    ratio = entries(x.shape) / entries(value.shape) if filled else 1.0
    return resized(x, value, ratio, 1.0)


@scaled_op("xs", "mean by size", "h each", kind="list")
def concatenate(xs, axis=0):
    """keras.ops.concatenate."""
    sizes = [entries(x.shape) for x in xs]
    value = ops.concatenate([x.value for x in xs], axis=axis)
    return ScaledTensor(value, _weighted(xs, sizes))


@scaled_op("x", "mean", "h each", kind="list")
def stack(x, axis=0):
    """keras.ops.stack."""
    value = ops.stack([item.value for item in x], axis=axis)
    return ScaledTensor(value, _weighted(x, [1.0] * len(x)))


def _weighted(xs, sizes):
    total = math.fsum(sizes)
    return propagate(
        lambda *squares: _dot(squares, [size / total for size in sizes]),
        lambda h, *squares: (h,) * len(squares),
        *(x.mean_square for x in xs),
    )


def _dot(squares, weights):
    terms = [s * w for s, w in zip(squares, weights, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@scaled_op("x", "x", "h indices / rows", "every entry is hit equally often")
def take(x, indices, axis=None):
    """keras.ops.take."""
    indices = ops.convert_to_tensor(indices)
    value = ops.take(x.value, indices, axis=axis)
    shape = x.shape if axis is None else (x.shape[axis],)
    hits = size_product(ops.shape(indices)) / entries(shape)
    return ScaledTensor(value, times(x.mean_square, 1.0, hits))


def size_product(shape):
    """The product of sizes: an int, or a float32 tensor if one is dynamic."""
    if all(isinstance(s, int) for s in shape):
        return math.prod(shape)
    return math.prod((ops.cast(s, "float32") for s in shape), start=1.0)
