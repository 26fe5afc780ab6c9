"""The boundary on Torch."""

import functools

import torch

from keras_scalify import config
from keras_scalify.backend import torch_arrays as arrays
from keras_scalify.backend.torch_measures import amax, mean_square
from keras_scalify.backend.torch_parts import indices, update
from keras_scalify.equations import Equation
from keras_scalify.formats import Format
from keras_scalify.rounding import round_to_format

__all__ = [
    "amax",
    "arrays",
    "attention_dtype",
    "can_assign",
    "constant",
    "custom_vjp",
    "dense",
    "einsum",
    "gradients",
    "indices",
    "is_native",
    "mean_square",
    "quantize",
    "recomputed",
    "transpose",
    "update",
]


def is_native() -> bool:
    """Real float8 arrays: as set by config, by default on a GPU that has float8."""
    form = config.matmul()
    if form != "auto":
        return form == "native"
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def constant(function):
    """A function that torch.compile calls untraced: its result is constant."""

    @torch.compiler.assume_constant_result
    def marked(*args):
        return function(*args)

    return lambda *args: _numbers(marked(*args))


def _numbers(result):
    """Dynamo (2.13) can ask for the type of a sum, not of a constant."""
    if isinstance(result, tuple):
        return tuple([_numbers(r) for r in result])
    return result + 0.0


def custom_vjp(forward, backward):
    """A function with its own backward pass, of what is needed. See backend/jax.py."""
    return functools.partial(_CustomVjp.apply, forward, backward)


class _CustomVjp(torch.autograd.Function):
    # One for all: torch.compile traces no class statement, and each costs 60 us.
    @staticmethod
    def forward(ctx, forward, backward, *tensors):
        outputs, residuals = forward(*tensors)
        ctx.save_for_backward(*residuals)
        ctx.pull = backward
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *cotangents):
        needed = ctx.needs_input_grad[2:]
        return None, None, *ctx.pull(ctx.saved_tensors, cotangents, needed)


def recomputed(function, tensors, apart: bool):
    """function(*tensors). See backend/jax.py."""
    return function(*tensors)


def quantize(x, scale, format: Format):
    """x / scale on the format's grid: a real array of it if native, else float32."""
    x = x.float()
    if not is_native():
        eager = x.device.type == "cpu" and not torch.compiler.is_compiling()
        fast = eager and x.numel() and not format.is_identity
        return (_cast_and_back if fast else round_to_format)(x, scale, format)
    clipped = (x * (1.0 / scale)).clamp(-format.max, format.max)
    # Torch saturates an infinity in e4m3, which has none: it must stay visible.
    kept = torch.where(x.isfinite(), clipped, x if format.has_inf else float("nan"))
    return kept.to(getattr(torch, format.name))


def _cast_and_back(x, scale, format: Format):
    """round_to_format by Torch's own cast, in a third of the passes over memory."""
    scaled = (x * (1.0 / scale)).clamp_(-format.max, format.max)
    rounded = _widened(scaled.to(getattr(torch, format.name)))
    if all(extreme.isfinite() for extreme in torch.aminmax(x)):
        return rounded
    return torch.where(x.isfinite(), rounded, x if format.has_inf else float("nan"))


def _widened(narrow):
    """Any narrow float as float32; float8 through float16, whose bits it shares."""
    if narrow.dtype == torch.float8_e5m2:  # the upper byte of a float16
        half = narrow.view(torch.uint8).to(torch.int16).bitwise_left_shift_(8)
        return half.view(torch.float16).float()
    if narrow.dtype == torch.float8_e4m3fn:  # exponents 8 lower: the second bit is 0
        half = narrow.view(torch.int8).to(torch.int16).bitwise_left_shift_(7)
        return half.bitwise_and_(~(1 << 14)).view(torch.float16).float().mul_(2.0**8)
    return narrow.float()


def einsum(equation: Equation, a, b, scales, dtype):
    """The product of two quantized operands times both scales."""
    dtype = getattr(torch, dtype)
    if a.itemsize == b.itemsize == 1 and not equation.batch and a.numel() * b.numel():
        return _scaled_mm(equation, a, b, scales, dtype)
    y = torch.einsum(str(equation), a.float(), b.float())
    # One scale after the other: their product may leave the range where y does not.
    return (y * scales[0] * scales[1]).to(dtype)


def _scaled_mm(equation: Equation, a, b, scales, dtype):
    """The float8 library call: row- times column-major, sizes in multiples of 16."""
    rows, columns = _matrix(a, equation.x, equation), _matrix(b, equation.w, equation)
    wide = dtype if dtype == torch.bfloat16 else torch.float32
    y = torch._scaled_mm(_pad(rows), _pad(columns).t(), *scales, out_dtype=wide)
    sizes = dict(zip(equation.x + equation.w, a.shape + b.shape, strict=True))
    y = y[: len(rows), : len(columns)].reshape([sizes[c] for c in equation.product])
    return y.permute([equation.product.index(c) for c in equation.y]).to(dtype)


def _matrix(tensor, term: str, equation: Equation):
    """An operand as a matrix, free labels by contracted labels."""
    free = [c for c in equation.product if c in term]
    permuted = tensor.permute([term.index(c) for c in [*free, *equation.contracted]])
    return permuted.reshape(permuted.shape[: len(free)].numel(), -1)


def _pad(matrix):
    """Zeros up to multiples of 16, which add nothing to the product."""
    rows, columns = ((-size) % 16 for size in matrix.shape)
    codes = matrix.view(torch.uint8)  # padding has no float8 kernel; code 0 is zero
    padded = torch.nn.functional.pad(codes, (0, columns, 0, rows))
    return padded.contiguous().view(matrix.dtype)


def can_assign(variable, value) -> bool:
    """Always: Torch's variables are assigned in place."""
    return True


def gradients(function, variables):
    """The gradients of a scalar function without arguments by Keras variables."""
    values = [v.value for v in variables]
    return torch.autograd.grad(function(), values, allow_unused=True)


def transpose(function, shape, cotangent):
    """The transpose of a function linear in a float32 tensor of this shape."""
    with torch.enable_grad():
        zeros = torch.zeros(shape, device=cotangent.device, requires_grad=True)
        return torch.autograd.grad(function(zeros), zeros, cotangent.float())[0]


def dense(x):
    """x: gradients are dense."""
    return x


def attention_dtype(dtype: str) -> str:
    """Every dtype is its own."""
    return dtype
