"""What every function that takes a model asks of it."""

import keras


def check_model(model, built: bool = True) -> None:
    """Raise unless this is a model or layer.

    Args:
        model: what came as the argument `model`.
        built: whether its layers must exist.

    Raises:
        ValueError: says what came and what is allowed.
    """
    if not isinstance(model, keras.Layer):
        raise ValueError(
            f"`model` must be a Keras model or layer. Received: model={model!r}"
        )
    if built and not model.built:
        raise ValueError(
            "`model` must be built: give it an Input, or call it on data once. "
            f"Received: model={model.name}, which is not."
        )
