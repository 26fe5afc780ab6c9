"""ScaleMonitor: what it reads, where it goes, and that training does not notice."""

import csv
import gc
import importlib
import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.callbacks.monitored import (
    BACKEND,
    BATCH,
    data,
    net,
    quiet,
    rows,
    statistics_of,
    train,
    weights,
)
from tests.helpers import assert_same, to_numpy

ScaleMonitor = ks.callbacks.ScaleMonitor


@pytest.mark.parametrize("propagate", [False, True])
def test_history_and_bit_identical_weights(propagate):
    plain, watched = (net(propagate=propagate) for _ in range(2))
    train(plain)
    monitor = ScaleMonitor(every=3)
    train(watched, monitor)
    assert_same(weights(watched), weights(plain))
    history = monitor.history
    assert len({len(column) for column in history.values()}) == 1
    assert sorted(set(history["step"])) == [1, 4]
    assert len(rows(monitor, step=4)) == 2 * 3
    # The first reading is of the first batch and the first weights.
    x, kernel = data(6)[0][:BATCH], to_numpy(net().get_layer("layer_0").kernel)
    for role, tensor in (("input", x), ("kernel", kernel)):
        (row,) = rows(monitor, step=1, layer="layer_0", role=role)
        truth = statistics_of(tensor, row["scale"], row["format"])
        for name, value in truth.items():
            assert row[name] == pytest.approx(value, rel=1e-5), (role, name)


def test_the_gradient_is_the_loss_gradient():
    model, monitor = net(depth=1, activation=None), ScaleMonitor(every=1)
    model.compile(keras.optimizers.SGD(0.0), lambda g, y: ops.sum(g * y))
    x, g = data(2)
    callbacks = keras.callbacks.CallbackList([monitor], model=model)
    g[BATCH:] *= 1e-6
    callbacks.on_train_begin()
    for i in range(2):
        callbacks.on_train_batch_begin(i)
        batch = slice(i * BATCH, (i + 1) * BATCH)
        model.train_on_batch(x[batch], g[batch])
        callbacks.on_train_batch_end(i)
        (row,) = rows(monitor, step=i + 1, role="gradient")
        truth = statistics_of(g[batch], row["scale"], row["format"])
        for name, value in truth.items():
            assert row[name] == pytest.approx(value, rel=1e-5), name
    callbacks.on_train_end()


def test_nothing_is_left_and_the_program_is_the_same():
    """Variables and program of a model that was watched, and of one that was not."""
    never, once = (net(depth=1, monitor=False) for _ in range(2))
    with quiet():
        train(once, ScaleMonitor())
    assert len(once.variables) == len(never.variables)
    train(never, optimizer=keras.optimizers.SGD(0.01))
    train(once, optimizer=keras.optimizers.SGD(0.01))
    programs = [_program(model) for model in (never, once)]
    assert programs[0] == programs[1]
    ks.callbacks.scale_monitor.Watch(1).attach(once)
    assert _program(once) != programs[0]


def _program(model):
    """What the backend runs in a training step, as text."""
    if BACKEND == "torch":  # eager: the state that a step finds
        return [(v.path.split("/", 1)[1], v.shape) for v in model.variables] + [
            layer.statistics for layer in model.layers if hasattr(layer, "statistics")
        ]
    x, y = (ops.convert_to_tensor(v[:BATCH]) for v in data(1))
    if BACKEND == "tensorflow":
        tf = importlib.import_module("tensorflow")
        step = tf.function(lambda: model.train_step((x, y)))
        return [op.type for op in step.get_concrete_function().graph.get_operations()]
    jax = importlib.import_module("jax")
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([v.value for v in group] for group in groups)
    return jax.jit(model.train_step).lower(state, (x, y)).as_text()


def test_logs_have_the_same_keys_and_a_csv_continues(tmp_path):
    seen, path = [], tmp_path / "scales.csv"
    spy = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs)
    )
    model = net(depth=1)
    monitor = ScaleMonitor(every=2, csv=path)
    log = keras.callbacks.CSVLogger(tmp_path / "fit.csv")
    history = train(
        model, steps=3, epochs=2, callbacks=[monitor, log, spy], validation_data=data(1)
    )
    keys = {
        "loss",
        "worst_headroom_bits",
        "worst_underflow_rate",
        "worst_saturation_rate",
        "worst_nonfinite_count",
        "worst_sqnr_db",
    }
    assert all(set(logs) == keys for logs in seen) and len(seen) == 6
    assert all(math.isfinite(v) for v in seen[0].values())
    assert set(history.history) == keys | {"val_loss"}
    with (tmp_path / "fit.csv").open() as file:
        assert keys <= set(next(csv.reader(file)))
    first = len(monitor.history["step"])
    train(model, ScaleMonitor(every=2, csv=path), steps=3, optimizer="compiled")
    with path.open() as file:
        table = list(csv.DictReader(file))
    assert len(table) > first
    assert [int(row["step"]) for row in table[:first]] == monitor.history["step"]
    assert int(table[first]["step"]) == 7  # the optimizer was at 6


