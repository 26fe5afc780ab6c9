"""The two halves that every rule is made of, and the table of all rules.

The value path is an ordinary Keras op with its own autodiff. The scale path is a
parallel network of float32 scalars. They touch where a tensor is measured, in a
quantized product, and nowhere else.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence

import keras

from keras_scalify import backend
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled
from keras_scalify.scaling import clip_mean_square


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of RULES.

    Attributes:
        forward: mean square of the result, in words or a formula of those of the
            operands.
        backward: mean square of each operand's gradient, h that of the result's.
        note: what the rule assumes, where it is not exact for independent Gaussians.
    """

    forward: str
    backward: str
    note: str = ""


RULES: dict[str, Rule] = {}


def _is_number(x) -> bool:
    return isinstance(x, (bool, int, float))


# What an operand beside scaled ones may be: (it is, in words).
KINDS: dict[str, tuple[Callable, str]] = {
    "tensor": (is_scaled, "a ScaledTensor"),
    "number": (lambda x: is_scaled(x) or _is_number(x), "a ScaledTensor or a number"),
    "list": (
        lambda x: isinstance(x, (list, tuple)) and not isinstance(x, ScaledTensor),
        "a list of ScaledTensors",
    ),
}


def scaled_op(
    operands: str,
    forward: str,
    backward: str,
    note: str = "",
    plain=None,
    kind: str = "tensor",
):
    """Make a function of ScaledTensors an op: named in RULES, type in, type out.

    Given plain operands the op is the one of the same name in keras.ops (or `plain`). A
    mix of plain and scaled operands raises a ValueError.

    Args:
        operands: names of the function's tensor arguments, separated by blanks.
        forward, backward, note: the row of RULES.
        plain: the op of plain operands. Default: that of keras.ops.
        kind: what each operand may be, a name in KINDS.
    """

    def decorate(function: Callable) -> Callable:
        name, (holds, allowed) = function.__name__, KINDS[kind]
        signature = inspect.signature(function)
        stock = plain or getattr(keras.ops, name)
        RULES[name] = Rule(forward=forward, backward=backward, note=note)

        @functools.wraps(function)
        def op(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            given = {n: bound.arguments.get(n) for n in operands.split()}
            if not all_scaled(name, given):
                return stock(*args, **kwargs)
            refuse_symbolic(name, given)
            for n, x in given.items():
                if not holds(x):
                    raise ValueError(
                        f"`{n}` of {name} must be {allowed}. Received: {n} of type "
                        f"{type(x).__name__}"
                    )
                bound.arguments[n] = as_scaled(x)
            return function(*bound.args, **bound.kwargs)

        return op

    return decorate


def all_scaled(name: str, operands: dict) -> bool:
    """Whether the operands are scaled (True) or plain (False).

    None and numbers that stand alone are neither.

    Raises:
        ValueError: some are scaled and some are not; says which.
    """
    kinds = {}
    for argument, x in operands.items():
        several = isinstance(x, (list, tuple)) and not is_scaled(x)
        for i, item in enumerate(x if several else [x]):
            if several or not (item is None or _is_number(item)):
                key = f"{argument}[{i}]" if several else argument
                kinds[key] = is_scaled(item)
    if any(kinds.values()) and not all(kinds.values()):
        scaled = [k for k, v in kinds.items() if v]
        plain = [k for k, v in kinds.items() if not v]
        raise ValueError(
            f"{name} takes tensors that are all scaled or all plain. Received: "
            f"{', '.join(scaled)} scaled, {', '.join(plain)} plain. Use ks.ops.scale "
            "or ks.ops.unscale on one side."
        )
    return any(kinds.values())


def refuse_symbolic(name: str, operands: dict) -> None:
    """Raise a ValueError if an operand is symbolic: an op is no node of a graph."""
    if any(map(_is_symbolic, operands.values())):
        raise ValueError(
            f"keras_scalify.ops.{name} does not take symbolic tensors. In a "
            "functional model use the layer of that name, or call the op inside the "
            "call of a layer of your own."
        )


def _is_symbolic(x) -> bool:
    nested = isinstance(x, (list, tuple))
    return any(map(_is_symbolic, x)) if nested else isinstance(x, keras.KerasTensor)


def as_scaled(x):
    """A pair as a ScaledTensor whose mean square is a tensor; also in a list."""
    if is_scaled(x):
        value, square = x
        is_tensor = keras.ops.is_tensor(square)
        return ScaledTensor(
            value, square if is_tensor else keras.ops.convert_to_tensor(square)
        )
    return [as_scaled(i) for i in x] if isinstance(x, (list, tuple)) else x


def propagate(forward: Callable, backward: Callable, *mean_squares):
    """A mean square by one formula, with gradients by another.

    Args:
        forward: function of the operands' mean squares to that of the result.
        backward: function of h and the operands' mean squares to a sequence of the mean
            squares of the operands' gradients.

    Returns:
        float32 scalar.
    """

    def push(*values):
        return clip_mean_square(forward(*values), backend.arrays), values

    def pull(values, cotangents, needed):
        gradients: Sequence = backward(cotangents[0], *values)
        return tuple(gradients)

    return backend.custom_vjp(push, pull)(*mean_squares)


def times(x, forward: float, backward: float | None = None):
    """`forward * x`, with gradient `backward * h` (default: the derivative)."""
    same = isinstance(backward, (int, float)) and backward == forward
    if backward is None or same:
        return x if forward == 1 else clip_mean_square(x * forward, backend.arrays)
    return propagate(lambda x: x * forward, lambda h, x: (h * backward,), x)
