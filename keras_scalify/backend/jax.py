"""The boundary on JAX."""

import os

import jax
import jax.numpy as jnp
import keras
from jax import lax

from keras_scalify import config, scaling
from keras_scalify.backend import jax_measures
from keras_scalify.backend.parts import (
    arrays,
    constant,
    dense,
    indices,
    scalar,
    update,
)
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
    "scalar",
    "transpose",
    "update",
]

# In XLA_FLAGS: matmuls are library calls. XLA prefers Triton's on a GPU.
_LIBRARY_CALLS = "--xla_gpu_enable_triton_gemm=false"
# Traces whose values stay inside. JAX exports no classes for them (0.10): by name.
_PROGRAMS = "DynamicJaxprTrace", "BatchTrace"


def is_native() -> bool:
    """Real float8 arrays: as set by config, by default wherever JAX runs on no CPU."""
    form = config.matmul()
    return jax.default_backend() != "cpu" if form == "auto" else form == "native"


def amax(x, axis=None):
    """Largest finite magnitude along the axis, float32; 0 where there is none."""
    return (scaling.finite_amax if is_native() else jax_measures.amax)(x, axis)


def mean_square(x):
    """mean(x**2), a float32 scalar, positive and finite."""
    return scaling.mean_square(x) if is_native() else jax_measures.mean_square(x)


def custom_vjp(forward, backward):
    """A function of float tensors with its own backward pass.

    Args:
        forward: `(*tensors) -> (outputs, residuals)`; residuals are a tuple of tensors.
        backward: `(residuals, cotangents, needed) -> gradients`, a tuple each, a
            gradient a tensor argument; `needed`: those that are used (here all).
    """
    primal = jax.custom_vjp(lambda *tensors: forward(*tensors)[0])

    def pull(residuals, cotangents):
        cotangents = cotangents if isinstance(cotangents, tuple) else (cotangents,)
        return backward(residuals[0], cotangents, (True,) * residuals[1])

    def push(*tensors):
        outputs, residuals = forward(*tensors)
        return outputs, (residuals, len(tensors))

    primal.defvjp(push, pull)
    return primal


def recomputed(function, tensors, apart: bool):
    """function(*tensors), whose backward pass keeps the tensors alone, if native.

    It may close over others, which are kept too. With `apart`, each gradient is
    recomputed by itself, inside the kernel that uses it, and not written for several.
    """
    if not is_native():
        return function(*tensors)
    function, closed = jax.closure_convert(function, *tensors)
    primal = jax.custom_vjp(function)

    def push(*tensors):
        # XLA (jaxlib 0.10.2) cannot build a float8 call with a GELU that keeps both.
        tensors = lax.optimization_barrier(tensors)
        return function(*tensors), tensors

    def gradients(tensors, g, copies=0):
        # Equal barriers would be merged into one.
        kept, *gs = lax.optimization_barrier((tensors, g, *[g] * copies))
        return jax.vjp(function, *kept)[1](gs[0])

    def pull(tensors, g):
        if not apart:
            return gradients(tensors, g)
        return tuple(gradients(tensors, g, i)[i] for i in range(len(tensors)))

    primal.defvjp(push, pull)
    return primal(*tensors, *closed)


def quantize(x, scale, format: Format):
    """x / scale on the format's grid: a real array of it if native, else float32."""
    x = jnp.asarray(x, "float32")
    if not is_native():
        return round_to_format(x, scale, format)
    # An infinity must stay visible. A bound that depends on x, rather than a choice
    # after it, lets XLA transpose the narrow result and not the wide x.
    limit = jnp.where(jnp.abs(x) == jnp.inf, jnp.inf, format.max)
    return jnp.clip(x * (1.0 / scale), -limit, limit).astype(format.name)


def einsum(equation: Equation, a, b, scales, dtype):
    """The product of two quantized operands times both scales, summed in float32."""
    float8 = a.dtype.itemsize == b.dtype.itemsize == 1
    if float8 and _LIBRARY_CALLS in os.environ.get("XLA_FLAGS", ""):
        y = _dequantized_product(equation, a, b, scales, dtype)
    else:
        if not (float8 or a.dtype == b.dtype):
            a, b = a.astype("float32"), b.astype("float32")
        wide = "bfloat16" if dtype == "bfloat16" and is_native() else "float32"
        y = _dot(equation, a, b, wide)
        # One scale after the other: their product may leave the range where y does not.
        y = (y * scales[0].astype(wide) * scales[1].astype(wide)).astype(dtype)
    return jnp.transpose(y, [equation.product.index(c) for c in equation.y])


def _dequantized_product(equation: Equation, a, b, scales, dtype):
    """Dequantize, then dot: one float8 library call, which scales and casts too.

    Each is a pass of its own after a dot of bare float8. (Triton would use bfloat16.)
    """
    # Both scales on one side: XLA merges small dots of one operand, as attention's
    # projections are, and what it merged would have no single scale.
    scale = jnp.clip(scales[0] * scales[1], *scaling.SCALE_LIMITS)
    a, b = a.astype("bfloat16") * scale.astype("bfloat16"), b.astype("bfloat16")
    y = _dot(equation, a, b, "bfloat16" if dtype == "bfloat16" else "float32")
    return y.astype(dtype)


def _dot(equation: Equation, a, b, dtype):
    numbers = equation.dimension_numbers
    return lax.dot_general(a, b, numbers, preferred_element_type=dtype)


def can_assign(variable, value) -> bool:
    """Whether value lives in the same program as the variable.

    Inside a scan, a rematerialised or a mapped call it does not: assigning it there
    would leak a tracer. A tracer's trace and its parents tell (jax 0.4.36 and later).
    """
    return _program(value) is _program(variable.value)


def _program(value):
    """The program or the mapping that value belongs to, behind any differentiation."""
    trace = getattr(value, "_trace", None)
    while type(trace).__name__ not in _PROGRAMS and hasattr(trace, "parent_trace"):
        trace = trace.parent_trace
    return trace


def gradients(function, variables):
    """The gradients of a scalar function without arguments by Keras variables."""

    def run(values):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function()

    return jax.grad(run)([v.value for v in variables])


def transpose(function, shape, cotangent):
    """The transpose of a function linear in a float32 tensor of this shape."""
    pull = jax.linear_transpose(function, jax.ShapeDtypeStruct(shape, "float32"))
    return pull(cotangent.astype("float32"))[0]


def attention_dtype(dtype: str) -> str:
    """The CPU has no float16 attention (jax 0.10)."""
    cpu = jax.default_backend() == "cpu"
    return "float32" if cpu and dtype == "float16" else dtype
