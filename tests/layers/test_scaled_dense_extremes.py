"""Zeros, tiny, huge and non-finite data: scales stay good, and leave no trace."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, assert_same, relative_error, to_numpy
from tests.layers.layer_cases import FORWARD, RECIPES, built, mlp, normal, scale_states

K, N = 64, 16
SCALED = ["float8", "float8_delayed", "float16"]


def with_row(value, row=2):
    x = normal(8, K)
    x[row] = value
    return x


INPUTS = {
    "zeros": np.zeros((8, K), "float32"),
    "a zero row": with_row(0),
    "1e-40": normal(8, K, scale=1e-40),
    "1e-37": normal(8, K, scale=1e-37),
    "1e30": normal(8, K, scale=1e30),
    "inf": with_row(np.inf),
    "-inf and nan": with_row([-np.inf, np.nan] * (K // 2)),
    "nan": with_row(np.nan),
    "all nan": np.full((8, K), np.nan, "float32"),
    "empty": np.zeros((0, K), "float32"),
}


def scales_of(layer):
    return [float(v) for v in layer.variables if v.name.endswith("_scale")]


@pytest.mark.parametrize("recipe", SCALED)
@pytest.mark.parametrize("name", INPUTS)
def test_outputs_are_right_and_scales_powers_of_two(name, recipe):
    x = INPUTS[name]
    layer = built(K, N, recipe=recipe)
    y = to_numpy(layer(x, training=True))
    assert_power_of_two(scales_of(layer))
    with np.errstate(invalid="ignore"):
        truth = x @ to_numpy(layer.kernel) + to_numpy(layer.bias)
    finite = np.isfinite(x).all(axis=-1)
    # What is not finite must not look finite: loss scaling looks for it.
    assert not np.isfinite(y[~finite]).any()
    assert relative_error(y[finite], truth[finite]) <= FORWARD[1]
    if name in ("zeros", "1e-40"):
        np.testing.assert_allclose(y, np.tile(to_numpy(layer.bias), (8, 1)))
    if recipe != "float8_delayed":  # which looks back: test_scale_state.py
        x = normal(8, K, seed=3)
        truth = x @ to_numpy(layer.kernel) + to_numpy(layer.bias)
        assert relative_error(layer(x), truth) <= FORWARD[1]


@pytest.mark.parametrize("recipe", ["float8", "float16"])
def test_gradients_of_any_magnitude(recipe):
    layer = built(K, N, recipe=recipe, use_bias=False)
    kernel = to_numpy(layer.kernel)
    for magnitude in (0.0, 1e-40, 1e-37, 1e-20, 1e20, 1e30):
        x, g = normal(8, K), normal(8, N, seed=1, scale=magnitude)
        _, dx, (dw,) = pull_back(layer, x, g)
        truths = g.astype("float64") @ kernel.T, x.T @ g.astype("float64")
        for result, truth in zip((dx, dw), truths, strict=True):
            if magnitude > 1e-39:
                assert relative_error(result, truth) <= 0.13, magnitude
            else:
                assert np.all(np.abs(result) <= 1e-38), magnitude


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_bad_gradient_stays_visible(recipe):
    layer = built(K, N, recipe=recipe, use_bias=False)
    for value in (np.inf, np.nan):
        g = normal(8, N)
        g[3, 1] = value
        y, dx, (dw, *_) = pull_back(layer, normal(8, K, seed=1), g, training=True)
        assert np.isfinite(y).all()
        assert not np.isfinite(dx[3]).any() and not np.isfinite(dw[:, 1]).any()
        assert np.isfinite(np.delete(dx, 3, axis=0)).all()
        assert np.isfinite(np.delete(dw, 1, axis=1)).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_empty_batch_gives_empty_outputs_and_zero_gradients(recipe):
    layer = built(K, N, recipe=recipe)
    y, dx, dws = pull_back(layer, INPUTS["empty"], np.zeros((0, N), "float32"))
    assert y.shape == (0, N) and dx.shape == (0, K)
    for dw in dws:
        np.testing.assert_array_equal(dw, 0.0)
    y = layer(np.zeros((2, 0, K), "float32"))
    assert tuple(y.shape) == (2, 0, N)


def test_a_zero_kernel_gets_a_gradient():
    layer = ks.layers.ScaledDense(N, kernel_initializer="zeros")
    layer.build((None, K))
    x, g = normal(8, K), normal(8, N, seed=1)
    y, dx, (dw, _) = pull_back(layer, x, g)
    np.testing.assert_array_equal(y, 0.0)
    np.testing.assert_array_equal(dx, 0.0)
    assert relative_error(dw, x.T @ g) <= 0.13


@pytest.mark.parametrize("recipe", RECIPES)
def test_zero_sample_weights_move_nothing(recipe):
    model = mlp(recipe=recipe)
    model.compile("sgd", "mse")
    kernels = [to_numpy(v) for v in model.trainable_variables if v.ndim]
    model.fit(
        normal(16, 6), normal(16, 3), sample_weight=np.zeros(16), verbose=0, epochs=2
    )
    assert_same([to_numpy(v) for v in model.trainable_variables if v.ndim], kernels)
    assert all(np.isfinite(v).all() for v in scale_states(model).values())


def is_scaled_weight(variable):
    return variable.name in ("kernel", "bias")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_one_bad_batch_leaves_no_trace_once_weights_are_restored(recipe, value):
    bad = np.full((16, 6), value, "float32")
    good, y = normal(16, 6), normal(16, 3, seed=1)
    results = []
    for batches in ((good, good), (good, bad, good)):
        model = mlp(recipe=recipe)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        for batch in batches:
            if batch is bad:
                kept = [to_numpy(v) for v in model.variables]
            model.train_on_batch(batch, y)
            assert all(
                np.isfinite(v).all() and (not k.endswith("_scale") or v > 0)
                for k, v in scale_states(model).items()
            )
            if batch is bad:
                for variable, value in zip(model.variables, kept, strict=True):
                    if is_scaled_weight(variable):
                        variable.assign(value)
        results.append([to_numpy(v) for v in model.variables if is_scaled_weight(v)])
    assert_same(*results)


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_loss_scaling_skips_a_bad_step_as_a_whole(recipe):
    model = mlp(recipe=recipe, dtype="mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(
        ks.optimizers.ScaledAdam(1e-3), initial_scale=2.0**10
    )
    model.compile(optimizer, "mse")
    x, y = normal(16, 6), normal(16, 3, seed=1)
    model.train_on_batch(x, y)
    kernels = [to_numpy(v) for v in model.weights if is_scaled_weight(v)]
    for batch, target in ((np.where(x > 1, np.nan, x), y), (x, y * 1e9)):
        scale = float(optimizer.dynamic_scale)
        model.train_on_batch(batch, target)
        assert float(optimizer.dynamic_scale) == scale / 2
        assert_same(
            [to_numpy(v) for v in model.weights if is_scaled_weight(v)], kernels
        )
        assert all(np.isfinite(v).all() for v in scale_states(model).values())
    model.train_on_batch(x, y)
    moved = [to_numpy(v) for v in model.weights if is_scaled_weight(v)]
    assert all(np.isfinite(v).all() for v in moved)
    assert any(np.any(a != b) for a, b in zip(moved, kernels, strict=True))


def test_logits_of_a_zero_kernel_have_the_loss_of_a_guess():
    model = keras.Sequential(
        [keras.Input((5,)), ks.layers.ScaledDense(10, kernel_initializer="zeros")]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss)
    first = model.train_on_batch(normal(20, 5), np.arange(20) % 10)
    assert abs(float(first) - np.log(10)) < 1e-3
    assert np.any(to_numpy(model.layers[0].kernel) != 0)
    assert np.isfinite(to_numpy(ops.sum(model(normal(4, 5, scale=1e4)))))
