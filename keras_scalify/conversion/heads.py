"""Which layers project to a model's outputs."""

import keras

from keras_scalify.layers.keras_private import (
    own_variables,
    source,
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
        found = [_last(output) for output in model.outputs]
    elif isinstance(model, keras.Model):
        found = [_within(layer) for layer in _weighted(model)[-1:]]
    else:
        found = []
    return [layer for layers in found for layer in layers]


def _last(tensor) -> list:
    """The last layers with weights up to a tensor of a graph."""
    operation, sources = source(tensor)
    while not getattr(operation, "weights", None):
        if len(sources) != 1:
            return []
        operation, sources = source(sources[0])
    return _within(operation)


def _within(layer) -> list:
    if isinstance(layer, keras.Model):
        return heads(layer)
    if isinstance(layer, keras.layers.Wrapper):  # such as TimeDistributed
        return _within(layer.layer)
    return [layer] if own_variables(layer) and not sublayers(layer) else []


def _weighted(model):
    return [layer for layer in sublayers(model) if layer.weights]
