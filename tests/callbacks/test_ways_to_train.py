"""ScaleMonitor with every way to train, and what each way makes of the statistics."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.callbacks.monitored import (
    BACKEND,
    BATCH,
    data,
    net,
    quiet,
    rows,
    train,
    weights,
)
from tests.helpers import assert_same
from tests.layers.test_scale_state import CustomStep

ROLES = ["input", "kernel", "gradient"]


def watched(model=None, every=2, **kwargs):
    model = model or net(1)
    monitor = ks.callbacks.ScaleMonitor(every=every, limits={})
    train(model, monitor, **kwargs)
    return monitor


def assert_same_rows(found, truth, but=(), rtol=1e-5):
    """Assert that two lists of rows agree, in every column but some."""
    assert len(found) == len(truth) > 0
    for a, b in zip(found, truth, strict=True):
        for name in set(a) - {"step", *but}:
            same = b[name] if isinstance(b[name], str) else pytest.approx(b[name], rtol)
            assert a[name] == same or (a[name] != a[name] and b[name] != b[name]), name


def custom(model, cls=CustomStep):
    return cls([keras.Input(model.input_shape[1:]), *model.layers[1:]])


@pytest.mark.parametrize("way", ["run_eagerly", "train_step", "steps_per_execution"])
def test_other_ways_see_what_fit_sees(way):
    truth = rows(watched())
    eager = {"run_eagerly": True, "jit_compile": False}
    given = {"train_step": {}, "run_eagerly": eager, "steps_per_execution": {}}
    model = custom(net(1)) if way == "train_step" else net(1)
    if way == "steps_per_execution" and BACKEND != "torch":  # which has none
        monitor = watched(model, steps_per_execution=2)
        assert sorted(set(monitor.history["step"])) == [2, 4, 6]
        assert all(np.isfinite(monitor.history["amax"]))
        return
    found = rows(watched(model, **given[way]))
    assert [r["layer"].split("/")[-1] for r in found] == [r["layer"] for r in truth]
    assert_same_rows(found, truth, but={"layer"})


def test_accumulation_takes_the_maximum_over_micro_batches():
    x = data(6)[0]
    x[BATCH : 2 * BATCH] *= 50.0  # the second of the first three
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=3)
    monitor = watched(every=2, x=x, optimizer=optimizer)
    assert sorted(set(monitor.history["step"])) == [3, 6]
    (row,) = rows(monitor, step=3, role="input")
    assert row["amax"] == np.abs(x[: 3 * BATCH]).max()
    y = data(6)[1]
    batches = [slice(i * BATCH, (i + 1) * BATCH) for i in range(3)]
    parts = [rows(watched(steps=1, x=x[b], y=y[b])) for b in batches]
    for role in ROLES:
        (row,) = rows(monitor, step=3, role=role)
        for name, worst in (("amax", max), ("rms", max), ("sqnr_db", min)):
            values = [r[name] for part in parts for r in part if r["role"] == role]
            assert row[name] == pytest.approx(worst(values), rel=1e-5), (role, name)


def shared():
    layer = ks.layers.ScaledDense(6, name="shared", monitor=True)
    x = inputs = keras.Input((6,))
    for factor in (1.0, 8.0):
        x = layer(keras.layers.Rescaling(factor)(x))
    return keras.Model(inputs, x)


def test_of_a_shared_layer_the_worst_call_counts():
    """Each call alone, as a layer of its own with the same kernel, gives its part."""
    x = inputs = keras.Input((6,))
    for i, factor in enumerate((1.0, 8.0)):
        twin = ks.layers.ScaledDense(6, name=f"call_{i}", monitor=True)
        x = twin(keras.layers.Rescaling(factor)(x))
    apart = keras.Model(inputs, x)
    model = shared()
    layer = model.get_layer("shared")
    monitor = ks.callbacks.ScaleMonitor(every=1, limits={})
    for i in range(2):
        apart.get_layer(f"call_{i}").set_weights(layer.get_weights())
    train(model, monitor, steps=1)
    each = watched(apart, steps=1, every=1)
    for role in ROLES:
        (row,) = rows(monitor, role=role)
        values = [r["amax"] for r in rows(each, role=role)]
        assert len(values) == 2
        assert row["amax"] == pytest.approx(max(values), rel=1e-5), role


def test_a_frozen_layer_shows_what_there_is():
    model = net(2)
    model.get_layer("layer_1").trainable = False
    monitor = watched(model)
    seen = {r["role"] for r in rows(monitor, layer="layer_1")}
    assert seen == ({"input", "kernel"} if BACKEND == "jax" else set(ROLES))
    assert {r["role"] for r in rows(monitor, layer="layer_0")} == set(ROLES)


def test_loss_scaling_scales_the_gradient_alone():
    def run(wrap):
        optimizer = keras.optimizers.SGD(0.0)
        if wrap:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 1024.0)
        model = net(1, dtype="mixed_float16")
        return rows(watched(model, optimizer=optimizer))

    for scaled, plain in zip(run(True), run(False), strict=True):
        factor = 1024.0 if plain["role"] == "gradient" else 1.0
        assert scaled["amax"] == pytest.approx(plain["amax"] * factor, rel=0.01)


@pytest.mark.parametrize("frequency", [None, 2])
def test_with_moving_averages(frequency):
    # With a frequency, Keras's own (3.15) need averages of overwritten variables.
    cls = ks.optimizers.ScaledSGD if frequency else keras.optimizers.SGD

    def optimizer():
        return cls(0.01, use_ema=True, ema_overwrite_frequency=frequency)

    plain, seen = net(1, monitor=False), net(1)
    train(plain, optimizer=optimizer())
    monitor = watched(seen, optimizer=optimizer())
    assert_same(weights(seen), weights(plain))
    assert [r["role"] for r in rows(monitor, step=5)] == ROLES


class TwoOptimizers(CustomStep):
    """The kernels by one optimizer, all the rest by another."""

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)
        self.other = keras.optimizers.SGD(0.01)

    @property
    def parts(self):
        kernels = [v for v in self.trainable_variables if v.name == "kernel"]
        rest = [v for v in self.trainable_variables if v.name != "kernel"]
        return (self.other, kernels), (self.optimizer, rest)

    def tensorflow_step(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.compute_loss(*data, self(data[0], training=True))
        (one, kernels), (two, rest) = self.parts
        grads = tape.gradient(loss, [*kernels, *rest])
        one.apply(grads[: len(kernels)], kernels)
        two.apply(grads[len(kernels) :], rest)
        return {"loss": loss}

    def torch_step(self, data):
        import torch

        self.zero_grad()
        loss = self.compute_loss(*data, self(data[0], training=True))
        loss.backward()
        with torch.no_grad():
            for optimizer, variables in self.parts:
                optimizer.apply([v.value.grad for v in variables], variables)
        return {"loss": loss}


@pytest.mark.skipif(BACKEND == "jax", reason="a JAX state holds one optimizer")
def test_several_optimizers():
    truth, model = rows(watched()), custom(net(1), TwoOptimizers)
    assert_same_rows(rows(watched(model)), truth, but={"layer"})


def test_validation_changes_nothing():
    x = data(2)[0] * 1000.0
    validation = (x, data(2)[1])
    plain, seen = watched(net(1)), watched(net(1), validation_data=validation, epochs=1)
    assert seen.history == plain.history
    model = net(1)
    with_evaluation = ks.callbacks.ScaleMonitor(every=2)

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.evaluate(*validation, verbose=0)
            self.model.predict(x, verbose=0)

    train(model, with_evaluation, callbacks=[Evaluate()])
    assert with_evaluation.history == plain.history


def test_resumed_training_counts_on(tmp_path):
    """A reloaded model goes on as one that was never saved."""
    path = tmp_path / "model.keras"
    truth, model = ks.callbacks.ScaleMonitor(every=2), net(1)
    train(model, truth, steps=3)
    model.save(path)
    train(model, truth, steps=3, optimizer="compiled")
    monitor = ks.callbacks.ScaleMonitor(every=2)
    train(keras.models.load_model(path), monitor, steps=3, optimizer="compiled")
    assert sorted(set(monitor.history["step"])) == [4, 6]
    resumed = [r for r in rows(truth) if r["step"] > 3]
    assert_same_rows(rows(monitor), resumed, but={"drift_bits"})


DISTRIBUTED = """
import sys, json, keras, numpy as np
sys.path.insert(0, sys.argv[1])
import keras_scalify as ks
from tests.callbacks.monitored import net, rows, train
if sys.argv[2] == "8":
    keras.distribution.set_distribution(keras.distribution.DataParallel())
monitor = ks.callbacks.ScaleMonitor(every=2)
train(net(1), monitor, steps=4)
print(json.dumps(rows(monitor)))
"""


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution needs JAX")
def test_data_parallel_statistics_are_global():
    import json

    found = []
    for devices in (1, 8):
        env = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"
        }
        args = [sys.executable, "-c", DISTRIBUTED, os.getcwd(), str(devices)]
        run = subprocess.run(args, env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    assert_same_rows(found[1], found[0], rtol=1e-4)


def test_a_model_that_its_first_step_builds():
    layers = [ks.layers.ScaledDense(6, name=f"layer_{i}") for i in range(2)]
    monitor = ks.callbacks.ScaleMonitor(every=2)
    with quiet():
        train(keras.Sequential(layers), monitor)
    assert {r["layer"] for r in rows(monitor)} == {"layer_0", "layer_1"}
    assert len(set(monitor.history["step"])) == 3
