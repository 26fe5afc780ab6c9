"""Files of plain and converted models read each other, here and in a fresh process."""

import copy
import json
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.conversion.converted import SEQUENCE, Subclassed, blocks, predict
from tests.helpers import assert_same
from tests.layers.layer_cases import normal

X = normal(2, *SEQUENCE)

LOAD = """
import sys, numpy as np, keras, keras_scalify
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
"""


@pytest.fixture(scope="module")
def converted():
    """A model and its prediction before, the same one converted and after."""
    keras.utils.set_random_seed(0)
    model, scaled = blocks(), blocks()
    scaled.set_weights(model.get_weights())
    ks.scalify(scaled)
    return model, predict(model, X), scaled, predict(scaled, X)


def test_a_fresh_process_predicts_the_same_bits(converted, tmp_path):
    _, _, scaled, y = converted
    files = [tmp_path / name for name in ("model.keras", "x.npy", "y.npy")]
    scaled.save(files[0])
    np.save(files[1], X)
    subprocess.run([sys.executable, "-c", LOAD, *map(str, files)], check=True)
    assert_same(np.load(files[2]).ravel(), y)


def test_weights_of_plain_and_converted_models(converted, tmp_path):
    model, y, scaled, scaled_y = converted
    for source, suffix in ((model, "weights.h5"), (scaled, "weights.h5")):
        file = tmp_path / f"model.{suffix}"
        source.save_weights(file)
        plain, other = blocks(), ks.scalify(blocks())
        for each, expected in ((plain, y), (other, scaled_y)):
            each.load_weights(file)
            assert_same(predict(each, X), expected)
    model.save(tmp_path / "model.keras")
    other = ks.scalify(blocks())
    other.load_weights(tmp_path / "model.keras")
    assert_same(predict(other, X), scaled_y)


def test_copies_are_converted_too(converted):
    _, _, scaled, y = converted
    clone = keras.models.clone_model(scaled)
    clone.set_weights(scaled.get_weights())
    for each in copy.deepcopy(scaled), clone:
        assert len(ks.scalify_report(each).converted) == 7
        assert_same(predict(each, X), y)


def test_an_unconverted_model_knows_nothing_of_this_package(converted, tmp_path):
    _, y, scaled, _ = converted
    stock = ks.unscalify(copy.deepcopy(scaled))
    assert_same(predict(stock, X), y)
    stock.save(tmp_path / "model.keras")
    config = zipfile.ZipFile(tmp_path / "model.keras").read("config.json")
    assert b"scal" not in config


def test_a_subclassed_model_trains_and_resumes(tmp_path):
    model = Subclassed()
    model(X)
    ks.scalify(model, recipe="float8_delayed")
    jit = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=jit)
    y = normal(2, 6, 3)
    model.train_on_batch(X, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(ks.scalify_report(loaded).converted) == 6
    for each in model, loaded:
        each.train_on_batch(X, y)
    assert_same(predict(loaded, X), predict(model, X))


def test_a_config_of_another_structure_is_refused():
    model = ks.scalify(blocks())
    config = keras.saving.serialize_keras_object(model)
    text = json.dumps(config).replace('"at": [0]', '"at": [9]')
    with pytest.raises(ValueError, match="`scaled` of .* must name sublayers"):
        keras.saving.deserialize_keras_object(json.loads(text))
