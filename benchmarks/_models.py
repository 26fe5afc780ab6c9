"""The models that the benchmarks compare, in variants.

| variant | what |
|---|---|
| dense | Keras's own layers, in the dtype policy |
| keras-float8 | Keras's own layers after `model.quantize("float8")` |
| a recipe | scaled layers, every scale measured |
| a recipe-propagated | scaled layers, scales travel with the tensors |
"""

import functools
import pathlib
import sys
import warnings

import _steps
import keras
import numpy as np

import keras_scalify as ks

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
import gpt  # noqa: E402  (found by the path above)

PROPAGATED = "-propagated"
WITH_KERNEL = ("Dense", "MultiHeadAttention")
OTHERS = ("Add", "LayerNormalization", "Multiply", "RMSNormalization")


def layers_of(variant: str, policy: str):
    """The constructors of this variant's layers, by Keras's name."""
    own = variant in ("dense", "keras-float8")
    given = {"dtype": policy} if own else {"dtype": policy, "recipe": recipe(variant)}
    found = {}
    for name in (*WITH_KERNEL, *OTHERS):
        cls = getattr(*(keras.layers, name) if own else (ks.layers, f"Scaled{name}"))
        arguments = given if name in WITH_KERNEL else {"dtype": policy}
        found[name] = functools.partial(cls, **arguments)
    return found


def recipe(variant: str) -> str:
    """The recipe that a variant is named after."""
    return variant.removesuffix(PROPAGATED)


def model(variant: str, policy: str, shape, body):
    """A functional model of `body(layers, x)`, entered and left by scales if those of
    the variant travel."""
    inputs = x = keras.Input(shape, dtype=policy.removeprefix("mixed_"))
    travels = variant.endswith(PROPAGATED)
    x = ks.layers.Scale(dtype=policy)(x) if travels else x
    y = body(layers_of(variant, policy), x)
    y = ks.layers.Unscale(dtype=policy)(y) if travels else y
    return quantized(keras.Model(inputs, y), variant)


def quantized(model, variant: str):
    """The model, in Keras's own float8 if that is the variant."""
    if variant == "keras-float8":
        with warnings.catch_warnings():  # of each layer without a kernel
            warnings.simplefilter("ignore")
            model.quantize("float8")
    return model


def gpt_model(variant: str, *arguments: str):
    """The model of examples/gpt.py, arguments as on its command line, and ids."""
    args = gpt.parser.parse_args(arguments)
    own, travels = variant in ("dense", "keras-float8"), variant.endswith(PROPAGATED)
    args.precision = variant
    gpt.PRECISIONS[variant] = "float32" if own else recipe(variant), travels, "float32"
    model = gpt.build(args)
    model = quantized(ks.unscalify(model), variant) if own else model
    ids = np.random.default_rng(0).integers(0, gpt.BYTES, (args.batch, args.context))
    return model, ids.astype("int32")


def gpt_step(model, ids, optimizer):
    """A training step of it; what it learns to predict does not matter."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _steps.keras_step(model, optimizer, loss, ids, ids)


def mlp(variant: str, policy: str, width: int, activation="gelu", depth: int = 2):
    """Layers of equal width, with an activation between them."""

    def body(layers, x):
        for _ in range(depth - 1):
            x = layers["Dense"](width, activation=activation)(x)
        return layers["Dense"](width)(x)

    return model(variant, policy, (width,), body)


def llama_block(variant: str, policy: str, width: int, heads: int, context: int):
    """RMS norms, causal attention and a gated MLP of 8/3 the width, without biases."""
    hidden = 128 * round(width * 8 / 3 / 128)

    def body(layers, x):
        dense = functools.partial(layers["Dense"], use_bias=False)
        y = layers["RMSNormalization"]()(x)
        attend = layers["MultiHeadAttention"](heads, width // heads, use_bias=False)
        x = layers["Add"]()([x, attend(y, y, use_causal_mask=True)])
        y = layers["RMSNormalization"]()(x)
        gated = [dense(hidden, activation="silu")(y), dense(hidden)(y)]
        return layers["Add"]()([x, dense(width)(layers["Multiply"]()(gated))])

    return model(variant, policy, (context, width), body)


def gpt_block(variant: str, policy: str, width: int, heads: int, context: int):
    """Layer norms, causal attention and a GELU MLP of 4 times the width."""

    def body(layers, x):
        y = layers["LayerNormalization"]()(x)
        attend = layers["MultiHeadAttention"](heads, width // heads)
        x = layers["Add"]()([x, attend(y, y, use_causal_mask=True)])
        y = layers["LayerNormalization"]()(x)
        y = layers["Dense"](4 * width, activation="gelu")(y)
        return layers["Add"]()([x, layers["Dense"](width)(y)])

    return model(variant, policy, (context, width), body)


def sized(name: str, variant: str, policy: str, scale: int = 1):
    """A model of a usual size by name, every size divided by scale, and the shape of
    its batch.

    | name | what |
    |---|---|
    | mlp | two layers of 4096, batch 8192 |
    | llama | 4096, 32 heads, 8 sequences of 1024 |
    | gpt | 1024, 16 heads, 8 sequences of 1024 |
    """
    width = (1024 if name == "gpt" else 4096) // scale
    if name == "mlp":
        return mlp(variant, policy, width), (8192 // scale, width)
    block, heads = {"llama": (llama_block, 32), "gpt": (gpt_block, 16)}[name]
    context = 1024 // scale
    return block(variant, policy, width, heads, context), (8, context, width)
