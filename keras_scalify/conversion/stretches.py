"""The stretches of a graph of layers through which scales can travel."""

from collections.abc import Iterable

import keras

from keras_scalify import layers as scaled
from keras_scalify.conversion.holder import original
from keras_scalify.layers import Carry, Scale, Unscale
from keras_scalify.layers.carry import CARRIED
from keras_scalify.layers.keras_private import edges, is_given_mask
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import is_keras, keras_class
from keras_scalify.layers.scaled_attention import PROJECTIONS
from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.activate import has_rule

ATTENTIONS = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention

# The scaled class for each class of Keras, products or not.
COUNTERPARTS: dict[type, type] = {
    keras_class(cls): cls
    for cls in vars(scaled).values()
    if isinstance(cls, type) and issubclass(cls, ScaledLayer)
    if cls not in (Scale, Unscale, Carry, ScaledLayer)
}


def is_ruled(layer) -> bool:
    """Whether a layer, or the scaled one for it, takes and returns ScaledTensors."""
    if not has_rule(getattr(layer, "activation", None)):
        return False
    if isinstance(layer, ScaledLayer):
        return not isinstance(layer, Scale | Unscale | keras.layers.Embedding)
    cls = original(type(layer))
    if cls in ATTENTIONS:
        return all(isinstance(p, QuantizedKernel) for p in projections(layer))
    if cls in COUNTERPARTS:  # a product that is not scaled was left alone
        return not issubclass(COUNTERPARTS[cls], QuantizedKernel)
    return is_keras(cls) and cls.__name__ in CARRIED and not is_given_mask(layer)


def stretched(model) -> set[int]:
    """The ids of the layers that lie on stretches: connected layers with rules, one of
    which at least has a product."""
    return {id(layer) for stretch in stretches(model) for layer in stretch}


def stretches(model) -> list[list]:
    """The stretches of a Sequential or Functional model, in the order of its layers."""
    pairs = [(a, b) for a, b in edges(model) if is_ruled(a) and is_ruled(b)]
    ruled = [layer for layer in model.layers if is_ruled(layer)]
    return [group for group in _connected(ruled, pairs) if any(map(_multiplies, group))]


def _connected(layers, pairs) -> Iterable[list]:
    """The layers in groups, each connected by pairs, in order."""
    group_of = {id(layer): [layer] for layer in layers}
    for a, b in pairs:
        first, second = group_of[id(a)], group_of[id(b)]
        if first is not second:
            first.extend(second)
            group_of.update({id(layer): first for layer in second})
    order = {id(layer): i for i, layer in enumerate(layers)}
    groups = {id(group): group for group in group_of.values()}
    return [sorted(g, key=lambda layer: order[id(layer)]) for g in groups.values()]


def _multiplies(layer) -> bool:
    return isinstance(layer, QuantizedKernel) or bool(projections(layer))


def projections(layer) -> list:
    """The projections of Keras's attention layers; of other layers none."""
    if not isinstance(layer, ATTENTIONS):
        return []
    held = (getattr(layer, name, None) for name in PROJECTIONS)
    return [projection for projection in held if projection is not None]
