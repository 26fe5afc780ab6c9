"""How Keras's files and registries name the scaled layers."""

import keras


def is_keras(cls: type) -> bool:
    """Whether a class is one of Keras's own."""
    return cls.__module__.startswith("keras.")


def keras_class(cls: type) -> type:
    """The class of Keras that a scaled class replaces."""
    return next(base for base in cls.__mro__ if is_keras(base))


def replaces_keras_layer(cls: type) -> type:
    """Register a scaled layer, and let files name it like the layer that it replaces.

    A weights file names a layer in a container after `__name__` of its class: with that
    of the Keras layer, files of plain and of scaled models read each other, and so do
    models that mix both. The registered name, `__qualname__` and the module's attribute
    stay.
    """
    cls = keras.saving.register_keras_serializable("keras_scalify", cls.__name__)(cls)
    cls.__name__ = keras_class(cls).__name__
    return cls
