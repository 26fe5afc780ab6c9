"""scalify converts what it should, changes nothing else, and can be undone."""

import re

import keras
import numpy as np
import pytest
from keras import layers

import keras_scalify as ks
from keras_scalify.layers import keras_private
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from tests.conversion.converted import (
    INSIDE_BLOCKS,
    SEQUENCE,
    Subclassed,
    blocks,
    mlp,
    predict,
    state,
    values,
)
from tests.helpers import assert_same, relative_error
from tests.layers.layer_cases import normal


def paths(model):
    return [row.path for row in ks.scalify_report(model).converted]


def test_the_layers_are_converted_and_the_model_stays():
    model, x = blocks(), normal(2, *SEQUENCE)
    y, summary = predict(model, x), []
    before = state(model)
    model.summary(print_fn=summary.append)
    variables = model.variables
    assert ks.scalify(model, recipe="float32") is model
    assert paths(model) == INSIDE_BLOCKS
    assert all(a is b for a, b in zip(variables, model.variables, strict=True))
    assert_same(predict(model, x), y)
    ks.unscalify(model)
    assert state(model) == before
    ks.scalify(model)
    assert 0.005 < relative_error(predict(model, x), y) < 0.15
    again = []
    model.summary(print_fn=again.append)
    name = re.compile(r"^. (\w+) ", re.M)
    assert name.findall("\n".join(again)) == name.findall("\n".join(summary))
    ks.unscalify(model)
    assert state(model) == before
    assert_same(predict(model, x), y)


def test_a_layer_that_the_user_scaled_becomes_one_of_keras():
    model = keras.Sequential([keras.Input((8,)), ks.layers.ScaledDense(4)])
    x, kernel = normal(2, 8), model.layers[0].kernel
    ks.unscalify(model)
    assert type(model.layers[0]) is layers.Dense
    assert model.layers[0].kernel is kernel
    assert relative_error(predict(model, x), (x @ kernel).ravel()) < 1e-6


def test_a_subclassed_model():
    model, x = Subclassed(), normal(2, *SEQUENCE)
    with pytest.raises(ValueError, match="`model` must be built.*subclassed"):
        ks.scalify(model)
    model(x)
    ks.scalify(model)
    report = ks.scalify_report(model)
    assert len(report.converted) == 6
    assert [row.reason for row in report.left] == ["projection to the output"]


REASONS = {
    "embedding": (lambda: layers.Embedding(20, 16), "embedding"),
    "small": (lambda: layers.Dense(15), "a size below 16: nothing to gain"),
    "norm": (lambda: layers.LayerNormalization(), "has no product with a kernel here"),
    "trace": (
        lambda: layers.EinsumDense("abc,cd->ad", (16,)),
        "its equation is no product: abc,cd->ad",
    ),
    "own": (lambda: Own(16), "a subclass of Dense with code of its own"),
    "fine": (lambda: layers.Dense(16), ""),
}


class Own(layers.Dense):
    def call(self, inputs):
        return 2 * super().call(inputs)


@pytest.mark.parametrize("name", REASONS)
def test_why_a_layer_is_left_alone(name):
    make, reason = REASONS[name]
    shape, dtype = ((6,), "int32") if name == "embedding" else (SEQUENCE, "float32")
    inputs = keras.Input(shape, dtype=dtype)
    layer = make()
    model = keras.Model(inputs, layers.Dense(16)(layer(inputs)))
    row = ks.scalify_report(model).rows[0]
    assert (row.layer, row.reason) == (layer, reason)
    assert bool(row.target) == (reason == "")
    line = str(ks.scalify_report(model)).splitlines()[1]
    assert layer.name in line and (reason or "would be converted") in line


FILTERS = {
    "regex": ("mlp/", INSIDE_BLOCKS[-2:]),
    "head": ("logits", ["logits"]),
    "callable": (lambda path, layer: layer.name == "each", ["wrapper/each"]),
    "list": ([re.compile("each$"), "^logits"], ["wrapper/each", "logits"]),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filter(name):
    accepts, expected = FILTERS[name]
    assert paths(ks.scalify(blocks(), filter=accepts)) == expected


def test_bad_arguments_leave_the_model_as_it_was():
    model = mlp()
    before = state(model)
    for settings, message in (
        ({"recipe": "float7"}, "`recipe` must be one of.*float7"),
        ({"filter": 3}, "`filter` must be.*filter=3"),
        ({"weight_dtype": "int4"}, "`weight_dtype` must be.*int4"),
        ({"color": "red"}, "color"),
    ):
        with pytest.raises(ValueError, match=message):
            ks.scalify(model, **settings)
    assert state(model) == before


@pytest.mark.parametrize("weight_dtype", [None, "float16"])
def test_a_failure_undoes_all(monkeypatch, weight_dtype):
    model, calls = blocks(), []
    before, variables = state(model), model.variables
    add_state = QuantizedKernel.add_state

    def fails_at_the_fourth(self):
        add_state(self)
        calls.append(self)
        if len(calls) == 4:
            raise RuntimeError("no memory")

    monkeypatch.setattr(QuantizedKernel, "add_state", fails_at_the_fourth)
    with pytest.raises(RuntimeError, match="no memory"):
        ks.scalify(model, weight_dtype=weight_dtype)
    assert state(model) == before
    assert all(a is b for a, b in zip(variables, model.variables, strict=True))


def test_converting_twice_changes_nothing_and_says_so():
    model = ks.scalify(mlp())
    before = state(model)
    with pytest.warns(UserWarning, match="found no layer.*2 are scaled already"):
        assert ks.scalify(model) is model
    assert state(model) == before


def test_no_memory_for_the_weights():
    """The scales are all that a conversion adds."""
    model = mlp((256, 256, 4), inputs=256)
    before = {id(v.value) for v in model.variables}
    ks.scalify(model)
    added = [v for v in model.variables if id(v.value) not in before]
    assert all(tuple(v.shape) == () for v in added) and len(added) == 4


@pytest.mark.parametrize("recipe", ["float32", "float8", "float8_delayed"])
def test_a_compiled_model_trains_on(recipe):
    """float32: as if nothing had happened; else close to it, the optimizer goes on."""
    x, y = normal(32, 16), normal(32, 4, seed=1)
    losses = []
    for converts in False, True:
        keras.utils.set_random_seed(0)
        model = mlp()
        jit = keras.backend.backend() == "jax"
        model.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=jit)
        fit = {"epochs": 3, "batch_size": 16, "shuffle": False, "verbose": 0}
        model.fit(x, y, **fit)
        if converts:
            ks.scalify(model, recipe)
        model.fit(x, y, **fit)
        assert int(model.optimizer.iterations) == 12
        losses.append(model.evaluate(x, y, verbose=0))
        if converts:
            ks.unscalify(model)
            model.fit(x, y, **fit)
            assert int(model.optimizer.iterations) == 18
    limit = 0.0 if recipe == "float32" else 0.05
    assert abs(losses[1] - losses[0]) <= limit * losses[0]


