"""A small model around each scaled layer, and the same one around its Keras twin."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

import keras_scalify as ks
from tests.layers.layer_cases import normal

KINDS = ("keras", "plain", "propagated")


def self_attention(layer, x):
    return layer(x, x, use_causal_mask=True)


def with_itself(layer, x):
    return layer([x, x])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayerCase:
    """A scaled layer by the name of the Keras layer, without its prefix.

    Attributes:
        name: of the class in keras.layers.
        kwargs: of both constructors.
        shape: of the input, without the batch.
        apply: calls the layer on a symbolic tensor.
        multiplies: whether the constructor takes a recipe.
        label: what tells two cases of a class apart.
    """

    name: str
    kwargs: dict
    shape: tuple
    apply: Callable = lambda layer, x: layer(x)
    multiplies: bool = True
    label: str = ""

    def __str__(self):
        return f"{self.name}-{self.label}" if self.label else self.name

    def layer(self, kind, recipe="float32", **kwargs):
        """The layer, for one of KINDS."""
        if kind == "keras":
            return getattr(keras.layers, self.name)(**self.kwargs, **kwargs)
        settings = {"recipe": recipe} if self.multiplies else {}
        cls = getattr(ks.layers, f"Scaled{self.name}")
        return cls(**self.kwargs, **settings, **kwargs)

    def model(self, kind, recipe="float32", **kwargs):
        """A functional model of the layer alone, of fixed weights, none of them 0."""
        x = inputs = keras.Input(self.shape)
        if kind == "propagated":
            x = ks.layers.Scale(dtype=kwargs.get("dtype"))(x)
        y = self.apply(self.layer(kind, recipe, **kwargs), x)
        if kind == "propagated":
            y = ks.layers.Unscale(dtype=kwargs.get("dtype"))(y)
        model = keras.Model(inputs, y)
        for i, v in enumerate(model.trainable_variables):
            size = int(np.prod(v.shape[:-1])) if len(v.shape) > 1 else 10
            v.assign(normal(*v.shape, seed=i + 30, scale=size**-0.5))
        return model

    def data(self, batch=6):
        """An input and a gradient of the output."""
        model = self.model("keras")
        return (
            normal(batch, *self.shape, seed=1),
            normal(batch, *model.output_shape[1:], seed=2),
        )


def case(name, shape, label="", apply=LayerCase.apply, multiplies=True, **kwargs):
    return LayerCase(
        name=name,
        kwargs=kwargs,
        shape=shape,
        label=label,
        apply=apply,
        multiplies=multiplies,
    )


ATTENTION = {"apply": self_attention}
PRODUCTS = [
    case("Dense", (7, 12), units=5, activation="gelu"),
    case(
        "EinsumDense",
        (7, 12),
        equation="abc,cde->abde",
        output_shape=(7, 3, 4),
        bias_axes="de",
        activation="silu",
    ),
    case(
        "EinsumDense",
        (7, 3, 4),
        label="ellipsis",
        equation="...cd,cde->...e",
        output_shape=(5,),
    ),
    case("Conv1D", (11, 6), filters=5, kernel_size=3, activation="relu"),
    case(
        "Conv1D",
        (11, 6),
        label="causal",
        filters=5,
        kernel_size=3,
        padding="causal",
        dilation_rate=2,
    ),
    case("Conv2D", (9, 8, 6), filters=5, kernel_size=3, padding="same"),
    case("Conv2D", (9, 8, 6), label="strides", filters=5, kernel_size=3, strides=2),
    case("Conv2D", (9, 8, 6), label="groups", filters=4, kernel_size=(3, 2), groups=2),
    case("DepthwiseConv2D", (9, 8, 6), kernel_size=3, depth_multiplier=2),
    case("MultiHeadAttention", (7, 12), **ATTENTION, num_heads=3, key_dim=4),
    case(
        "GroupQueryAttention",
        (7, 12),
        **ATTENTION,
        head_dim=4,
        num_query_heads=4,
        num_key_value_heads=2,
    ),
]
OTHERS = [
    case("LayerNormalization", (7, 12), multiplies=False),
    case("RMSNormalization", (7, 12), multiplies=False),
    case("Activation", (7, 12), multiplies=False, activation="gelu"),
    case("Dropout", (7, 12), multiplies=False, rate=0.3, seed=1),
    case("Add", (7, 12), multiplies=False, apply=with_itself),
    case("Multiply", (7, 12), multiplies=False, apply=with_itself),
]
EVERY = PRODUCTS + OTHERS
