"""A layer's output and gradients as numpy arrays, on whichever backend runs."""

import importlib
import weakref

import keras
import numpy as np

from keras_scalify import config
from tests.helpers import to_numpy

BACKEND = keras.backend.backend()

_COMPILED = weakref.WeakKeyDictionary()  # layer: its compiled programs


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
    program = _program(layer, compiled, training)
    y, dx, dws = _CALLS[BACKEND](program, layer, x, g)
    for variable, value in zip(layer.non_trainable_variables, state, strict=True):
        variable.assign(value)
    return to_numpy(y), to_numpy(dx), [None if d is None else to_numpy(d) for d in dws]


def pull_back_program(layer, training=False):
    """JAX only: the function that `pull_back` runs, of (trainable, fixed, x, g)."""
    jax = importlib.import_module("jax")

    def program(trainable, fixed, x, g):
        def run(trainable, x):
            return layer.stateless_call(trainable, fixed, x, training=training)[0]

        y, pull = jax.vjp(run, trainable, x)
        return y, *pull(g.astype(y.dtype))

    return program


def _program(layer, compiled, training):
    """The program of a layer, compiled once for each setting that it depends on."""
    if not compiled:
        return _MAKERS[BACKEND](layer, training, compiled)
    variables = tuple(map(id, layer.trainable_variables))
    key = training, variables, config.matmul()
    programs = _COMPILED.setdefault(layer, {})
    if key not in programs:
        programs[key] = _MAKERS[BACKEND](layer, training, compiled)
    return programs[key]


def _make_jax(layer, training, compiled):
    jax = importlib.import_module("jax")
    program = pull_back_program(layer, training)
    return jax.jit(program) if compiled else program


def _call_jax(program, layer, x, g):
    variables = layer.trainable_variables, layer.non_trainable_variables
    values = ([v.value for v in group] for group in variables)
    x, g = (keras.ops.convert_to_tensor(v) for v in (x, g))
    y, dws, dx = program(*values, x, g)
    return y, dx, dws


def _make_tensorflow(layer, training, compiled):
    tf = importlib.import_module("tensorflow")
    variables = [v.value for v in layer.trainable_variables]

    def program(x, g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        sources = [x, *variables]
        dx, *dws = tape.gradient(y, sources, output_gradients=tf.cast(g, y.dtype))
        return y, dx, dws

    return tf.function(program, jit_compile=True) if compiled else program


def _call_tensorflow(program, layer, x, g):
    return program(*(keras.ops.convert_to_tensor(v) for v in (x, g)))


def _make_torch(layer, training, compiled):
    torch = importlib.import_module("torch")
    # Dynamo and AOTAutograd trace it; Inductor would need a C++ compiler, and a minute.
    run = torch.compile(layer, backend="aot_eager") if compiled else layer
    return lambda x: run(x, training=training)


def _call_torch(program, layer, x, g):
    torch = importlib.import_module("torch")
    x = keras.ops.convert_to_tensor(x).requires_grad_()
    y = program(x)
    variables = [v.value for v in layer.trainable_variables]
    g = torch.from_numpy(np.asarray(g)).to(y.dtype)
    dx, *dws = torch.autograd.grad(y, [x, *variables], g, allow_unused=True)
    return y.detach(), dx, dws


_MAKERS = {"jax": _make_jax, "tensorflow": _make_tensorflow, "torch": _make_torch}
_CALLS = {"jax": _call_jax, "tensorflow": _call_tensorflow, "torch": _call_torch}
