"""Narrow weights where they meet other features: nothing is lost in silence."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy
from tests.optimizers import small_model
from tests.optimizers.stepper import Stepper

optimizers, layers = ks.optimizers, ks.layers


def model(optimizer, weight_dtype="float16", **kwargs):
    def dense(*args, **more):
        given = {"recipe": "float32", "weight_dtype": weight_dtype}
        return layers.ScaledDense(*args, **given, **more, **kwargs)

    return small_model.build(optimizer, dense)


def test_state_of_roots_and_of_squares_is_not_mixed_up(tmp_path):
    """As many variables would do for Keras to load the one as the other."""
    start = [np.ones((3, 2), np.float32)]
    for source, target in (
        (keras.optimizers.Adam, optimizers.ScaledAdam),
        (optimizers.ScaledAdam, keras.optimizers.Adam),
    ):
        made = []
        for make in (source, target):
            scaled = {"state_dtype": "bfloat16"} if make.__name__ != "Adam" else {}
            made.append(Stepper(make(1e-3, **scaled), start))
        made[0].step(np.float32([[1, 2], [3, 4], [5, 6]]))
        store: dict = {}
        made[0].optimizer.save_own_variables(store)
        before = made[1].state()
        with pytest.warns(UserWarning, match="Skipping variable loading"):
            made[1].optimizer.load_own_variables(store)
        for name, value in made[1].state().items():
            np.testing.assert_array_equal(value, before[name])


def test_a_converted_model_keeps_second_moments():
    """The optimizer's state turns from Keras's own into one of roots, and back."""
    network = model(optimizers.ScaledAdam(1e-3, state_dtype="float32"), None)
    small_model.fit(network)
    ks.unscalify(network)
    exact = network.optimizer.variables[3]
    assert exact.name.endswith("kernel_velocity")
    expected = to_numpy(exact)
    ks.scalify(network, filter=".*", weight_dtype="float16")
    rows = {v.name: to_numpy(v) for v in network.optimizer.variables}
    root = next(rows[name] for name in rows if name.endswith("kernel_velocity_root"))
    np.testing.assert_allclose(root**2, expected, rtol=1e-5, atol=1e-12)


def test_a_frozen_layer_can_be_trained_again():
    stock = keras.layers.Dense(16)
    network = keras.Sequential([keras.Input((16,)), stock, keras.layers.Dense(16)])
    stock.trainable = False
    ks.scalify(network, filter=".*", weight_dtype="float16")
    assert stock.trainable_variables == []
    stock.trainable = True
    names = {v.name for v in stock.trainable_variables}
    assert names == {"kernel", "bias", "scales"}


def test_scales_must_come_with_their_weight():
    layer = layers.ScaledDense(2, weight_dtype="float16", use_bias=False)
    layer.build((None, 2))
    optimizer = optimizers.ScaledAdam()
    gradient = keras.ops.ones((2, 2), "float16")
    with pytest.raises(ValueError, match="must come with that of"):
        optimizer.apply([gradient], [layer.kernel_variable])
    assert np.all(np.isfinite(to_numpy(layer.kernel)))


@pytest.mark.parametrize("use_ema", [False, True])
def test_a_weight_grows_as_far_as_a_wide_one(use_ema):
    small = keras.initializers.RandomNormal(stddev=1e-6, seed=0)
    kernels = []
    for dtype in ("float16", None):
        every = 4 if use_ema else None
        optimizer = optimizers.ScaledAdam(
            1e-2, use_ema=use_ema, ema_overwrite_frequency=every, state_dtype="float32"
        )
        network = model(optimizer, dtype, kernel_initializer=small)
        small_model.fit(network, epochs=8)
        kernels.append(to_numpy(network.layers[1].kernel))
    assert np.abs(kernels[1]).max() > 1e-2
    assert relative_error(*kernels) <= 0.05


def test_an_overflow_stays_visible():
    layer = layers.ScaledDense(2, weight_dtype="float16", use_bias=False)
    layer.build((None, 2))
    optimizer = optimizers.ScaledSGD(1.0)
    gradients = {
        "kernel": keras.ops.full((2, 2), float("inf"), "float16"),
        "scales": keras.ops.zeros(2),
    }
    variables = layer.trainable_variables
    optimizer.apply([gradients[v.name] for v in variables], variables)
    assert np.all(np.isneginf(to_numpy(layer.kernel)))


def test_a_regularizer_does_not_upset_the_first_step():
    kernels = []
    for dtype in ("float16", None):
        regularizer = keras.regularizers.L2(1e-4)
        network = model(
            optimizers.ScaledSGD(1.0), dtype, kernel_regularizer=regularizer
        )
        before = to_numpy(network.layers[0].kernel)
        network.train_on_batch(small_model.X, small_model.Y)
        kernels.append(to_numpy(network.layers[0].kernel) - before)
    assert relative_error(*kernels) <= 0.02


def test_adapters_of_a_narrow_base_train_with_any_optimizer():
    network = model(keras.optimizers.Adam(1e-2))
    for layer in network.layers:
        layer.enable_lora(2)
        layer.bias.trainable = True
    losses = small_model.fit(network, epochs=4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", ["float16", None])
def test_an_embedding_takes_its_table(dtype):
    table = np.float32(np.random.default_rng(0).normal(size=(10, 4)))
    layer = layers.ScaledEmbedding(10, 4, weights=[table], weight_dtype=dtype)
    assert relative_error(layer.embeddings, table) <= (2**-11 if dtype else 0)


def test_averages_are_not_assigned_to_other_variables():
    network = model(optimizers.ScaledAdam(1e-2, use_ema=True), None)
    small_model.fit(network, epochs=1)
    before = small_model.snapshot(network.variables)
    with pytest.raises(ValueError):
        network.optimizer.finalize_variable_values(network.trainable_variables[2:])
    assert not small_model.changed(before, small_model.snapshot(network.variables))
