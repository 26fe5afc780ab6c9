"""scale_report: what it measures, what it compares, and that it changes nothing."""

import math

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.callbacks.monitored import data, net, rows, statistics_of, train
from tests.helpers import assert_same, to_numpy
from tests.layers.layer_cases import normal

report_of = ks.analysis.scale_report


def report(model, batch=None, **kwargs):
    batch = data(1) if batch is None else batch
    return report_of(model, batch, verbose=False, **kwargs)


def records(found, **wanted):
    return [r for r in found.records() if all(r[k] == v for k, v in wanted.items())]


@pytest.mark.parametrize("propagate", [False, True])
def test_it_sees_what_training_sees_and_changes_nothing(propagate):
    model, monitor = net(2, propagate=propagate), ks.callbacks.ScaleMonitor()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    before = [to_numpy(v) for v in model.variables]
    observers = [layer.statistics for layer in model.layers if hasattr(layer, "recipe")]
    found = report(model)
    assert_same([to_numpy(v) for v in model.variables], before)
    assert observers == [
        layer.statistics for layer in model.layers if hasattr(layer, "recipe")
    ]
    train(model, monitor, steps=1)
    for row in rows(monitor):
        (own,) = records(found, layer=row["layer"], role=row["role"], recipe="own")
        assert own["scale"] == row["scale"]
        for name in ("amax", "rms", "headroom_bits", "underflow_rate", "sqnr_db"):
            assert own[name] == pytest.approx(row[name], rel=1e-3), (row, name)
        assert math.isnan(own["predicted_rms"]) != propagate
        if propagate:
            assert own["predicted_rms"] == pytest.approx(own["rms"], rel=0.7)


def test_a_comparison_is_what_each_recipe_would_do():
    x = data(1)[0]
    x[0, 0] = 1e6  # everything else underflows in float8
    model = net(1)
    model.compile("sgd", "mse")
    recipes = ["float8_e4m3", "float16", ks.Recipe(input="float8_e5m2")]
    found = report(model, (x, data(1)[1]), recipes=recipes)
    names = [*dict.fromkeys(found.rows["recipe"])]
    assert names[:3] == ["own", "float8_e4m3", "float16"] and len(names) == 4
    for row in records(found, role="input"):
        truth = statistics_of(x, row["scale"], row["format"])
        for name, value in truth.items():
            assert row[name] == pytest.approx(value, rel=1e-4), (row["recipe"], name)
    rates = {r["recipe"]: r["underflow_rate"] for r in records(found, role="input")}
    assert rates["own"] > 0.5 and rates["float16"] < 0.2 and rates[names[3]] == 0.0


def test_delayed_scaling_is_settled_and_has_its_margin():
    margin = ks.Recipe(input_scaling="delayed", margin=3)
    found = report(net(1), data(1)[0], recipes=["float8", margin])
    plain, wide = (r["scale"] for r in records(found, role="input")[1:])
    assert wide == plain * 8


# JAX compiles every op of a convolution and of attention for an eager pass.
PRODUCTS = [
    ("Conv1D", (8, 3), {"padding": "same", "activation": "gelu"}),
    ("EinsumDense", ("abc,cd->abd", (6, 5)), {"activation": "tanh"}),
    ("Dense", (3,), {}),
][2 * (keras.backend.backend() == "jax") :]


def stack(module, prefix):
    layers = [
        getattr(module, prefix + name)(*args, **kwargs)
        for name, args, kwargs in PRODUCTS
    ]
    return keras.Sequential([keras.Input((6, 4)), *layers])


def test_a_keras_model_is_reported_as_if_it_were_converted():
    """Its operands are those of the scaled layers in its place."""
    model, scaled = stack(keras.layers, ""), stack(ks.layers, "Scaled")
    x = normal(4, 6, 4)
    found = report(model, x)
    assert [*dict.fromkeys(found.rows["recipe"])] == ["float8"]
    assert len(found.rows["layer"]) == 3 * len(PRODUCTS)
    assert not any("call" in vars(layer) for layer in model.layers)
    assert model.layers[-1].activation is keras.activations.linear
    for one, other in zip(scaled.layers, model.layers, strict=True):
        one.kernel.assign(other.kernel)
    truth = records(report(scaled, x), recipe="own")
    for a, b in zip(found.records(), truth, strict=True):
        assert (a["role"], a["format"]) == (b["role"], b["format"])
        assert a["rms"] == pytest.approx(b["rms"], rel=0.1)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="see PRODUCTS")
def test_layers_inside_layers_and_several_outputs():
    x = inputs = keras.Input((6, 8))
    y = ks.layers.ScaledMultiHeadAttention(2, 4, name="attention")(x, x)
    z = keras.layers.Dense(2, name="plain")(y)
    found = report(keras.Model(inputs, [y, z]), normal(2, 6, 8), recipes=["float8"])
    layers = {*found.rows["layer"]}
    parts = {f"attention/{n}" for n in ("query", "key", "value", "attention_output")}
    assert layers == parts | {"plain"}
    assert {r["recipe"] for r in records(found, layer="plain")} == {"float8"}


def test_the_table_is_printed(capsys):
    report_of(net(2), data(1)[0], recipes="float16")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 3
    assert "own" in lines[0] and "float16" in lines[0] and "underflow" in lines[1]
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[2].startswith("layer_0 input")


def test_without_products_or_a_loss():
    empty = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.1)])
    assert report(empty, data(1)[0]).rows == {}
    assert "no layer" in str(report(empty, data(1)[0]))
    with pytest.raises(ValueError, match="`loss`"):
        report(net(1))
    with pytest.raises(ValueError, match="`recipe` must be one of.*recipe=3"):
        report(net(1), recipes=3)
    with pytest.raises(ValueError, match="loss"):
        report(net(1), loss=3)
    found = report(net(1), loss="mean_squared_error")
    assert len(found.rows["layer"]) == 3
    assert np.isfinite(found.rows["rms"]).all()
