"""The backend boundary: the one place where jax, tensorflow and torch are named.

Each of jax.py, tensorflow.py and torch.py defines these names; only the active one is
imported.

| name | what it does |
|---|---|
| ASSIGNS_IN_BACKWARD | whether variables can be assigned in a backward pass |
| amax(x, axis) | largest finite magnitude, float32 |
| arrays | functions of keras.ops, as lean as the backend has them |
| attention_dtype(dtype) | what fused attention computes in where it lacks a dtype |
| can_assign(variable, value) | whether value may become the variable's, here and now |
| constant(function) | function, run when a program is traced and no part of it |
| custom_vjp(forward, backward) | a differentiable function with its own backward pass |
| dense(x) | the dense tensor of a gradient that may be sparse |
| einsum(equation, a, b, scales, dtype) | product of operands, times their scales |
| gradients(function, variables) | of a scalar, by Keras variables |
| indices(shape, like) | 0, 1, ... in the order of elements, int32 |
| is_native() | whether quantized products use real narrow arrays |
| mean_square(x) | mean(x**2), float32, positive and finite |
| quantize(x, scale, format) | the operand: x / scale, clipped and rounded |
| recomputed(function, tensors, apart) | its value; backward from its arguments |
| scalar(function, x, *arguments) | function of a scalar, as lean as can be |
| transpose(function, shape, cotangent) | the transpose of a linear function |
| update(function, variables, tensor, assign) | variables from their elements |
"""

import importlib

import keras

BACKENDS = ("jax", "tensorflow", "torch")

if keras.backend.backend() not in BACKENDS:
    raise ImportError(
        f"keras_scalify runs on the Keras backends {', '.join(BACKENDS)}. "
        f"The active one is {keras.backend.backend()!r}: set KERAS_BACKEND."
    )

# On JAX a backward pass is a function: what leaves it is a gradient.
ASSIGNS_IN_BACKWARD = keras.backend.backend() != "jax"

_active = importlib.import_module(f"{__name__}.{keras.backend.backend()}")

amax = _active.amax
arrays = _active.arrays
attention_dtype = _active.attention_dtype
can_assign = _active.can_assign
constant = _active.constant
custom_vjp = _active.custom_vjp
dense = _active.dense
einsum = _active.einsum
gradients = _active.gradients
indices = _active.indices
is_native = _active.is_native
mean_square = _active.mean_square
quantize = _active.quantize
recomputed = _active.recomputed
scalar = _active.scalar
transpose = _active.transpose
update = _active.update
