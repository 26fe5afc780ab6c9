"""Training kernels that rest in 16 bits."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.ops.narrow_weight import (
    SCALE,
    UNIT,
    next_scale,
    next_unit,
)
from tests.helpers import assert_power_of_two, relative_error, to_numpy
from tests.optimizers import small_model

layers, optimizers = ks.layers, ks.optimizers
DTYPES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # and the error of a rounding
RNG = np.random.default_rng(0)


def as_data(layer):
    return to_numpy(layer.kernel_variable).astype(np.float32)


def scales(layer):
    return to_numpy(layer.weight_scales.scales)


def test_units_follow_the_gradient_whatever_both_are_divided_by():
    for amax, calls, divisor in ((1e-9, 1, 1), (3.0, 4, 2.0**15), (1e9, 2, 7)):
        gradient = np.float32([calls, calls * amax]) / divisor
        unit = float(next_unit(np.float32(1), np.float32(gradient)))
        assert 0.5 <= unit * amax <= 2.0 and np.frexp(unit)[0] == 0.5
    for gradient in ([0, 0], [1, 0], [1, np.inf], [np.nan, 1]):
        assert float(next_unit(np.float32(8), np.float32(gradient))) == 8


def test_scales_move_only_at_the_ends_of_the_range():
    for amax in (0.0, 0.25, 64.0, 4096.0):
        assert float(next_scale(np.float32(2), np.float32(amax))) == 2
    for amax in (0.2, 5000.0, 60000.0, 6e-8):
        scale = float(next_scale(np.float32(2), np.float32(amax)))
        assert 2**6 <= amax * 2 / scale <= 2**7


ALL = {
    "adam": lambda **k: optimizers.ScaledAdam(1e-2, **k),
    "adamw": lambda **k: optimizers.ScaledAdamW(1e-2, weight_decay=0.1, **k),
    "lion": lambda **k: optimizers.ScaledLion(1e-3, **k),
    "sgd": lambda **k: optimizers.ScaledSGD(0.05, **k),
    "momentum": lambda **k: optimizers.ScaledSGD(0.02, momentum=0.9, **k),
}
OPTIONS = {
    "clipped": ("adamw", {"global_clipnorm": 0.5}),
    "accumulated": ("adamw", {"gradient_accumulation_steps": 2}),
    "averaged": ("adam", {"use_ema": True, "ema_overwrite_frequency": 3}),
    "wide state": ("adamw", {"state_dtype": "float32"}),
    "byte state": ("adam", {"state_dtype": "float8", "min_size": 0}),
}
OPTIONS |= {name: (name, {}) for name in ALL}


def trained(name, options, weight_dtype, wrap=lambda o: o):
    def dense(*args, **kwargs):
        given = {"recipe": "float32", "weight_dtype": weight_dtype}
        return layers.ScaledDense(*args, **given, **kwargs)

    model = small_model.build(wrap(ALL[name](**options)), dense)
    losses = small_model.fit(model, epochs=6)
    return model, losses


@pytest.mark.parametrize("case", OPTIONS)
def test_every_optimizer_trains_it_like_wide_weights(case):
    """In 24 steps, to the error of the roundings, which are at random."""
    tolerance = 0.05 if case == "byte state" else 0.02
    name, options = OPTIONS[case]
    narrow, losses = trained(name, options, "float16")
    plain, expected = trained(name, options, None)
    np.testing.assert_allclose(losses, expected, rtol=0.02)
    for a, b in zip(narrow.layers, plain.layers, strict=True):
        assert relative_error(a.kernel, b.kernel) <= tolerance
        assert_power_of_two(scales(a))


def test_loss_scaling_changes_nothing_and_skips_infinities():
    def wrap(optimizer):
        return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)

    scaled, losses = trained("adam", {}, "float16", wrap)
    plain, expected = trained("adam", {}, "float16")
    np.testing.assert_allclose(losses, expected, rtol=0.02)
    before = small_model.snapshot(scaled.trainable_variables)
    small_model.fit(scaled, small_model.X * np.inf, epochs=1)
    after = small_model.snapshot(scaled.trainable_variables)
    assert not small_model.changed(before, after)


def test_a_shared_layer_adds_the_gradients_of_its_calls():
    layer = layers.ScaledDense(4, recipe="float32", weight_dtype="float16")
    x = keras.Input((4,))
    model = keras.Model(x, layer(layer(x)))
    model.compile(optimizers.ScaledAdam(1e-2), "mse")
    data = np.float32(RNG.normal(size=(64, 4)))
    history = model.fit(data, data, batch_size=8, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.2 * history["loss"][0]


def bare(units, rows, optimizer, **kwargs):
    """A layer of one kernel, and a function that applies a gradient of it."""
    layer = layers.ScaledDense(units, recipe="float32", use_bias=False, **kwargs)
    layer.build((None, rows))
    kernel, factors = layer.trainable_variables
    optimizer.build([kernel, factors])

    def apply(gradient, unit):
        factors.assign([scales(layer)[SCALE], unit])
        g = keras.ops.cast(np.full((rows, units), gradient * unit), kernel.dtype)
        optimizer.apply([g, keras.ops.zeros(2)], [kernel, factors])

    return layer, apply


def test_weights_grow_and_shrink_without_end():
    """The scale follows over 40 powers of two and more."""
    given = {"weight_dtype": "float16", "kernel_initializer": "zeros"}
    layer, apply = bare(2, 2, optimizers.ScaledSGD(1.0), **given)
    for exponent in (*range(-32, 32, 4), *range(32, -32, -4)):
        target = 1.5 * 2.0**exponent
        apply(to_numpy(layer.kernel)[0, 0] - target, unit=2.0**-exponent)
        np.testing.assert_allclose(to_numpy(layer.kernel), target, rtol=2**-5)
        assert_power_of_two(scales(layer))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_steps_and_decay_are_not_rounded_away(dtype):
    """100 steps and decays of a hundredth of a unit in the last place."""
    size, given = DTYPES[dtype] / 100, {"kernel_initializer": "ones"}
    optimizer = optimizers.ScaledAdamW(size, weight_decay=1.0, epsilon=0.0)
    layer, apply = bare(64, 64, optimizer, weight_dtype=dtype, **given)
    expected = 1.0
    for _ in range(100):
        apply(1.0, unit=1.0)
        expected -= size * (expected + 1)
    moved = 1 - to_numpy(layer.kernel).mean()
    assert abs(moved / (1 - expected) - 1) <= 0.05


def test_a_stock_optimizer_is_refused():
    def dense(*args, **kwargs):
        return layers.ScaledDense(*args, weight_dtype="float16", **kwargs)

    model = small_model.build(keras.optimizers.Adam(), dense)
    with pytest.raises(ValueError, match="`weight_dtype` must be trained with"):
        small_model.fit(model)


def test_constraints_and_regularizers_are_of_the_weight():
    layer = layers.ScaledDense(
        3,
        weight_dtype="float16",
        kernel_initializer=keras.initializers.Constant(0.5),
        kernel_constraint=keras.constraints.MaxNorm(0.25, axis=0),
        kernel_regularizer=keras.regularizers.L2(0.1),
        use_bias=False,
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    assert to_numpy(layer.losses[0]) == pytest.approx(0.1 * 12 * 0.25)
    model.compile(optimizers.ScaledAdam(1e-4), "mse")
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 3), "float32"), verbose=0)
    norms = np.linalg.norm(to_numpy(layer.kernel), axis=0)
    np.testing.assert_allclose(norms, 0.25, rtol=2e-3)


def test_saved_models_go_on_training_as_they_would_have(tmp_path):
    def dense(*args, **kwargs):
        return layers.ScaledDense(*args, weight_dtype="float16", **kwargs)

    model = small_model.build(optimizers.ScaledAdam(1e-2), dense)
    small_model.fit(model)
    model.save(path := tmp_path / "model.keras")
    loaded = keras.models.load_model(path)
    assert small_model.fit(model) == small_model.fit(loaded)
    for a, b in zip(model.layers, loaded.layers, strict=True):
        np.testing.assert_array_equal(as_data(a), as_data(b))
        np.testing.assert_array_equal(scales(a)[UNIT], scales(b)[UNIT])


def test_lora_keeps_a_narrow_base():
    layer = layers.ScaledDense(5, weight_dtype="float16", name="d")
    model = keras.Sequential([keras.Input((3,)), layer])
    layer.enable_lora(2)
    model.compile(optimizers.ScaledAdam(1e-2), "mse")
    before, scale = as_data(layer), scales(layer)[SCALE]
    x, y = np.ones((8, 3), "float32"), np.ones((8, 5), "float32")
    losses = model.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(as_data(layer), before)
    assert scales(layer)[SCALE] == scale
