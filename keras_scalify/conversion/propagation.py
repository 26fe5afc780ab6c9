"""Rebuilding a graph of layers so that scales travel through it."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_scalify.conversion.holder import Holder, original
from keras_scalify.conversion.stretches import COUNTERPARTS, projections, stretched
from keras_scalify.conversion.tree import is_container
from keras_scalify.layers import Carry, Scale, Unscale
from keras_scalify.layers.adoption import adopt, release
from keras_scalify.layers.keras_private import forget_calls, uncompiled
from keras_scalify.layers.scaled_attention import GIVEN
from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.scaled_tensor import is_scaled

OPERANDS = "inputs", "query", "value", "key"  # what may be scaled among the arguments


def propagated(model, undo: list[Callable[[], None]]):
    """A model of the same layers, with Scale and Unscale at the edges of stretches.

    Args:
        model: a Sequential or Functional model whose layers with products are scaled.
        undo: gets what undoes each change of a layer.
    """
    if not is_container(model):
        raise ValueError(
            "`propagate=True` rebuilds a Sequential or a Functional model, and cannot "
            f"see how others call their layers. Received: model={model.name}, a "
            f"{type(model).__name__}."
        )
    inside = stretched(model)
    rebuild = _sequential if isinstance(model, keras.Sequential) else _functional
    return rebuild(model, partial(_ready, inside=inside, undo=undo), inside)


def _ready(layer, inside, undo):
    """The layer as it stands in the new graph: able to take ScaledTensors."""
    if is_container(layer):
        return propagated(layer, undo)
    undo.append(forget_calls(layer))
    if id(layer) not in inside or isinstance(layer, ScaledLayer):
        return layer
    if isinstance(layer, Holder):
        undo.append(partial(setattr, layer, "__class__", type(layer)))
        layer.__class__ = original(type(layer))
    if type(layer) not in COUNTERPARTS:
        return Carry(layer, name=layer.name, dtype=layer.dtype_policy)
    inner = projections(layer)
    settings = {name: getattr(inner[0], name) for name in GIVEN} if inner else {}
    adopt(layer, COUNTERPARTS[type(layer)], **settings)
    undo.append(partial(release, layer))
    for projection in inner:
        projection.supports_masking = True  # see scaled_projection
    return layer


def _sequential(model, ready, inside):
    layers: list[Any] = []
    was_inside = False
    for layer in model.layers:
        is_inside = id(layer) in inside
        if is_inside != was_inside:
            layers.append(Scale() if is_inside else Unscale())
        layers.append(ready(layer))
        was_inside = is_inside
    edge = [Unscale()] if was_inside else []
    old = model.inputs[0]
    first = keras.Input(batch_shape=old.shape, dtype=old.dtype, name=old.name)
    return keras.Sequential(
        [first, *layers, *edge], name=model.name, trainable=model.trainable
    )


def _functional(model, ready, inside):
    calls = _Calls(ready, inside)
    with uncompiled(model):
        rebuilt = keras.models.clone_model(
            model, clone_function=calls.clone, call_function=calls.call
        )
    _check_order(model, rebuilt)
    return rebuilt


def _check_order(model, rebuilt):
    """Warn if files of weights, which number the layers, would be read crosswise."""
    before, after = ([x.name for x in m.layers if x.weights] for m in (model, rebuilt))
    if before != after:
        warnings.warn(
            f"Keras orders the layers of {model.name} otherwise with Scale and Unscale "
            "among them: files of its weights are read by models with propagate=True "
            "alone. Save after `unscalify` for others.",
            stacklevel=2,
        )


class _Calls:
    """How each layer of a graph is called on its new inputs.

    Every result of a layer inside a stretch has two forms: the plain tensor, which
    Keras hands to whoever takes it, and the scaled one, which a layer inside looks up.
    A form that nobody takes is no part of the new graph.
    """

    def __init__(self, ready, inside):
        self.ready, self.inside = ready, set(inside)
        self.scaled: dict[int, tuple] = {}  # by id of the plain form: it, the scaled

    def clone(self, layer):
        made = self.ready(layer)
        if id(layer) in self.inside:
            self.inside.add(id(made))
        return made

    def call(self, operation, *args, **kwargs):
        if id(operation) not in self.inside:
            return operation(*args, **kwargs)
        args = keras.tree.map_structure(self._enter, args)
        operands = {k: v for k, v in kwargs.items() if k in OPERANDS}
        kwargs |= keras.tree.map_structure(self._enter, operands)
        return self._leave(operation(*args, **kwargs))

    def _leave(self, y):
        """The plain form; attention may also return its weights, which are plain."""
        if not is_scaled(y):
            return tuple(map(self._leave, y)) if isinstance(y, tuple) else y
        plain = Unscale()(y)
        self.scaled[id(plain)] = plain, y
        return plain

    def _enter(self, x):
        if not isinstance(x, keras.KerasTensor) or "float" not in x.dtype:
            return x
        if id(x) not in self.scaled:
            self.scaled[id(x)] = x, Scale()(x)
        return self.scaled[id(x)][1]
