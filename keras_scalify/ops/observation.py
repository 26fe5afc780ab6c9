"""Statistics of operands inside a training step, forward and backward.

A row of numbers describes an operand since a reading: `[window, onset, *STATISTICS]`.
`window` counts readings, and a row of an earlier window is void. `onset` is 2**24 less
the call in which an entry was first not finite, 0 for never. All others are measured
as STATISTICS has it, so that rows merge by their maximum.

Every call measures what costs next to nothing: amax and headroom where the scale is
measured anyway, and whether an entry is not finite, which the product's result and the
bias's gradient tell. The rest is measured in a call that is due, or that has such
entries.
"""

from collections.abc import Callable

from keras import ops

from keras_scalify import backend
from keras_scalify.equations import Equation
from keras_scalify.formats import Format
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled
from keras_scalify.scaling import amax_to_scale, mean_square_to_scale
from keras_scalify.statistics import STATISTICS, fill, measured

HEADER = 2
ROW_SIZE = HEADER + len(STATISTICS)
FIRST_ONSET = 2.0**24  # float32 counts so far
EVERY_CALL = "amax", "headroom_bits", "nonfinite_count"  # the others: when due
NONFINITE = list(STATISTICS).index("nonfinite_count")


def row(x, scale, format: Format, clock, suspect, amax=None):
    """The row of one operand in one call.

    Args:
        x: float tensor, any shape.
        scale: float32 scalar, the power of two it is divided by.
        format: a row of FORMATS.
        clock: float32 (3,): window, whether the call is due, calls since the reading.
        suspect: bool scalar, True at least where an entry is not finite.
        amax: float32 scalar, if it is known; else 0 unless the call is due.

    Returns:
        float32, (ROW_SIZE,), finite and not negative.
    """
    x = ops.stop_gradient(x)
    window, due, calls = clock[0], clock[1], clock[2]
    full = ops.cond(
        ops.logical_or(due > 0, suspect),
        lambda: measured(x, scale, format),
        lambda: ops.zeros((len(STATISTICS),), "float32"),
    )
    onset = ops.where(full[NONFINITE] > 0, FIRST_ONSET - calls, 0.0)
    if amax is not None:
        cheap = {"amax": amax, "headroom_bits": fill(amax, scale, format)}
        zero = ops.zeros_like(amax)
        known = ops.stack([cheap.get(name, zero) for name in STATISTICS])
        full = ops.maximum(known, full)
    return ops.concatenate([ops.stack([window, onset]), full])


def suspects(y, equation: Equation | None, operands):
    """Whether input and kernel may hold entries that are not finite: two bool scalars.

    Such an entry spoils every term of the product that it is in, so that one slice of
    the result along the other operand's free axes tells. Of a product that is no einsum
    the operands themselves are looked at.
    """
    if equation is None:
        return tuple(_has_nonfinite(ops.stop_gradient(x)) for x in operands)
    return tuple(
        _has_nonfinite(ops.stop_gradient(y)[_slice(equation.y, free)])
        for free in (equation.w_free, equation.x_free)
    )


def _has_nonfinite(x):
    return ops.logical_not(ops.all(ops.isfinite(x)))


def _slice(labels: str, cut):
    return tuple(slice(0, 1) if c in cut else slice(None) for c in labels)


def merge(old, new):
    """The worst of two rows, or of each pair of rows; void ones do not count."""
    same = ops.equal(old[..., :1], new[..., :1])
    return ops.where(same, ops.maximum(old, new), new)


def observe_gradient(
    y, read: Callable, write: Callable | None, clock, scale, format, bias_rank: int
):
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
        bias_rank: axes of the bias that is added to y; 0: none is.

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
        found = _gradient_row(g, h, scale, format, clock, bias_rank)
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


def _gradient_row(g, mean_square, scale, format: Format, clock, bias_rank: int):
    """The row of a gradient, with the scale that the product's own backward pass uses.

    Whether an entry is not finite the sum tells that is the bias's gradient.
    """
    axes = tuple(range(len(g.shape) - max(bias_rank, 1)))
    suspect = _has_nonfinite(ops.sum(g, axis=axes))
    if mean_square is not None:
        scale = mean_square_to_scale(mean_square, format)
        return row(g, scale, format, clock, suspect)
    amax = backend.amax(g)  # the product measures it too
    scale = ops.where(scale > 0, scale, amax_to_scale(amax, format))
    return row(g, scale, format, clock, suspect, amax)
