"""Statistics of operands inside a training step, forward and backward.

A row of numbers describes an operand since a reading: `[window, onset, *STATISTICS]`.
`window` counts readings, and a row of an earlier window is void. `onset` is 2**24 less
the call in which an entry was first not finite, 0 for never. All others are measured
as STATISTICS has it, so that rows merge by their maximum.

Each call measures amax, headroom and whether every entry is finite: one pass. The rest
is measured in a call that is due, or has entries that are not finite.
"""

from collections.abc import Callable

from keras import ops

from keras_scalify import backend
from keras_scalify.formats import Format
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled
from keras_scalify.scaling import (
    FLOAT32_MAX,
    amax_to_scale,
    mean_square_to_scale,
    strict_amax,
)
from keras_scalify.statistics import STATISTICS, fill, measured

HEADER = 2
ROW_SIZE = HEADER + len(STATISTICS)
FIRST_ONSET = 2.0**24  # float32 counts so far
EVERY_CALL = "amax", "headroom_bits", "nonfinite_count"  # the others: when due


def row(x, scale, format: Format, clock):
    """The row of one operand in one call.

    Args:
        x: float tensor, any shape.
        scale: float32 scalar, the power of two it is divided by.
        format: a row of FORMATS.
        clock: float32 (3,): window, whether the call is due, calls since the reading.

    Returns:
        float32, (ROW_SIZE,), finite and not negative.
    """
    x = ops.stop_gradient(x)
    window, due, calls = clock[0], clock[1], clock[2]
    largest = strict_amax(x)
    is_bad = largest > FLOAT32_MAX
    amax = ops.where(is_bad, 0.0, largest)
    cheap = {"amax": amax, "headroom_bits": fill(amax, scale, format)}
    zero = ops.zeros_like(amax)
    light = [cheap.get(name, zero) for name in STATISTICS]
    onset = ops.where(is_bad, FIRST_ONSET - calls, 0.0)
    full = ops.cond(
        ops.logical_or(due > 0, is_bad),
        lambda: measured(x, scale, format),
        lambda: ops.zeros((len(STATISTICS),), "float32"),
    )
    header = ops.stack([window, onset])
    return ops.concatenate([header, ops.maximum(ops.stack(light), full)])


def merge(old, new):
    """The worst of two rows, or of each pair of rows; void ones do not count."""
    same = ops.equal(old[..., :1], new[..., :1])
    return ops.where(same, ops.maximum(old, new), new)


def observe_gradient(y, read: Callable, write: Callable | None, clock, scale, format):
    """y, whose gradient leaves its row behind when it comes back.

    Args:
        y: tensor or ScaledTensor, the result of a product.
        read: function to the row so far.
        write: function that stores a row. None where a variable cannot be assigned in
            a backward pass: the row is then the gradient of what `read` gives.
        clock: see `row`. Not a variable's own tensor, which may change.
        scale: float32 scalar, the gradient's scale, or 0 if it is measured. Of no
            meaning to a ScaledTensor, whose gradient brings its own.
        format: of the gradient.

    Returns:
        (y, channel): channel is None, or what the next call has to read for both rows
            to arrive.
    """
    scaled = is_scaled(y)
    tensors = tuple(y) if scaled else (y,)
    channel = () if write else (read(),)

    def forward(*args):
        outputs = args[: len(tensors) + len(channel)]
        return outputs if len(outputs) > 1 else outputs[0], args[len(tensors) :]

    def backward(residuals, cotangents, needed):
        *so_far, clock, scale = residuals
        g, h = cotangents[0], cotangents[1] if scaled else None
        found = row(g, _gradient_scale(g, h, scale, format), format, clock)
        zeros = ops.zeros_like(clock), ops.zeros_like(scale)
        if write:
            write(merge(read(), found))
            return (*cotangents, *zeros)
        # Of several calls in a step the last comes back first.
        found = merge(cotangents[-1], merge(so_far[0], found))
        return (*cotangents[:-1], found, *zeros)

    function = backend.custom_vjp(forward, backward)
    outputs = function(*tensors, *channel, clock, scale)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    y = ScaledTensor(*outputs[:2]) if scaled else outputs[0]
    return y, (outputs[-1] if channel else None)


def _gradient_scale(g, mean_square, scale, format: Format):
    """As the product's own backward pass has it."""
    if mean_square is not None:
        return mean_square_to_scale(mean_square, format)
    measured_scale = amax_to_scale(backend.amax(g), format)
    return ops.where(scale > 0, scale, measured_scale)
