"""Frozen scales: measured once, then predictions measure nothing."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_scalify as ks
from keras_scalify import backend
from tests.conversion.converted import mlp, predict, state
from tests.helpers import assert_power_of_two, assert_same, relative_error, to_numpy
from tests.layers.layer_cases import normal

BATCHES = [normal(8, 16), normal(8, 16, seed=1, scale=4.0)]


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_frozen_scales_are_those_of_the_largest_batch(recipe, tmp_path):
    model = ks.scalify(mlp(), recipe, filter=".*")
    x = BATCHES[int(np.argmax([np.abs(b).max() for b in BATCHES]))]
    measured = predict(model, x)
    assert ks.freeze_scales(model, BATCHES) is model
    for layer in model.layers:
        assert layer.recipe.input_scaling == layer.recipe.kernel_scaling == "static"
        assert layer.recipe.gradient_scaling == ks.RECIPES[recipe].gradient_scaling
        assert_power_of_two(layer.input_scale)
    row = ks.FORMATS["float8_e4m3fn"]
    scale, amax = to_numpy(model.layers[0].input_scale), np.abs(x).max()
    assert amax <= scale * row.max < 2 * amax
    # The other layers saw larger inputs than this batch's at most.
    assert relative_error(predict(model, x), measured) < 0.1
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(predict(loaded, x), predict(model, x))


def test_predictions_measure_nothing(monkeypatch):
    model, calls = ks.scalify(mlp()), []
    amax = backend.amax
    monkeypatch.setattr(backend, "amax", lambda x: calls.append(1) or amax(x))
    model(BATCHES[0])
    measured = len(calls)
    ks.freeze_scales(model, BATCHES)
    calls.clear()
    model(BATCHES[0])
    assert (measured, len(calls)) == (4, 0)


def test_what_cannot_be_frozen():
    model = ks.scalify(mlp())
    before = state(model)
    for data, message in (
        ([], "must hold batches with finite values.*Received none for dense"),
        ([np.nan * BATCHES[0], np.inf * BATCHES[0], BATCHES[0][:0]], "for dense"),
        (3, "must be an iterable of batches. Received: calibration_data=3"),
    ):
        with pytest.raises(ValueError, match=f"`calibration_data` .*{message}"):
            ks.freeze_scales(model, data)
        assert state(model) == before
    with pytest.raises(ValueError, match="`model` must have scaled layers"):
        ks.freeze_scales(keras.Sequential([keras.Input((4,)), layers.Dense(2)]), [])
    with pytest.raises(ValueError, match="`model` must pass plain tensors"):
        ks.freeze_scales(ks.scalify(mlp(), propagate=True), BATCHES)
