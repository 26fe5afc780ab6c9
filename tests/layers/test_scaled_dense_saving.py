"""Saving, loading, copying; weights files of Dense and ScaledDense read each other."""

import copy
import json
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import assert_same, relative_error, to_numpy
from tests.layers.layer_cases import FORWARD, built, fit, mlp, normal

WINDOW = ks.Recipe(
    input_scaling="delayed", gradient_scaling="delayed", window=5, margin=1
)
RECIPES = ["float8", "float32", WINDOW]


def recipe_id(recipe):
    return recipe if isinstance(recipe, str) else "custom"


def by_path(model):
    """Every variable as numpy, by its path."""
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, (to_numpy(v) for v in model.variables), strict=True))


def assert_same_model(copied, model):
    mine, theirs = by_path(copied), by_path(model)
    assert mine.keys() == theirs.keys()
    for path, value in theirs.items():
        np.testing.assert_array_equal(mine[path], value, err_msg=path)
    x = normal(5, 6, seed=8)
    assert_same(copied.predict(x, verbose=0), model.predict(x, verbose=0))
    assert [type(a) for a in copied.layers] == [type(b) for b in model.layers]


def train_once(model):
    model.train_on_batch(normal(8, 6, seed=20), normal(8, 3, seed=21))


@pytest.mark.parametrize("recipe", ["float8", WINDOW], ids=recipe_id)
def test_keras_file(recipe, tmp_path):
    model = fit(mlp(recipe=recipe), optimizer=keras.optimizers.SGD(0.01, 0.9))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(loaded, model)
    assert loaded.layers[1].recipe == model.layers[1].recipe
    for each in (loaded, model):
        train_once(each)
    assert_same_model(loaded, model)


def copies(model):
    yield copy.deepcopy(model)
    yield pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("recipe", ["float8_delayed"])
def test_deepcopy_and_pickle_are_independent(recipe):
    model = fit(mlp(recipe=recipe))
    before = by_path(model)
    for copied in copies(model):
        assert_same_model(copied, model)
        train_once(copied)
        assert_same(list(by_path(model).values()), list(before.values()))
    layer = built(4, 2, recipe=recipe)
    for copied in copies(layer):
        assert type(copied) is type(layer) and copied is not layer
        assert_same(copied(normal(3, 4)), layer(normal(3, 4)))


@pytest.mark.parametrize("recipe", RECIPES, ids=recipe_id)
def test_config_round_trip(recipe):
    layer = ks.layers.ScaledDense(3, activation="relu", lora_rank=2, recipe=recipe)
    config = json.loads(json.dumps(layer.get_config()))
    again = ks.layers.ScaledDense.from_config(config)
    assert again.get_config() == layer.get_config() and again.recipe == layer.recipe
    serialized = keras.saving.serialize_keras_object(layer)
    revived = keras.saving.deserialize_keras_object(json.loads(json.dumps(serialized)))
    assert type(revived) is ks.layers.ScaledDense
    assert revived.get_config() == layer.get_config()


@pytest.mark.parametrize("recipe", ["float8_delayed"])
def test_clone_model_has_fresh_weights_and_trains(recipe):
    model = fit(mlp(recipe=recipe))
    clone = keras.models.clone_model(model)
    assert clone.layers[1].recipe == model.layers[1].recipe
    assert np.any(to_numpy(clone.layers[1].kernel) != to_numpy(model.layers[1].kernel))
    assert {float(v) for v in clone.variables if v.name.endswith("_scale")} == {1.0}
    clone.set_weights(model.get_weights())
    assert_same_model(clone, model)
    fit(clone)


def sequential(cls, **kwargs):
    sizes = [
        keras.layers.Dense(7),
        cls(8, activation="relu", **kwargs),
        cls(3, **kwargs),
    ]
    return keras.Sequential([keras.Input((6,)), *sizes])