def test_tensorboard_reads_the_events(tmp_path):
    loading = importlib.import_module(
        "tensorboard.backend.event_processing.event_file_loader"
    )
    monitor = ScaleMonitor(every=3, log_dir=tmp_path)
    train(net(depth=1), monitor, steps=4)
    (path,) = tmp_path.iterdir()
    found = {
        (event.step, value.tag): value.simple_value or value.tensor.float_val[0]
        for event in loading.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    }
    for row in rows(monitor):
        for name in ("amax", "rms", "scale", "headroom_bits", "sqnr_db"):
            tag = f"{name}/{row['layer']}/{row['role']}"
            assert found[row["step"], tag] == pytest.approx(row[name], rel=1e-6)


def test_one_trace_and_no_growth():
    model, monitor = net(depth=1), ScaleMonitor(every=50)
    layer, calls, sizes = model.get_layer("layer_0"), [], []
    product = layer.product
    layer.product = lambda x: calls.append(1) or product(x)

    def count(batch, logs):
        if batch in (99, 199):
            gc.collect()
            sizes.append(len(gc.get_objects()))

    spy = keras.callbacks.LambdaCallback(on_train_batch_end=count)
    traces = []
    tracer = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: traces.append(len(calls))
    )
    train(model, monitor, steps=200, callbacks=[spy, tracer])
    assert sorted(set(monitor.history["step"])) == [1, 51, 101, 151]
    assert sizes[1] - sizes[0] < 400  # two readings of three rows, and their numbers
    per_step = len(calls) - traces[0]
    assert per_step == (2 * 199 if BACKEND == "torch" else 0)


def test_a_second_fit_does_not_trace_again():
    if BACKEND == "torch":
        pytest.skip("Torch traces nothing")
    model, monitor = net(depth=1, monitor=False), ScaleMonitor()
    with quiet():
        train(model, monitor, steps=1)
        layer, calls = model.get_layer("layer_0"), []
        product = layer.product
        layer.product = lambda x: calls.append(1) or product(x)
        train(model, monitor, steps=1, optimizer="compiled")
        assert not calls
        train(model, monitor, steps=1)  # compiled anew
        assert calls


def test_it_says_once_what_it_cannot_show():
    model, monitor = net(depth=1, monitor=False), ScaleMonitor()
    with quiet() as texts:
        for _ in range(2):
            train(model, monitor, steps=1)
    hints = [text for text in texts if "monitor=True" in text]
    assert len(hints) == (BACKEND == "jax")
    seen = 2 if BACKEND == "jax" else 3
    assert len(rows(monitor, step=1)) == seen
    with quiet() as texts:
        train(net(depth=1, recipe="float32"), ScaleMonitor(), steps=1)
    assert any("shows nothing" in text for text in texts)


@pytest.mark.parametrize(
    ("kwargs", "argument"),
    [
        ({"every": 0}, "every=0"),
        ({"on_breach": "panic"}, "on_breach='panic'"),
        ({"limits": {"underflows": 1}}, "underflows"),
        ({"limits": {"scale": 1.0}}, "scale"),
    ],
)
def test_bad_arguments(kwargs, argument):
    with pytest.raises(ValueError, match=argument):
        ScaleMonitor(**kwargs)


def test_a_limit_is_a_number():
    with pytest.raises(ValueError, match="`most` must be a number or None.*most='1'"):
        ks.callbacks.Limit(most="1", advice="none")
    assert ks.callbacks.Limit(most=np.float32(0.5), advice="none").holds(0.25)


def test_nothing_read_cannot_be_plotted(tmp_path):
    with pytest.raises(ValueError, match="train the model first"):
        ScaleMonitor().plot(tmp_path / "a.png")


def test_a_csv_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="columns"):
        train(net(depth=1), ScaleMonitor(csv=path), steps=1)
    assert path.read_text() == "a,b\n1,2\n"


def test_the_config_keeps_monitor():
    attention = ks.layers.ScaledMultiHeadAttention(2, 3, monitor=True)
    dense = ks.layers.ScaledDense(3, monitor=True)
    for layer in attention, dense:
        assert type(layer).from_config(layer.get_config()).monitor is True
    x = np.ones((1, 4, 6), "float32")
    attention(x, x)
    names = {v.path.split("/")[-2] for v in attention.variables}
    assert "statistics" in names


def test_a_watched_model_saves_and_loads_as_any_other(tmp_path):
    path = tmp_path / "model.keras"
    model = net(depth=1)
    save = keras.callbacks.ModelCheckpoint(path)
    train(model, ScaleMonitor(), steps=2, callbacks=[save])
    loaded = keras.models.load_model(path)
    assert_same(weights(loaded), weights(model))
    for each in loaded, model:
        train(each, ScaleMonitor(), steps=2, optimizer="compiled")
    assert_same(weights(loaded), weights(model))
