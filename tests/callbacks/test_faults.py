"""Faults that are made on purpose are found where they are, within a reading."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from keras_scalify import backend
from keras_scalify.callbacks.loss_watch import LossWatch
from tests.callbacks.monitored import BATCH, data, net, quiet, rows, train
from tests.helpers import to_numpy

EVERY = 10


def assign(step, layer, function):
    """A callback that changes a layer's kernel before a step, counted from 1."""

    class Assign(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch + 1 == step:
                kernel = self.model.get_layer(layer).kernel
                kernel.assign(function(to_numpy(kernel)))

    return Assign()


def watched(model, steps, fault=None, **kwargs):
    """The monitor after so many steps, and the warnings."""
    monitor = ks.callbacks.ScaleMonitor(every=EVERY, **kwargs.pop("monitor", {}))
    with quiet() as texts:
        train(model, monitor, steps=steps, callbacks=[fault] if fault else [], **kwargs)
    return monitor, texts


def one_large(kernel):
    kernel = kernel.copy()
    kernel[0, 0] *= 2.0**20
    return kernel


@pytest.mark.parametrize(
    ("function", "statistic"),
    [(lambda kernel: kernel * 2.0**20, "drift_bits"), (one_large, "underflow_rate")],
)
def test_a_weight_times_2_to_the_20_in_layer_3(function, statistic):
    monitor, texts = watched(net(4), 21, assign(13, "layer_3", function))
    found = [b for b in monitor.breaches if b.statistic == statistic]
    assert (found[0].layer, found[0].role) == ("layer_3", "kernel")
    assert 13 <= found[0].step <= 13 + EVERY
    first = monitor.breaches[0]
    assert (first.layer, first.role) == ("layer_3", "kernel")
    advice = ks.callbacks.LIMITS[statistic].advice
    assert any("kernel of layer_3" in text and advice in text for text in texts)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_entry_that_is_not_finite_in_the_input_of_step_57(value):
    x = data(61)[0]
    x[56 * BATCH + 2, 1] = value
    monitor, texts = watched(net(3), 61, x=x)
    named = [b for b in monitor.breaches if b.statistic == "nonfinite_count"]
    first = named[0]
    assert (first.layer, first.role, first.step) == ("layer_0", "input", 57)
    assert first.value == 1
    assert {"layer_1", "layer_2"} == {b.layer for b in named[1:3]}  # as they follow
    assert [b.step for b in named if b.role == "kernel"] == [58] * 3
    assert any("the data" in text for text in texts)
    assert texts[0].startswith("the loss is not finite at step 57: input of layer_0")


def test_the_step_is_found_when_the_loss_says_nothing():
    """A gradient that is not finite, one step before the loss is."""

    class Bad(keras.layers.Layer):
        def call(self, x):
            def backward(residuals, cotangents, needed):
                factor = ops.where(ops.abs(residuals[0]) > 100, float("inf"), 1.0)
                return (cotangents[0] * factor,)

            return backend.custom_vjp(lambda x: (x, (x,)), backward)(x)

    x, y = data(20)
    x[13 * BATCH] = 1e4
    inputs = keras.Input(x.shape[1:])
    layer = ks.layers.ScaledDense(6, name="inner", monitor=True)
    model = keras.Model(inputs, Bad()(layer(inputs)))
    monitor, _ = watched(model, 21, x=np.concatenate([x, x[:BATCH]]))
    first = next(b for b in monitor.breaches if b.statistic == "nonfinite_count")
    assert (first.layer, first.role, first.step) == ("inner", "gradient", 14)


def test_a_dead_layer():
    model = net(3, activation="relu")

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 12:
                self.model.get_layer("layer_1").bias.assign([-100.0] * 6)

    monitor, texts = watched(model, 21, Kill())
    found = {(b.layer, b.role) for b in monitor.breaches if b.statistic == "rms"}
    assert ("layer_2", "input") in found and ("layer_1", "gradient") in found
    first = monitor.breaches[0]
    assert (first.layer, first.role, first.statistic) == ("layer_2", "input", "rms")
    assert first.step == 21 and "dead activation" in first.message


def growing(steps, rate=1.3):
    """Batches that grow, each by the same factor."""
    x = data(steps)[0] * 1e-3
    return x * rate ** np.repeat(np.arange(steps), BATCH)[:, None].astype("float32")


def test_a_drift_that_only_delayed_scaling_suffers():
    causes = {}
    for recipe in ("float8", "float8_delayed"):
        limits = {
            name: ks.callbacks.LIMITS[name]
            for name in ("headroom_bits", "saturation_rate")
        }
        monitor, texts = watched(
            net(1, recipe=recipe), 21, x=growing(21), monitor={"limits": limits}
        )
        causes[recipe] = {b.cause for b in monitor.breaches}
    assert not causes["float8"]
    assert ("layer_0", "input", "headroom_bits") in causes["float8_delayed"]
    assert all(layer == "layer_0" for layer, *_ in causes["float8_delayed"])
    assert any("margin 1" in text for text in texts)


def test_a_healthy_run_has_no_breach():
    for recipe in ("float8", "float8_delayed", "float16"):
        monitor, texts = watched(net(2, recipe=recipe), 21)
        assert monitor.breaches == [] and texts == [], recipe


def test_a_loss_that_jumps_names_where():
    fault = assign(15, "layer_1", lambda kernel: kernel * 2.0**12)
    model = net(2, activation=None)
    monitor, texts = watched(model, 16, fault)
    spike = next(b for b in monitor.breaches if b.statistic == "loss_ratio")
    assert (spike.layer, spike.role, spike.step) == ("layer_1", "kernel", 15)
    assert spike.value > 3 and "its median" in texts[0]


def test_a_loss_that_jumps_with_the_data_names_the_input():
    x = data(16)[0]
    x[14 * BATCH :] *= 16.0
    monitor, texts = watched(net(2, activation=None), 16, x=x)
    (spike,) = (b for b in monitor.breaches if b.statistic == "loss_ratio")
    assert (spike.layer, spike.role, spike.step) == ("layer_0", "input", 15)
    assert "look at the data" in texts[0]


def broken(**kwargs):
    model = net(1)
    x = data(22)[0]
    x[12 * BATCH] = np.inf
    return watched(model, 22, x=x, monitor=kwargs), model


def test_reactions():
    (monitor, texts), _ = broken()
    assert len(texts) == len({text.split(" at step")[0] for text in texts})
    assert texts[-1].startswith("ScaleMonitor saw") and "times)" in texts[-1]
    (monitor, texts), model = broken(on_breach="stop")
    assert model.stop_training and max(monitor.history["step"]) == 13
    seen = []
    (monitor, texts), _ = broken(on_breach=seen.append)
    assert seen == monitor.breaches and seen and not texts
    with pytest.raises(ks.callbacks.ScaleBreach, match="input of layer_0"):
        broken(on_breach="raise")


def test_limits_can_be_changed():
    limits = {**ks.callbacks.LIMITS, "sqnr_db": 100.0}
    monitor, _ = watched(net(1), 1, monitor={"limits": limits})
    assert {b.statistic for b in monitor.breaches} == {"sqnr_db"}
    assert len(monitor.breaches) == 3
    assert not rows(monitor, role="gradient")[0]["sqnr_db"] > 100
    assert watched(net(1), 1, monitor={"limits": {}})[0].breaches == []


def test_several_steps_in_one_call_are_no_jump_of_the_loss():
    """Keras logs the mean since the epoch began, here over five batches more a call."""
    watch, batches = LossWatch(), 1.0 / np.arange(1, 201)
    for start in range(0, 200, 50):
        watch.begin_epoch()
        for count in range(5, 51, 5):
            logged = batches[start : start + count].mean()
            assert not watch.ratio(logged, count, True) > 1.5