def test_a_kernel_in_16_bits_keeps_its_value():
    model, x = mlp(), normal(4, 16)
    y, names = predict(model, x), [v.path for v in model.variables]
    old = values(model)
    ks.scalify(model, recipe="float32", weight_dtype="float16")
    assert relative_error(predict(model, x), y) < 2**-10
    ks.unscalify(model)
    assert [v.path for v in model.variables] == names
    for a, b in zip(values(model), old, strict=True):
        np.testing.assert_allclose(a, b, rtol=2**-11)


def test_a_narrow_kernel_that_lora_froze_stays_frozen_with_its_scales():
    model = mlp()
    model.layers[0].enable_lora(2)
    before = [v.path for v in model.trainable_variables]
    ks.scalify(model, filter="dense", recipe="float32", weight_dtype="float16")
    added = {v.path for v in model.trainable_variables} - set(before)
    narrow = [layer.weight_scales.scales.path for layer in model.layers[1:]]
    assert added == set(narrow)


def test_a_kernel_that_two_layers_hold_cannot_be_replaced():
    model = keras.Sequential(
        [
            keras.Input((16,)),
            layers.SpectralNormalization(layers.Dense(16, name="inner"), name="outer"),
            layers.Dense(4),
        ]
    )
    before = state(model)
    with pytest.raises(ValueError, match="`weight_dtype`.*outer.*holds.*outer/inner"):
        ks.scalify(model, weight_dtype="float16")
    assert state(model) == before
    assert paths(ks.scalify(model)) == ["outer/inner"]


class Squares(keras.regularizers.Regularizer):
    """Without a config, as many write their own."""

    def __call__(self, w):
        return keras.ops.sum(w**2)


class Clipped:
    def __call__(self, w):
        return keras.ops.clip(w, -1.0, 1.0)


@pytest.mark.parametrize("propagate", [False, True])
def test_objects_without_a_config_stay_the_same_ones(propagate):
    given = {"kernel_regularizer": Squares(), "kernel_constraint": Clipped()}
    x = inputs = keras.Input(SEQUENCE)
    dense, attention = (
        layers.Dense(16, **given),
        layers.MultiHeadAttention(2, 8, **given),
    )
    x = attention(dense(x), dense(x))
    model = keras.Model(inputs, layers.Dense(4)(x))
    before = state(model)
    scaled = ks.scalify(model, propagate=propagate)
    for layer in dense, attention.query_dense:
        assert isinstance(layer, QuantizedKernel)
        assert {name: getattr(layer, name) for name in given} == given
    assert len(scaled.losses) == 5
    ks.unscalify(scaled)
    assert state(model) == before


def test_other_settings_reach_the_layers_and_their_configs():
    model = blocks()
    before = state(model)
    ks.scalify(model, monitor=True)
    for each in model, keras.models.clone_model(model):
        rows = ks.scalify_report(each).converted
        assert [row.path for row in rows] == INSIDE_BLOCKS
        assert all(row.layer.statistics is not None for row in rows)
    ks.unscalify(model)
    assert state(model) == before


def test_keras_has_what_the_conversion_relies_on():
    layer = layers.Dense(2)
    layer.build((None, 3))
    assert keras_private.missing(layer) == [], (
        f"Keras {keras.__version__} has changed what layers/keras_private.py relies on:"
        " adapt that file"
    )
    graph = mlp()
    operation, inputs = keras_private.source(graph.outputs[0])
    assert operation is graph.layers[-1]
    assert keras_private.source(inputs[0])[0] is graph.layers[-2]
    assert (graph.layers[0], graph.layers[1]) in keras_private.edges(graph)


def test_a_tied_embedding_becomes_a_reversible_one(tmp_path):
    table = ks.layers.ScaledEmbedding(9, 16, recipe="float32")
    ids = keras.Input((3,), dtype="int32")
    model, x = keras.Model(ids, table(table(ids), reverse=True)), np.arange(6) % 9
    x = x.reshape(2, 3).astype("int32")
    y = predict(model, x)
    for _ in range(2):
        ks.unscalify(model)
        assert type(model.layers[-1]) is layers.ReversibleEmbedding
        model.save(tmp_path / "model.keras")
        for each in model, keras.models.load_model(tmp_path / "model.keras"):
            assert_same(predict(each, x), y)
        ks.scalify(model, "float32", filter="")
        assert type(model.layers[-1]) is ks.layers.ScaledEmbedding
        assert_same(predict(model, x), y)
