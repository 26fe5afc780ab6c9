"""Rebuilding a graph of layers so that plain tensors travel through it."""

from collections.abc import Callable

import keras

from keras_scalify.conversion.tree import is_container, walk
from keras_scalify.layers import Carry, Scale, Unscale
from keras_scalify.layers.keras_private import forget_calls, uncompiled
from keras_scalify.scaled_tensor import is_scaled

EDGES = Scale, Unscale


def carries_scales(model) -> bool:
    """Whether a model holds layers whose results are ScaledTensors, or were."""
    return any(isinstance(layer, Scale | Unscale | Carry) for _, layer in walk(model))


def unpropagated(model, undo: list[Callable[[], None]]):
    """The inverse of `propagated`: the same layers without Scale, Unscale and Carry.

    Raises:
        ValueError: a layer that makes its sublayers itself holds one of the three.
    """
    if not carries_scales(model):
        return model
    if not is_container(model):
        raise ValueError(
            f"`model` must not hold Scale, Unscale or Carry in its own code. Received: "
            f"model={model.name}, a {type(model).__name__}."
        )
    rebuild = _sequential if isinstance(model, keras.Sequential) else _functional
    return rebuild(model, undo)


def _stock(layer, undo):
    if is_container(layer):
        return unpropagated(layer, undo)
    layer = layer.layer if isinstance(layer, Carry) else layer
    undo.append(forget_calls(layer))
    return layer


def _sequential(model, undo):
    layers = [_stock(x, undo) for x in model.layers if not isinstance(x, EDGES)]
    old = model.inputs[0]
    first = keras.Input(batch_shape=old.shape, dtype=old.dtype, name=old.name)
    return keras.Sequential(
        [first, *layers], name=model.name, trainable=model.trainable
    )


def _functional(model, undo):
    def call(operation, *args, **kwargs):
        was_scaled = any(is_scaled(each) for each in (*args, *kwargs.values()))
        args, kwargs = _values(args), _values(kwargs)
        y = args[0] if isinstance(operation, EDGES) else operation(*args, **kwargs)
        # Keras assigns as many tensors as there were: two for a ScaledTensor.
        first, *rest = y if type(y) is tuple and was_scaled else (y,)
        return first, keras.KerasTensor(()), *rest

    with uncompiled(model):
        return keras.models.clone_model(
            model, clone_function=lambda layer: _stock(layer, undo), call_function=call
        )


def _values(arguments):
    """The arguments with every ScaledTensor replaced by its value."""
    if is_scaled(arguments):
        return arguments[0]
    if isinstance(arguments, dict):
        return {name: _values(each) for name, each in arguments.items()}
    if isinstance(arguments, list) and arguments == [None, None]:
        return None  # the masks of a ScaledTensor
    if isinstance(arguments, list | tuple):
        return type(arguments)(_values(each) for each in arguments)
    return arguments
