"""One forward and backward pass of a model, with every operand kept."""

import contextlib
import dataclasses
import itertools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_scalify import backend
from keras_scalify.layers.keras_private import flattened
from keras_scalify.layers.watched_kernel import (
    WatchedKernel,
    attach,
    detach,
    unique_path,
)
from keras_scalify.recipes import Recipe
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled

# Keras layers with a product, whose activation sees its result.
PRODUCTS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.DepthwiseConv2D,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
    """One operand of one layer.

    Attributes:
        layer: its path in the model.
        role: "input", "kernel" or "gradient".
        value: numpy array, of one call; the last of several.
        scale: float, the power of two it was divided by; None: not quantized.
        mean_square: float, what was propagated; None: nothing was.
        recipe: the layer's; None for a Keras layer.
    """

    layer: str
    role: str
    value: Any
    scale: float | None
    mean_square: float | None
    recipe: Recipe | None


_calls = itertools.count()


class Tap:
    """Sees a layer's operands in an eager pass. An observer like ScaleStatistics."""

    def __init__(self, recipe: Recipe | None):
        self.recipe = recipe
        self.seen: dict[str, tuple] = {}
        self.order = 0

    def watch(self, y, operands, training=None, gradient_scale=None, **shape):
        """y, seen now and, backward, its gradient."""
        self.order, scaled = next(_calls), is_scaled(y)
        tensors = tuple(y) if scaled else (y,)
        kept = [ops.stop_gradient(t) for pair in operands for t in pair]
        g_scale = [] if gradient_scale is None else [gradient_scale]

        def forward(*args):
            x, x_second, w, w_second = args[len(tensors) : len(tensors) + 4]
            self.seen["input"] = _numbers(x), _numbers(x_second), scaled
            self.seen["kernel"] = _numbers(w), _numbers(w_second), scaled
            outputs = args[: len(tensors)]
            return outputs if scaled else outputs[0], args[len(tensors) :]

        def backward(residuals, cotangents, needed):
            second = cotangents[1] if scaled else residuals[-1] if g_scale else None
            self.seen["gradient"] = _numbers(cotangents[0]), _numbers(second), scaled
            return (*cotangents, *(ops.zeros_like(r) for r in residuals))

        y = backend.custom_vjp(forward, backward)(*tensors, *kept, *g_scale)
        return ScaledTensor(*y) if scaled else y


def _numbers(x):
    return None if x is None else np.asarray(ops.convert_to_numpy(x), "float32")


def capture(model, inputs, loss) -> list[Captured]:
    """The operands of every product of a model, in the order of the calls.

    Args:
        model: a built model. Its variables stay as they are.
        inputs: of the model.
        loss: function of its outputs to a scalar.
    """
    taps: dict[str, Tap] = {}
    with contextlib.ExitStack() as stack:
        for layer in flattened(model):
            if layer.built and isinstance(layer, PRODUCTS):
                path = unique_path(layer, model, taps)
                taps[path] = stack.enter_context(_tapped(layer))
        if variables := model.trainable_variables:
            backend.gradients(lambda: loss(model(inputs, training=False)), variables)
        else:
            model(inputs, training=False)
    return [
        _captured(layer, role, tap)
        for layer, tap in sorted(taps.items(), key=lambda row: row[1].order)
        for role in tap.seen
    ]


def _captured(layer: str, role: str, tap: Tap) -> Captured:
    value, second, scaled = tap.seen[role]
    return Captured(
        layer=layer,
        role=role,
        value=value,
        scale=None if second is None or scaled else float(second),
        mean_square=float(second) if scaled else None,
        recipe=tap.recipe,
    )


def _tapped(layer):
    quantizes = isinstance(layer, WatchedKernel) and layer.scales is not None
    return _observed(layer) if quantizes else _wrapped(layer)


@contextlib.contextmanager
def _observed(layer):
    """A scaled layer with a Tap for its observer."""
    before, tap = layer.statistics, Tap(layer.recipe)
    attach(layer, tap)
    try:
        yield tap
    finally:
        detach(layer)
        if before is not None:
            attach(layer, before)


@contextlib.contextmanager
def _wrapped(layer):
    """A Keras layer whose call and activation tell a Tap."""
    tap, call, activation = Tap(None), layer.call, layer.activation
    one, inputs = ops.ones((), "float32"), []

    def watched_call(*args, **kwargs):
        inputs.append(args[0])
        return call(*args, **kwargs)

    def watched_activation(y):
        x, kernel = inputs[-1], ops.convert_to_tensor(layer.kernel)
        if not (is_scaled(x) or is_scaled(y)):
            y = tap.watch(y, ((x, one), (kernel, one)))
        return y if activation is None else activation(y)

    layer.call, layer.activation = watched_call, watched_activation
    try:
        yield tap
    finally:
        del layer.call
        layer.activation = activation
