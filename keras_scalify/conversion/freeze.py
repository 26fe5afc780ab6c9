"""freeze_scales: scales measured once, for inference."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import keras

from keras_scalify import backend
from keras_scalify.conversion.continuation import continued
from keras_scalify.conversion.convert import undone_on_failure
from keras_scalify.conversion.tree import walk
from keras_scalify.conversion.unpropagation import carries_scales
from keras_scalify.layers.adoption import restate
from keras_scalify.layers.check_model import check_model
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.scaling import amax_to_scale

FROZEN = {"input_scaling": "static", "kernel_scaling": "static"}


def freeze_scales(model, calibration_data):
    """Let the scales of inputs and kernels stay as these data need them, in place.

    `s = smallest power of two with amax / s <= max`, amax the largest absolute value
    over all of the data. Afterwards predictions measure nothing: larger inputs
    saturate. The gradient's scale stays as the recipe has it.

    Args:
        model: a model with scaled layers, of plain tensors.
        calibration_data: an iterable of batches, each of which the model is called on:
            an array, or a list or dict of them for a model of several inputs.

    Returns:
        The model.

    Raises:
        ValueError: no batches, no scaled layer, one that no finite value reached, or a
            model through which scales travel. The model is unchanged.

    Example:

    >>> import numpy as np, keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((8,)), ks.layers.ScaledDense(4)])
    >>> model = ks.freeze_scales(model, [np.full((2, 8), 3.0, "float32")])
    >>> float(model.layers[0].input_scale), model.layers[0].recipe.input_scaling
    (0.0078125, 'static')
    """
    check_model(model)
    layers, batches = _scaled(model), _iterator(calibration_data)
    with _observed(layers) as amax:
        for batch in batches:
            model(batch, training=False)
    for layer in layers:
        if id(layer) not in amax:
            raise ValueError(
                "`calibration_data` must hold batches with finite values for every "
                f"scaled layer. Received none for {layer.name}."
            )
    with undone_on_failure() as undo, continued(model):
        for layer in layers:
            undo.append(_freeze(layer, amax[id(layer)]))
    return model


def _iterator(data):
    try:
        return iter(data)
    except TypeError:
        raise ValueError(
            "`calibration_data` must be an iterable of batches. Received: "
            f"calibration_data={data!r}"
        ) from None


def _scaled(model) -> list:
    """The layers with scales to freeze."""
    if carries_scales(model):
        raise ValueError(
            "`model` must pass plain tensors: scales that travel are predicted, not "
            f"measured. Received: model={model.name}. Use unscalify, then scalify."
        )
    found = [x for _, x in [("", model), *walk(model)] if _has_scales(x)]
    if not found:
        raise ValueError(
            "`model` must have scaled layers with scales. Received: "
            f"model={model.name}, without any."
        )
    return found


def _has_scales(layer) -> bool:
    looks_up = isinstance(layer, keras.layers.Embedding)
    return (
        isinstance(layer, QuantizedKernel) and not looks_up and layer.scales is not None
    )


@contextlib.contextmanager
def _observed(layers) -> Iterator[dict[int, float]]:
    """Collects the largest amax of each layer's input by the layer's id."""
    largest: dict[int, float] = {}

    def observe(layer, measure):
        def operand_scale(role, tensor):
            if role == "input" and keras.ops.any(keras.ops.isfinite(tensor)):
                seen = float(keras.ops.convert_to_numpy(backend.amax(tensor)))
                largest[id(layer)] = max(seen, largest.get(id(layer), 0.0))
            return measure(role, tensor)

        return operand_scale

    for layer in layers:
        layer.scales.operand_scale = observe(layer, layer.scales.operand_scale)
    try:
        yield largest
    finally:
        for layer in layers:
            del layer.scales.operand_scale


def _freeze(layer, amax: float) -> Callable[[], None]:
    """Give a layer static scales. Returns what undoes it."""
    undo = restate(layer, dataclasses.replace(layer.recipe, **FROZEN))
    kernel = backend.amax(layer.wide_kernel())
    for role, value in (("input", amax), ("kernel", kernel)):
        value = keras.ops.convert_to_tensor(value, "float32")
        scale = amax_to_scale(value, layer.recipe.format(role))
        getattr(layer.scales, f"{role}_scale").assign(scale)
    return undo
