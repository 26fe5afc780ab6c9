"""Layers that make their sublayers themselves, and how they remember the scaled ones.

Keras rebuilds such a layer (attention, a block of KerasHub, a subclassed model) from
the arguments of its constructor, with plain sublayers. A converted one therefore gets a
subclass of its class whose config is the original's and the list of scaled sublayers,
and which converts them again after it is rebuilt.
"""

import functools
from typing import Any

import keras

from keras_scalify import layers as scaled
from keras_scalify.conversion.tree import find, is_container, positions, walk
from keras_scalify.layers.adoption import adopt, settings_of
from keras_scalify.layers.registration import keras_class
from keras_scalify.layers.scaled_layer import ScaledLayer

NAME = ("keras_scalify", "Holder")


class Holder:
    """Mixin before the class of a layer that holds scaled layers.

    Config: {"layer": the layer as Keras serializes it, "scaled": a list of
    {"at": positions among sublayers, "class": its name, "settings": its arguments}}.
    """

    def get_config(self):
        own = type(self)
        self.__class__ = original(own)
        try:
            layer = keras.saving.serialize_keras_object(self)
        finally:
            self.__class__ = own
        layer.pop("compile_config", None)  # Keras keeps it beside this config
        return {"layer": layer, "scaled": scaled_within(self)}

    def __reduce__(self):
        """Pickled by a method of the original: a made class has no name to be found."""
        unpickle, arguments = super().__reduce__()
        return getattr(original(type(self)), unpickle.__name__), arguments

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The layer, converted: at once if it is built, or else when it is."""
        layer = keras.saving.deserialize_keras_object(config["layer"], custom_objects)
        after_build(layer, functools.partial(convert_again, layer, config["scaled"]))
        return layer


keras.saving.register_keras_serializable(*NAME)(Holder)


def original(cls: Any) -> type:
    """The class that a holder's class extends."""
    return cls.__mro__[2] if issubclass(cls, Holder) else cls


_made: dict[type, type] = {}


def holder_class(cls: type) -> type:
    """The Holder of a class. Its `__name__`, which weight files use, is the class's."""
    if cls not in _made:
        members = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        made = type(cls.__name__, (Holder, cls), members)
        _made[cls] = keras.saving.register_keras_serializable(*NAME)(made)
    return _made[cls]


def holders(model) -> list:
    """The layers of a model that must remember what they hold, and do not yet."""
    return [
        layer
        for layer in [model, *(layer for _, layer in walk(model))]
        if not isinstance(layer, Holder | ScaledLayer)
        and not is_container(layer)
        and any(isinstance(inner, ScaledLayer) for _, inner in walk(layer))
    ]


def scaled_within(layer) -> list[dict[str, Any]]:
    """Where a layer holds scaled ones, which, and with which arguments."""
    return [
        {"at": at, "class": keras_class(type(x)).__name__, "settings": settings_of(x)}
        for at, x in positions(layer)
        if isinstance(x, ScaledLayer)
    ]


def convert_again(layer, records: list[dict[str, Any]]) -> None:
    """Make scaled the sublayers that were so when the config was written.

    Raises:
        ValueError: the layer has another structure than the config speaks of.
    """
    for record in records:
        inner = find(layer, record["at"])
        if isinstance(inner, ScaledLayer):
            continue  # by a config of its own
        if type(inner).__name__ != record["class"]:
            raise ValueError(
                f"`scaled` of {layer.name} must name sublayers that it has: a "
                f"{record['class']} at {record['at']}. Found: {inner!r}"
            )
        adopt(inner, getattr(scaled, f"Scaled{record['class']}"), **record["settings"])
    for each in holders(layer):
        each.__class__ = holder_class(type(each))


def after_build(layer, action) -> None:
    """Do something with a layer once it is built: now, if it is."""
    if layer.built:
        action()
        return
    build = layer.build

    @functools.wraps(build)
    def build_then_act(*args, **kwargs):
        build(*args, **kwargs)
        layer.build = build
        action()

    layer.build = build_then_act
