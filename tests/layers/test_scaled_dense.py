"""ScaledDense computes its three products in float8, from the first step on."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, oracle_quantize, relative_error, to_numpy
from tests.layers.layer_cases import (
    FORWARD,
    assert_float8_errors,
    built,
    fit,
    mlp,
    normal,
    scale_states,
)

SIZES = [  # batch, K, N: no multiple of 16 asked for, padding must not show
    (1, 1, 1),
    (7, 712, 10),
    (50, 767, 33),
    (257, 1, 16),
]

# Powers of two apart: (times on the input, on the gradient).
MAGNITUDES = [(1e-6, 1e6), (1.0, 1.0), (1e3, 4e-6), (1e6, 1e-9)]


@pytest.mark.parametrize(
    ("k", "compiled"),
    [(k, True) for k in (1, 3, 16, 64, 1024, 16384)]
    + [(k, False) for k in (1, 64, 16384)],  # JAX compiles every op of every size
)
def test_errors_at_the_first_step(k, compiled):
    x, g = normal(32, k), normal(32, 16, seed=1)
    layer = built(k, 16, use_bias=False)
    for x_scale, g_scale in MAGNITUDES:
        scaled = x * np.float32(x_scale), g * np.float32(g_scale)
        result = pull_back(layer, *scaled, compiled=compiled)
        assert_float8_errors(result, scaled[0], layer.kernel, scaled[1])


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
@pytest.mark.parametrize("mode", ["run_eagerly", "jit", "no_jit"])
def test_the_first_training_step_moves_the_kernel_by_the_gradient(mode, recipe):
    x, g = normal(32, 64, scale=1e-4), normal(32, 8, seed=1, scale=1e-9)
    model = keras.Sequential([keras.Input((64,)), built(64, 8, recipe=recipe)])
    before = to_numpy(model.layers[0].kernel)
    flags = {
        "run_eagerly": {"run_eagerly": True, "jit_compile": False},
        # Torch compiles a training step for a minute: test_torch_compile has the layer
        "jit": {"jit_compile": keras.backend.backend() != "torch"},
        "no_jit": {"jit_compile": False},
    }[mode]
    lr = 2.0**40
    model.compile(keras.optimizers.SGD(lr), lambda g, y: ops.sum(g * y), **flags)
    model.train_on_batch(x, g)
    moved = to_numpy(model.layers[0].kernel).astype("float64") - before
    truth = -lr * (x.astype("float64").T @ g.astype("float64"))
    assert relative_error(moved, truth) <= 0.13


@pytest.mark.parametrize("size", SIZES)
def test_any_size(size):
    batch, k, n = size
    x, g = normal(batch, k), normal(batch, n, seed=1)
    layer = built(k, n, use_bias=False)
    result = pull_back(layer, x, g)
    assert result[0].shape == (batch, n)
    # Sums of few products vary more from draw to draw than the limits allow for.
    if batch * k * n > 1000:
        assert_float8_errors(result, x, layer.kernel, g)
    assert all(np.isfinite(v).all() for v in (*result[:2], *result[2]))


@pytest.mark.parametrize("leading", [(2, 3, 2)])
def test_any_rank_is_the_flat_batch(leading):
    x, g = normal(*leading, 20), normal(*leading, 5, seed=1)
    layer = built(20, 5, activation="tanh")
    y, dx, dws = pull_back(layer, x, g)
    flat = pull_back(layer, x.reshape(-1, 20), g.reshape(-1, 5))
    assert y.shape == (*leading, 5)
    # Another order of the sums, and nothing else.
    np.testing.assert_allclose(y.reshape(-1, 5), flat[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx.reshape(-1, 20), flat[1], rtol=1e-5, atol=1e-6)
    for dw, flat_dw in zip(dws, flat[2], strict=True):
        np.testing.assert_allclose(dw, flat_dw, rtol=1e-5, atol=1e-5)
    shape = layer.compute_output_shape((None, *leading[1:], 20))
    assert shape == (None, *leading[1:], 5)


def test_the_product_itself_is_not_rounded():
    layer = built(64, 64, use_bias=False)
    y, dx, _ = pull_back(layer, normal(64, 64), normal(64, 64, seed=1))
    assert np.unique(y).size > 1000 and np.unique(dx).size > 1000


def test_one_value_everywhere_is_within_half_a_unit_in_the_last_place():
    """Where a power of two rounded the wrong way would saturate or give NaN."""
    layer = built(16, 16, use_bias=False)
    layer.kernel.assign(np.eye(16, dtype="float32"))
    for a in (1.0, 1.25, 1.5, 1.74, 1.76, 1.81, 1.9, 1.99, 3.99, 1.99e-3):
        x = np.full((4, 16), a, "float32")
        y, dx, _ = pull_back(layer, x, x)
        np.testing.assert_allclose(y, x, rtol=0.0625)  # e4m3
        np.testing.assert_allclose(dx, x, rtol=0.125)  # e5m2


def test_an_outlier_saturates_nothing():
    layer = built(1, 1, use_bias=False)
    layer.kernel.assign([[1.0]])
    x = np.float32([[1], [448], [464], [465], [500], [1e6]])
    y = to_numpy(layer(x))
    assert np.isfinite(y).all() and np.all(np.diff(y[:, 0]) >= 0)
    assert abs(y[-1, 0] / 1e6 - 1) <= 0.0625


@pytest.mark.parametrize("dtype", ["int32", "bool", "float64"])
def test_inputs_of_any_dtype_are_cast(dtype):
    x = (np.arange(32).reshape(4, 8) % 5).astype(dtype)
    layer = built(8, 3)
    y = layer(x)
    assert keras.backend.standardize_dtype(y.dtype) == "float32"
    np.testing.assert_array_equal(to_numpy(y), to_numpy(layer(x.astype("float32"))))


@pytest.mark.parametrize("recipe", ["float8", "float16", "bfloat16"])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_policies(policy, recipe):
    layer = built(64, 16, dtype=policy, recipe=recipe, use_bias=False)
    x, g = normal(32, 64), normal(32, 16, seed=1)
    y, dx, (dw,) = pull_back(layer, x.astype(layer.compute_dtype), g)
    kinds = [keras.backend.standardize_dtype(v.dtype) for v in (y, dx, dw)]
    assert kinds == [layer.compute_dtype, "float32", layer.variable_dtype] or kinds == [
        layer.compute_dtype,
        layer.compute_dtype,
        layer.variable_dtype,
    ]
    y, dx, dw = (v.astype("float32") for v in (y, dx, dw))
    if recipe == "float8":
        assert_float8_errors((y, dx, (dw,)), x, layer.kernel, g)
    else:
        assert relative_error(y, x @ to_numpy(layer.kernel)) <= 0.005


def test_the_kernel_is_quantized_from_its_master():
    """A bfloat16 copy on the way would round 1 + 15/256 down, below the tie, to 1."""
    layer = ks.layers.ScaledDense(1, use_bias=False, dtype="mixed_bfloat16")
    layer.build((None, 1))
    above_the_tie = np.float32(1 + 1 / 16 + 2.0**-12)
    layer.kernel.assign([[above_the_tie]])
    assert float(to_numpy(layer(np.ones((1, 1)))).astype("float32")[0, 0]) == 1.125
    assert oracle_quantize(above_the_tie, "float8_e4m3fn", 1.0) == 1.125


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_ways_to_run_agree(recipe):
    ways = [{"run_eagerly": True, "jit_compile": False}, {"jit_compile": False}]
    if keras.backend.backend() != "torch":
        ways.append({"jit_compile": True})
    first, *others = (fit(mlp(recipe=recipe), steps=6, **way) for way in ways)
    for other in others:
        for a, b in zip(
            first.trainable_variables, other.trainable_variables, strict=True
        ):
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=1e-6)
        mine, theirs = scale_states(first), scale_states(other)
        scales = [key for key in mine if key.endswith("_scale")]
        assert scales and mine.keys() == theirs.keys()
        for key in scales:
            np.testing.assert_array_equal(mine[key], theirs[key], err_msg=key)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="Torch's own compiler")
def test_torch_compile():
    import torch

    x, layer = normal(16, 32), built(32, 8, use_bias=False)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    y = compiled(torch.from_numpy(x))
    np.testing.assert_array_equal(to_numpy(y), to_numpy(layer(x)))


def test_scales_are_readable_powers_of_two():
    layer = built(8, 4)
    scales = [layer.input_scale, layer.kernel_scale]
    layer(normal(4, 8, scale=100.0), training=True)
    assert_power_of_two([float(s) for s in scales])
    amaxes = (
        np.abs(normal(4, 8, scale=100.0)).max(),
        np.abs(to_numpy(layer.kernel)).max(),
    )
    for scale, amax in zip(scales, amaxes, strict=True):
        assert 224 < amax / float(scale) <= 448
    assert layer.gradient_scale is None  # measured and used inside the backward pass
    delayed = built(8, 4, recipe="float8_delayed")
    assert float(delayed.gradient_scale) == 1.0
    identity = built(8, 4, recipe="float32")
    assert (
        identity.input_scale is identity.kernel_scale is identity.gradient_scale is None
    )


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_only_training_steps_change_the_scales(recipe):
    model = fit(mlp(recipe=recipe))
    before = {key: value.copy() for key, value in scale_states(model).items()}
    x = normal(32, 6, scale=1000.0)
    first = model.predict(x, verbose=0)
    model.evaluate(x, normal(32, 3), verbose=0)
    model(x), model(x, training=False), model(keras.Input((6,)))
    model(keras.Input((6,)), training=True)
    np.testing.assert_array_equal(first, model.predict(x, verbose=0))
    after = scale_states(model)
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key], err_msg=key)
    model.train_on_batch(x, normal(32, 3))
    assert any(np.any(v != before[k]) for k, v in scale_states(model).items())


def test_validation_changes_nothing():
    x, y = normal(32, 6), normal(32, 3)
    results = []
    for validation in (None, (1000 * x, y)):
        model = mlp(recipe="float8_delayed")
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(x, y, epochs=2, shuffle=False, verbose=0, validation_data=validation)
        results.append([to_numpy(v) for v in model.variables])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_seed_gives_the_kernel_of_dense():
    kernels = []
    for cls in (keras.layers.Dense, ks.layers.ScaledDense):
        keras.utils.set_random_seed(7)
        layer = cls(5)
        layer.build((None, 9))
        kernels.append(to_numpy(layer.kernel))
    np.testing.assert_array_equal(*kernels)


def test_matmul_forms_agree(monkeypatch):
    results = []
    for form in ("native", "emulated"):
        monkeypatch.setattr(ks.config, "_matmul", form)
        layer = built(48, 8, use_bias=False)
        results.append(pull_back(layer, normal(16, 48), normal(16, 8, seed=1)))
    for a, b in zip(*((y, dx, dw) for y, dx, (dw,) in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_margin_of_delayed_scaling_shifts_the_scale():
    recipe = ks.Recipe(
        input_scaling="delayed",
        kernel_scaling="delayed",
        gradient_scaling="delayed",
        margin=2,
    )
    x, g = normal(16, 8), normal(16, 4, seed=1)
    layer, plain = built(8, 4, recipe=recipe), built(8, 4, recipe="float8_delayed")
    for each in (layer, plain):
        each(x, training=True)
    for role in ("input", "kernel"):
        scales = [float(getattr(v, f"{role}_scale")) for v in (layer, plain)]
        assert scales[0] == 4 * scales[1]
    y = pull_back(layer, x, g)[0]
    truth = x @ to_numpy(layer.kernel) + to_numpy(layer.bias)
    assert relative_error(y, truth) <= FORWARD[1]
