"""Stopping and going on: the same bits as without a stop, in the same dtypes."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import to_numpy

ROOT = Path(__file__).parents[2]
STATES = ("float16", "bfloat16")


def data():
    rng = np.random.default_rng(0)
    x = np.float32(rng.normal(size=(32, 8)))
    return x, np.float32(x @ rng.normal(size=(8, 2)))


def build(state_dtype="float16"):
    keras.utils.set_random_seed(7)
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 4, 0.9)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    optimizer = ks.optimizers.ScaledAdam(
        schedule, amsgrad=True, state_dtype=state_dtype
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs=2, callbacks=(), initial_epoch=0):
    log = model.fit(
        *data(),
        batch_size=8,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return log.history["loss"]


def everything(model):
    """Every variable of model and optimizer, as (dtype, bytes)."""
    variables = [*model.variables, *model.optimizer.variables]
    return [(v.dtype, to_numpy(v).tobytes()) for v in variables]


def go_on(path):
    """What the second process does. Prints the bits it ends with."""
    model = keras.saving.load_model(path)
    fit(model)
    print("|".join(data.hex() for _, data in everything(model)))


@pytest.mark.parametrize("state_dtype", STATES)
def test_a_saved_model_goes_on(state_dtype, tmp_path):
    whole = build(state_dtype)
    losses = fit(whole) + fit(whole)
    first = build(state_dtype)
    fit(first)
    first.save(tmp_path / "model.keras")
    second = keras.saving.load_model(tmp_path / "model.keras")
    assert everything(second) == everything(first)
    assert type(second.optimizer) is ks.optimizers.ScaledAdam
    assert second.optimizer.state_dtype == state_dtype
    schedule = second.optimizer.get_config()["learning_rate"]
    assert schedule["class_name"] == "ExponentialDecay"
    assert fit(second) == losses[2:]
    assert everything(second) == everything(whole)


@pytest.mark.parametrize("state_dtype", STATES)
def test_weights_files_hold_the_state(state_dtype, tmp_path):
    first = build(state_dtype)
    fit(first)
    first.save_weights(tmp_path / "model.weights.h5")
    second = build(state_dtype)
    second.optimizer.build(second.trainable_variables)
    second.load_weights(tmp_path / "model.weights.h5")
    assert everything(second) == everything(first)
    assert everything(second) != everything(build(state_dtype))


def test_a_fresh_process_goes_on(tmp_path):
    """It starts from another hash seed and another state of every global generator."""
    model = build()
    fit(model)
    path = str(tmp_path / "model.keras")
    model.save(path)
    fit(model)
    script = f"from tests.optimizers import test_saving; test_saving.go_on({path!r})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = "|".join(data.hex() for _, data in everything(model))
    assert done.stdout.strip().splitlines()[-1] == expected


class Stop(Exception):
    """What interrupts a training."""


class StopAt(keras.callbacks.Callback):
    """Raises at the end of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


def test_backup_and_restore(tmp_path):
    whole = build()
    fit(whole, 4)
    broken = build()
    backup = keras.callbacks.BackupAndRestore(str(tmp_path))
    with pytest.raises(Stop):
        fit(broken, 4, [backup, StopAt(1)])
    again = build()
    fit(again, 4, [keras.callbacks.BackupAndRestore(str(tmp_path))])
    assert everything(again) == everything(whole)


def test_saving_twice_gives_the_same(tmp_path):
    model = build()
    fit(model)
    loaded = []
    for name in ("a.keras", "b.keras"):
        model.save(tmp_path / name)
        loaded.append(everything(keras.saving.load_model(tmp_path / name)))
    assert loaded[0] == loaded[1] == everything(model)


def test_files_are_as_small_as_what_rests(tmp_path):
    """Bytes a weight: 12 with Keras's Adam, 6 of 12 and 4 of 12 in narrow formats."""
    sizes = {}
    for name, optimizer, weight_dtype in (
        ("Adam", keras.optimizers.Adam(), None),
        ("state", ks.optimizers.ScaledAdam(state_dtype="float8"), None),
        ("both", ks.optimizers.ScaledAdam(state_dtype="float8"), "float16"),
    ):
        dense = ks.layers.ScaledDense(512, weight_dtype=weight_dtype)
        model = keras.Sequential([keras.Input((512,)), dense])
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        model.save(path := tmp_path / f"{name}.keras")
        sizes[name] = path.stat().st_size
    assert sizes["state"] <= 0.52 * sizes["Adam"]
    assert sizes["both"] <= 0.36 * sizes["Adam"]
