"""How Keras's files and registries name the scaled layers."""

import keras


def replaces_keras_layer(cls: type) -> type:
    """Register a scaled layer, and let files name it like the layer that it replaces.

    A weights file names a layer in a container after `__name__` of its class: with that
    of the Keras layer, files of plain and of scaled models read each other, and so do
    models that mix both. The registered name, `__qualname__` and the module's attribute
    stay.
    """
    cls = keras.saving.register_keras_serializable("keras_scalify", cls.__name__)(cls)
    cls.__name__ = next(
        base.__name__ for base in cls.__mro__ if base.__module__.startswith("keras.")
    )
    return cls
