"""Which layers project to a model's outputs."""

import keras

from keras_scalify.layers.keras_private import (
    output_operations,
    own_variables,
    source_operations,
    sublayers,
)


def heads(model) -> list:
    """The last layer with weights before each output of the model.

    In a graph of layers it is found from the output backwards, through layers without
    weights; in a subclassed model, whose order of calls is not known, it is the last
    layer with weights that the model got. A block of several layers, such as
    attention, is no projection to the output.
    """
    if getattr(model, "outputs", None):
        found = [_last(operation) for operation in output_operations(model)]
    elif isinstance(model, keras.Model):
        found = [_within(layer) for layer in _weighted(model)[-1:]]
    else:
        found = []
    return [layer for layers in found for layer in layers]


def _last(operation) -> list:
    """The last layers with weights up to the result of an operation."""
    while not getattr(operation, "weights", None):
        sources = source_operations(operation)
        if len(sources) != 1:
            return []
        operation = sources[0]
    return _within(operation)


def _within(layer) -> list:
    if isinstance(layer, keras.Model):
        return heads(layer)
    return [layer] if own_variables(layer) and not sublayers(layer) else []


def _weighted(model):
    return [layer for layer in sublayers(model) if layer.weights]
