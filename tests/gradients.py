"""A layer's output and gradients as numpy arrays, on whichever backend runs."""

import importlib

import keras
import numpy as np

from tests.helpers import to_numpy

BACKEND = keras.backend.backend()


def pull_back(layer, x, g, *, compiled=None, training=False):
    """`y = layer(x)` and the gradients of `sum(y * g)`.

    Args:
        layer: A built layer or model that takes and returns one tensor.
        x: Array, the input.
        g: Array of y's shape, the cotangent.
        compiled: Whether the backend's compiler runs it all as one program. None: where
            that is the quickest, on JAX.
        training: Passed to the layer. Its state is left as it was.

    Returns:
        y, dx and the list of gradients of `layer.trainable_variables`, None where the
        backend gives none, all in the dtype they were computed in.
    """
    compiled = BACKEND == "jax" if compiled is None else compiled
    state = [to_numpy(v) for v in layer.non_trainable_variables]
    y, dx, dws = _PULL_BACKS[BACKEND](layer, x, g, compiled, training)
    for variable, value in zip(layer.non_trainable_variables, state, strict=True):
        variable.assign(value)
    return to_numpy(y), to_numpy(dx), [None if d is None else to_numpy(d) for d in dws]


def pull_back_program(layer, training=False):
    """JAX only: the function that `pull_back` runs, of (variables, x, g), unjitted."""
    jax = importlib.import_module("jax")
    fixed = [v.value for v in layer.non_trainable_variables]

    def program(trainable, x, g):
        def run(trainable, x):
            return layer.stateless_call(trainable, fixed, x, training=training)[0]

        y, pull = jax.vjp(run, trainable, x)
        return y, *pull(g.astype(y.dtype))

    return program


def _jax(layer, x, g, compiled, training):
    jax = importlib.import_module("jax")
    program = pull_back_program(layer, training)
    program = jax.jit(program) if compiled else program
    trainable = [v.value for v in layer.trainable_variables]
    y, dws, dx = program(trainable, jax.numpy.asarray(x), jax.numpy.asarray(g))
    return y, dx, dws


def _tensorflow(layer, x, g, compiled, training):
    tf = importlib.import_module("tensorflow")
    variables = [v.value for v in layer.trainable_variables]

    def program(x, g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        sources = [x, *variables]
        dx, *dws = tape.gradient(y, sources, output_gradients=tf.cast(g, y.dtype))
        return y, dx, dws

    program = tf.function(program, jit_compile=True) if compiled else program
    return program(tf.convert_to_tensor(x), tf.convert_to_tensor(g))


def _torch(layer, x, g, compiled, training):
    torch = importlib.import_module("torch")
    x = keras.ops.convert_to_tensor(x).requires_grad_()
    program = layer
    if compiled:  # Dynamo and AOTAutograd trace it; Inductor would need a C++ compiler
        program = torch.compile(layer, backend="aot_eager")
    y = program(x, training=training)
    variables = [v.value for v in layer.trainable_variables]
    g = torch.from_numpy(np.asarray(g)).to(y.dtype)
    dx, *dws = torch.autograd.grad(y, [x, *variables], g, allow_unused=True)
    return y.detach(), dx, dws


_PULL_BACKS = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
