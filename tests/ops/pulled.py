"""Predicted and measured mean squares of an op and of its gradients, on any backend."""

import dataclasses
import importlib

import keras
import numpy as np
from keras import ops

import keras_scalify as ks
from keras_scalify.scaled_tensor import is_scaled
from tests.helpers import to_numpy

BACKEND = keras.backend.backend()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pulled:
    """What one function of ScaledTensors gives, forward and backward, as numpy.

    Attributes:
        values: of each output.
        gradients: of each input.
        forward: for each output its mean square, (predicted, measured).
        backward: for each input that of its gradient, (predicted, measured).
    """

    values: list
    gradients: list
    forward: list
    backward: list

    def ratios(self):
        """Predicted by measured, of every mean square."""
        return [p / m for p, m in (*self.forward, *self.backward)]


def pull(function, *inputs, compiled=False) -> Pulled:
    """Run a function of ScaledTensors and pull independent Gaussian cotangents back.

    The cotangent of each output's mean square is the mean square of its value's
    cotangent, as at the end of a longer chain.

    Args:
        function: of as many ScaledTensors as there are inputs, to one or several.
        *inputs: float32 arrays. Their mean squares are measured.
        compiled: whether the backend's compiler runs it all as one program.
    """
    squares = [np.float32(measured(x)) for x in inputs]
    rng, gs = np.random.default_rng(77), []

    def run(values, squares):
        ys = function(*map(ks.ScaledTensor, values, squares))
        ys = [ys] if is_scaled(ys) else list(ys)
        if not gs:
            data = [rng.standard_normal(tuple(y.shape)).astype("float32") for y in ys]
            gs.extend((g, measured(g)) for g in data)
        loss = 0.0
        for y, (g, h) in zip(ys, gs, strict=True):
            value = ops.cast(y.value, "float32")
            loss = loss + ops.sum(value * ops.convert_to_tensor(g)) + y.mean_square * h
        return loss, [tuple(y) for y in ys]

    grads = _RUNS[BACKEND](run, list(inputs), squares, compiled)
    ys, dxs, hs = keras.tree.map_structure(to_numpy, grads)
    return Pulled(
        values=[y for y, _ in ys],
        gradients=dxs,
        forward=[(float(square), measured(y)) for y, square in ys],
        backward=[(float(h), measured(dx)) for dx, h in zip(dxs, hs, strict=True)],
    )


def pull_all(cases, compiled=False) -> dict:
    """Run cases at all their sigmas in one program, which is compiled once.

    Returns:
        Pulled by (case, sigma).
    """
    runs = [(case, sigma) for case in cases for sigma in case.sigmas]
    given = [case.inputs(sigma) for case, sigma in runs]
    outputs = []

    def every(*xs):
        outputs.clear()
        xs, ys = iter(xs), []
        for (case, _), inputs in zip(runs, given, strict=True):
            y = case.function(*(next(xs) for _ in inputs))
            ys += [y] if is_scaled(y) else list(y)
            outputs.append(len(ys))
        return ys

    whole = pull(every, *(x for inputs in given for x in inputs), compiled=compiled)
    results, y, x = {}, 0, 0
    for run, end, inputs in zip(runs, outputs, given, strict=True):
        ys, xs = slice(y, end), slice(x, x + len(inputs))
        results[run] = Pulled(
            values=whole.values[ys],
            gradients=whole.gradients[xs],
            forward=whole.forward[ys],
            backward=whole.backward[xs],
        )
        y, x = ys.stop, xs.stop
    return results


def measured(x) -> float:
    """The mean square of an array, in float64."""
    return float(np.mean(np.square(np.asarray(x, "float64"))))


def _jax(run, values, squares, compiled):
    jax = importlib.import_module("jax")
    program = jax.grad(run, argnums=(0, 1), has_aux=True)
    program = jax.jit(program) if compiled else program
    tensors = jax.tree.map(jax.numpy.asarray, (values, squares))
    (dxs, hs), ys = program(*tensors)
    return ys, dxs, hs


def _tensorflow(run, values, squares, compiled):
    tf = importlib.import_module("tensorflow")

    def program(values, squares):
        with tf.GradientTape() as tape:
            tape.watch([values, squares])
            loss, ys = run(values, squares)
        zero = tf.UnconnectedGradients.ZERO
        dxs, hs = tape.gradient(loss, [values, squares], unconnected_gradients=zero)
        return ys, [tf.convert_to_tensor(dx) for dx in dxs], hs

    program = tf.function(program, jit_compile=True) if compiled else program
    return program(*([tf.constant(t) for t in ts] for ts in (values, squares)))


def _torch(run, values, squares, compiled):
    torch = importlib.import_module("torch")
    values, squares = (
        [torch.tensor(t, requires_grad=True) for t in ts] for ts in (values, squares)
    )
    program = run
    if compiled:
        run(values, squares)  # which draws the cotangents: Dynamo does not trace that
        torch.compiler.reset()
        # Dynamo and AOTAutograd trace it; Inductor would need a C++ compiler.
        program = torch.compile(run, backend="aot_eager")
    loss, ys = program(values, squares)
    sources = [*values, *squares]
    given = torch.autograd.grad(loss, sources, allow_unused=True)
    given = [
        torch.zeros_like(s) if g is None else g
        for s, g in zip(sources, given, strict=True)
    ]
    return [(y.detach(), s.detach()) for y, s in ys], *_halves(given)


def _halves(items):
    middle = len(items) // 2
    return items[:middle], items[middle:]


_RUNS = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
