"""Models to convert, and what their conversion must keep."""

import keras
import numpy as np
from keras import layers

from tests.helpers import to_numpy

SEQUENCE = (6, 16)  # what the models of a sequence take, without the batch


def blocks():
    """Attention, a wrapper and a nested model, then a projection to the output."""
    x = inputs = keras.Input(SEQUENCE)
    x = layers.MultiHeadAttention(2, 8, name="attention")(x, x)
    x = layers.TimeDistributed(layers.Dense(16, name="each"), name="wrapper")(x)
    mlp = [keras.Input(SEQUENCE), layers.Dense(32, "gelu", name="wide")]
    mlp += [layers.Dense(16, name="narrow")]
    x = keras.Sequential(mlp, name="mlp")(x)
    return keras.Model(inputs, layers.Dense(4, name="logits")(x))


INSIDE_BLOCKS = [
    *(f"attention/{name}" for name in ("query", "key", "value", "attention_output")),
    "wrapper/each",
    "mlp/wide",
    "mlp/narrow",
]


@keras.saving.register_keras_serializable("keras_scalify_tests")
class Subclassed(keras.Model):
    """A model whose layers lie in a list and in attributes."""

    def __init__(self, depth=2, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        self.inner = [layers.Dense(16, "relu") for _ in range(depth)]
        self.attention = layers.MultiHeadAttention(2, 8)
        self.projection = layers.Dense(3)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return self.projection(self.attention(x, x))

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


def mlp(units=(16, 16, 4), inputs=16, **kwargs):
    """Dense layers, the last of which is the projection to the output."""
    inner = [layers.Dense(n, "relu", **kwargs) for n in units[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *inner, layers.Dense(units[-1])])


def predict(model, x):
    """What a model predicts, as one flat array."""
    y = model.predict(x, verbose=0)
    return np.concatenate([np.ravel(part) for part in keras.tree.flatten(y)])


def state(model):
    """All that a conversion may change in a layer, by position."""
    every = model._flatten_layers()
    return [(type(x), sorted(vars(x)), [v.path for v in x.variables]) for x in every]


def values(model):
    """The values of all variables."""
    return [to_numpy(v) for v in model.variables]
