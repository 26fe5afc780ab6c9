"""What most backends do alike, and updates as a whole, which compilers want."""

import math

from keras import ops
from keras import ops as arrays

__all__ = [
    "arrays",
    "attention_dtype",
    "constant",
    "dense",
    "indices",
    "recomputed",
    "scalar",
    "update",
]


def update(function, variables, tensor, assign):
    """Assign to variables what a function makes of their elements and a tensor's.

    Args:
        function: `(start, values, tensor) -> (new values, more)`, of elements `start`
            and following: as many as `tensor` has. `more` is another tensor, or None.
        variables: of as many elements as the tensor each.
        tensor: any shape.
        assign: function of a variable and its new value.

    Returns:
        more, of all elements.
    """
    values = [ops.convert_to_tensor(v) for v in variables]
    new, more = function(0, values, tensor)
    for variable, value in zip(variables, new, strict=True):
        assign(variable, value)
    return more


def constant(function):
    """function: what is not made of tensors is no part of a traced program."""
    return function


def recomputed(function, tensors, apart: bool):
    """function(*tensors). See backend/jax.py."""
    return function(*tensors)


def attention_dtype(dtype: str) -> str:
    """Every dtype is its own."""
    return dtype


def dense(x):
    """x: gradients are dense."""
    return x


def scalar(function, x, *arguments):
    """function(x, *arguments) of a float32 scalar; no gradient passes.

    Args:
        function: takes `ops` too, the functions it calls.
    """
    return function(x, *arguments)


def indices(shape, like):
    """0, 1, ... in the order of a tensor's elements, int32, where `like` is.

    As a sum over axes: the compiler splits it like the tensor, and a reshaped one would
    cost a division an element.
    """
    index = ops.zeros(shape, "int32")
    for axis, size in enumerate(shape):
        along = ops.arange(size, dtype="int32") * math.prod(shape[axis + 1 :])
        others = (1,) * (len(shape) - axis - 1)
        index = index + ops.reshape(along, (size, *others))
    return index
