"""The boundary on Torch."""

import functools

import torch

from keras_scalify.backend import torch_arrays as arrays
from keras_scalify.backend.parts import attention_dtype, dense, recomputed
from keras_scalify.backend.torch_measures import amax, mean_square
from keras_scalify.backend.torch_numbers import scalar
from keras_scalify.backend.torch_parts import indices, update
from keras_scalify.backend.torch_products import einsum
from keras_scalify.backend.torch_rounding import is_native, quantize

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
    "scalar",
    "transpose",
    "update",
]


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
