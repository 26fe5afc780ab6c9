"""Models of scaled layers save, load, clone and resume."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import assert_same, to_numpy
from tests.layers.layer_cases import normal
from tests.layers.scaled_cases import EVERY

layers = ks.layers


def conv_net(recipe):
    """Convolutions, pooling and a residual branch, with scales from end to end."""
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Scale()(x)
    x = layers.ScaledConv2D(4, 3, padding="same", activation="relu", recipe=recipe)(x)
    y = layers.ScaledDepthwiseConv2D(3, padding="same", recipe=recipe)(x)
    x = layers.ScaledAdd()([x, layers.ScaledActivation("silu")(y)])
    x = layers.Carry(keras.layers.MaxPooling2D())(x)
    x = layers.ScaledDropout(0.0)(x)  # Keras saves no state of random numbers
    x = layers.Carry(keras.layers.Flatten())(x)
    x = layers.ScaledDense(5, recipe=recipe)(x)
    return keras.Model(inputs, layers.Unscale()(x))


def transformer(recipe):
    """Embedding, attention, normalization and a gated product."""
    ids = keras.Input((6,), dtype="int32")
    x = layers.ScaledEmbedding(11, 8, scaled=True, recipe=recipe)(ids)
    y = layers.ScaledRMSNormalization()(x)
    y = layers.ScaledGroupQueryAttention(4, 2, 1, recipe=recipe)(y, y)
    x = layers.ScaledAdd()([x, y])
    y = layers.ScaledLayerNormalization()(x)
    gate = layers.ScaledEinsumDense("abc,cd->abd", (6, 8), recipe=recipe)(y)
    y = layers.ScaledMultiply()([y, gate])
    y = layers.ScaledConv1D(5, 3, padding="causal", recipe=recipe)(y)
    return keras.Model(ids, layers.Unscale()(y))


MODELS = [(conv_net, "float32"), (transformer, "float8")]


def data(model):
    if len(model.input_shape) == 2:
        return np.arange(12).reshape(2, 6) % 11, normal(2, 6, 5)
    return normal(2, 8, 8, 3), normal(2, 5, seed=1)


def trained(model, steps=2):
    jit = keras.backend.backend() == "jax"
    model.compile(ks.optimizers.ScaledAdam(0.01), "mse", jit_compile=jit)
    for _ in range(steps):
        model.train_on_batch(*data(model))
    return model


def assert_same_model(a, b):
    assert_same([to_numpy(v) for v in a.variables], [to_numpy(v) for v in b.variables])
    x, _ = data(a)
    assert_same(a.predict(x, verbose=0), b.predict(x, verbose=0))


@pytest.mark.parametrize(("build", "recipe"), MODELS)
def test_save_load_and_resume(build, recipe, tmp_path):
    model = trained(build(recipe))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(loaded, model)
    # The loaded layers receive plain pairs: they propagate all the same.
    assert any(type(layer.input) is list for layer in loaded.layers)
    for each in loaded, model:
        each.train_on_batch(*data(each))
    assert_same_model(loaded, model)


def test_weights_and_clone(tmp_path):
    model = trained(conv_net("float8"), steps=1)
    model.save_weights(tmp_path / "model.weights.h5")
    clone = keras.models.clone_model(model)
    x, _ = data(model)
    assert np.any(clone.predict(x, verbose=0) != model.predict(x, verbose=0))
    clone.load_weights(tmp_path / "model.weights.h5")
    assert_same(clone.predict(x, verbose=0), model.predict(x, verbose=0))


LOAD = """
import sys, numpy as np, keras, keras_scalify
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[2], model.predict(np.arange(12).reshape(2, 6) % 11, verbose=0))
"""


def test_a_fresh_process_predicts_the_same_bits(tmp_path):
    model = trained(transformer("float8"), steps=1)
    files = tmp_path / "model.keras", tmp_path / "y.npy"
    model.save(files[0])
    subprocess.run([sys.executable, "-c", LOAD, *map(str, files)], check=True)
    assert_same(np.load(files[1]), model.predict(data(model)[0], verbose=0))


def test_weights_files_of_plain_and_scaled_models_read_each_other(tmp_path):
    """A container's layers are filed by their class's name."""

    def model(module, prefix, **kwargs):
        cls = {n: getattr(module, f"{prefix}{n}") for n in ("Conv1D", "EinsumDense")}
        return keras.Sequential(
            [
                keras.Input((6, 4)),
                cls["Conv1D"](5, 3, **kwargs),
                cls["EinsumDense"]("abc,cd->abd", (4, 3), **kwargs),
            ]
        )

    plain, scaled = model(keras.layers, ""), model(layers, "Scaled", recipe="float32")
    for first, second in (plain, scaled), (scaled, plain):
        first.save_weights(tmp_path / "model.weights.h5")
        for v in second.trainable_variables:
            v.assign(v * 0)
        second.load_weights(tmp_path / "model.weights.h5")
        x = normal(2, 6, 4)
        assert_same(second.predict(x, verbose=0), first.predict(x, verbose=0))


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_config_round_trip(case):
    layer = case.layer("propagated", recipe="float8_e4m3", name="layer")
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    revived = keras.saving.deserialize_keras_object(serialized)
    assert type(revived) is type(layer)
    assert revived.get_config() == layer.get_config()
    if case.multiplies:
        assert revived.recipe == ks.RECIPES["float8_e4m3"]


def test_config_of_attention_and_embedding():
    settings = {"recipe": ks.Recipe(gradient="float16"), "name": "layer"}
    attention = layers.ScaledMultiHeadAttention(2, 3, scaled_attention=True, **settings)
    embedding = layers.ScaledEmbedding(5, 4, scaled=True, **settings)
    for layer in attention, embedding:
        again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
        assert again.get_config() == layer.get_config()
        assert again.recipe == settings["recipe"]
    assert type(attention).from_config(attention.get_config()).scaled_attention
    assert type(embedding).from_config(embedding.get_config()).scaled