class Subclassed(keras.Model):
    def __init__(self, cls, **kwargs):
        super().__init__()
        self.first = cls(8, activation="relu", **kwargs)
        self.blocks = [cls(5, **kwargs), keras.layers.Dense(4), cls(3, **kwargs)]

    def call(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def subclassed(cls, **kwargs):
    model = Subclassed(cls, **kwargs)
    model(np.zeros((1, 6), "float32"))
    return model


def kernels(model):
    return [to_numpy(v) for v in model.variables if v.name in ("kernel", "bias")]


@pytest.mark.parametrize(
    ("make", "recipe", "ending"),
    [
        (mlp, "float8", "weights.h5"),
        (mlp, "float32", "keras"),
        (sequential, "float8_delayed", "weights.h5"),
        (sequential, "float8", "keras"),
        (subclassed, "float8_delayed", "weights.h5"),
    ],
)
def test_dense_and_scaled_dense_read_each_other(make, recipe, ending, tmp_path):
    """Also where plain and scaled layers stand side by side."""
    file, x = tmp_path / f"model.{ending}", normal(16, 6)

    def save(model):
        model.save_weights(file) if ending == "weights.h5" else model.save(file)

    dense = make(keras.layers.Dense)
    scaled = make(ks.layers.ScaledDense, recipe=recipe)
    for model in (dense, scaled):  # other weights than those of a fresh model
        for variable in model.variables:
            if variable.name in ("kernel", "bias"):
                variable.assign(to_numpy(variable) * 1.25 + 0.01)
    truth = dense.predict(x, verbose=0)
    save(dense)
    other = make(ks.layers.ScaledDense, recipe=recipe)
    other.load_weights(file)
    assert_same(kernels(other), kernels(dense))
    assert relative_error(other.predict(x, verbose=0), truth) <= 1.5 * FORWARD[1]
    save(scaled)
    other = make(keras.layers.Dense)
    other.load_weights(file)
    assert_same(kernels(other), kernels(scaled))


def test_a_file_of_another_window_gives_its_latest_steps(tmp_path):
    file, windows = tmp_path / "model.weights.h5", {}
    model = fit(mlp(recipe=WINDOW), steps=8)
    model.save_weights(file)
    source = to_numpy(model.layers[1].scales.input_window)
    assert np.all(source > 0)
    for window in (3, 5, 8):
        recipe = ks.Recipe(**{**WINDOW.get_config(), "window": window})
        other = mlp(recipe=recipe)
        other.load_weights(file)
        windows[window] = to_numpy(other.layers[1].scales.input_window)
        assert_same(kernels(other), kernels(model))
    np.testing.assert_array_equal(windows[3], source[-3:])
    np.testing.assert_array_equal(windows[5], source)
    np.testing.assert_array_equal(windows[8], [0, 0, 0, *source])


def test_a_file_of_another_recipe_loads(tmp_path):
    file = tmp_path / "model.weights.h5"
    fit(mlp(recipe="float8")).save_weights(file)
    delayed = mlp(recipe="float8_delayed")
    delayed.load_weights(file)
    fit(delayed)


def test_numeric_store_of_earlier_keras_versions():
    """The one case without a quantization mode of test_legacy_load_own_variables."""
    store = {"0": normal(8, 16), "1": normal(16)}
    layer = built(8, 16)
    layer.load_own_variables(store)
    assert_same([layer.kernel, layer.bias], list(store.values()))


LOAD = """
import sys, numpy as np, keras, keras_scalify
model = keras.models.load_model(sys.argv[1])
x = np.linspace(-1, 1, 30, dtype="float32").reshape(5, 6)
np.save(sys.argv[2], model.predict(x, verbose=0))
"""


def test_a_fresh_process_needs_only_the_import(tmp_path):
    model = fit(mlp(recipe=WINDOW))
    files = tmp_path / "model.keras", tmp_path / "y.npy"
    model.save(files[0])
    subprocess.run([sys.executable, "-c", LOAD, *map(str, files)], check=True)
    x = np.linspace(-1, 1, 30, dtype="float32").reshape(5, 6)
    assert_same(np.load(files[1]), model.predict(x, verbose=0))
