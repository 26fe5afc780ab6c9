"""ScaledAdam's steps: tiny and huge gradients, clipping, decay, arguments."""

import copy
import importlib

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy
from tests.optimizers.stepper import BACKEND, Stepper

ScaledAdam = ks.optimizers.ScaledAdam
NARROW = ("float16", "bfloat16")
WEIGHTS = ("float32", "float16", "bfloat16")
ULP = {"float32": 2e-7, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # just below 1


def full(value, shape=(4,)):
    return np.full(shape, value, np.float32)


# Gradients of 1e-12 to 1e10 in one optimizer, a variable each.
SIZES = (1e-12, 1e-6, 1e-4, 5e-3, 1.0, 1e4, 1e10)


@pytest.mark.parametrize("state_dtype", NARROW)
def test_first_steps_do_not_depend_on_the_gradients_size(state_dtype):
    """The first step is lr; the next ones read what was stored, half an ulp off."""
    cases = [(size, weight) for size in SIZES for weight in WEIGHTS]
    sizes, weights = zip(*cases, strict=True)
    optimizer = ScaledAdam(1e-3, epsilon=1e-20, state_dtype=state_dtype)
    stepper = Stepper(optimizer, [full(0.0, (64,))] * len(cases), weights)
    sign = np.tile(np.float32([1, -1]), 32)
    for step in range(1, 6):
        stepper.step(*[sign * np.float32(size) for size in sizes])
        for weight, value in zip(weights, stepper.values(), strict=True):
            coarse = step > 1 and "bfloat16" in (state_dtype, weight)
            tolerance = 0.05 if coarse else 0.02
            np.testing.assert_allclose(value * sign, -1e-3 * step, rtol=tolerance)


@pytest.mark.parametrize("state_dtype", NARROW)
def test_one_variable_of_small_and_large_gradients(state_dtype):
    """The three numbers of a public report: in plain float16, v is 0 or infinite."""
    start = np.float32([0.579, -0.729, 0.5493])
    g = np.float32([-1.497e-3, 1.875e-4, -1.3176e-2])
    optimizer = ScaledAdam(1e-4, epsilon=1e-8, state_dtype=state_dtype)
    stepper = Stepper(optimizer, [start]).step(g)
    moved = stepper.values()[0] - start
    np.testing.assert_allclose(moved, [1e-4, -1e-4, 1e-4], rtol=0.03)


@pytest.mark.parametrize("state_dtype", NARROW)
def test_coefficients_do_not_round_to_one(state_dtype):
    """In bfloat16, beta_2 = 0.999 is 1: Keras's Adam never moves such a variable."""
    optimizer = ScaledAdam(1e-2, state_dtype=state_dtype)
    stepper = Stepper(optimizer, [full(1)] * 3, WEIGHTS).step(*[full(1)] * 3)
    for weight, value in zip(WEIGHTS, stepper.values(), strict=True):
        np.testing.assert_allclose(value, 0.99, rtol=0, atol=ULP[weight])

    optimizer = ScaledAdam(1e-3, state_dtype=state_dtype)
    stepper = Stepper(optimizer, [full(0.1, (1024,))] * 3, WEIGHTS)
    start = stepper.values()
    for _ in range(20):
        stepper.step(*[full(1, (1024,))] * 3)
    # Each weight is rounded at random; their mean is not.
    for value, origin in zip(stepper.values(), start, strict=True):
        assert np.mean(value - origin) == pytest.approx(-0.02, rel=0.05)


@pytest.mark.parametrize("state_dtype", NARROW)
def test_betas_are_told_apart(state_dtype):
    roots = []
    for beta_2 in (0.999, 0.9999):
        optimizer = ScaledAdam(beta_2=beta_2, state_dtype=state_dtype)
        roots.append(
            Stepper(optimizer, [full(0)]).step(full(1)).moment("velocity_root")
        )
    np.testing.assert_allclose(roots[0], 0.001**0.5, rtol=2.0**-7)
    np.testing.assert_allclose(roots[1], 0.0001**0.5, rtol=2.0**-7)


@pytest.mark.parametrize("state_dtype", NARROW)
@pytest.mark.parametrize(
    "options",
    [{"epsilon": 1e-8}, {"epsilon": 0.0}, {"epsilon": 0.0, "amsgrad": True}],
)
def test_zero_gradients_change_nothing(state_dtype, options):
    """In float16, epsilon = 1e-8 is 0 and the update 0 / 0."""

    def build(start):
        optimizer = ScaledAdam(1e-3, state_dtype=state_dtype, **options)
        return Stepper(optimizer, [start] * 3, WEIGHTS)

    stepper = build(np.float32(np.random.default_rng(0).normal(size=(4,))))
    before = stepper.values()
    for _ in range(3):
        stepper.step(*[full(0)] * 3)
    for value, origin in zip(stepper.values(), before, strict=True):
        np.testing.assert_array_equal(value, origin)
    for name, value in stepper.state().items():
        assert np.all(np.isfinite(np.float32(value))), name
    for value in build(full(0)).step(*[full(1)] * 3).values():
        np.testing.assert_allclose(value, -1e-3, rtol=0.01)


def test_a_row_without_gradient_stays():
    """As an unused row of an embedding: it neither moves nor becomes NaN."""
    for epsilon in (1e-7, 0.0):
        start = np.float32(np.random.default_rng(0).normal(size=(3, 4)))
        stepper = Stepper(ScaledAdam(0.1, epsilon=epsilon), [start])
        for step in range(50):
            g = np.float32(np.random.default_rng(step).normal(size=(3, 4)))
            g[1] = 0
            stepper.step(g)
        np.testing.assert_array_equal(stepper.values()[0][1], start[1])
        assert np.all(np.abs(stepper.values()[0] - start)[[0, 2]] > 0)
        assert np.all(np.isfinite(stepper.values()[0]))


def test_any_shape():
    shapes = [(), (1,), (0,), (3, 1, 2), (300,)]
    stepper = Stepper(ScaledAdam(1e-3), [np.zeros(shape) for shape in shapes])
    stepper.step(*[full(1, shape) for shape in shapes])
    for shape, value in zip(shapes, stepper.values(), strict=True):
        assert value.shape == shape
        np.testing.assert_allclose(value, -1e-3, rtol=0.02)


def test_a_small_rate_is_not_lost():
    stepper = Stepper(ScaledAdam(1e-7), [full(0)]).step(full(1))
    np.testing.assert_allclose(stepper.values()[0], -1e-7, rtol=0.02)


CLIPPINGS = ({"clipnorm": 1.0}, {"clipvalue": 0.5}, {"global_clipnorm": 1.0}, {})


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_clipping_sees_unscaled_gradients(clipping):
    """With a large epsilon the size of the gradient shows in the step."""
    g, factor = np.float32([6, 8]), 2.0**10
    inner = ScaledAdam(1e-2, epsilon=0.1, **clipping)
    wrapped = keras.optimizers.LossScaleOptimizer(inner, initial_scale=factor)
    scaled = Stepper(wrapped, [np.zeros(2)])
    static = ScaledAdam(1e-2, epsilon=0.1, loss_scale_factor=factor, **clipping)
    static = Stepper(static, [np.zeros(2)])
    plain = Stepper(keras.optimizers.Adam(1e-2, epsilon=0.1, **clipping), [np.zeros(2)])
    for _ in range(5):
        scaled.step(g * factor), static.step(g * factor), plain.step(g)
    for stepper in (scaled, static):
        assert relative_error(stepper.values()[0], plain.values()[0]) <= 0.02


def test_weight_decay_is_exact_and_excludes():
    kernel, bias = np.float32([1.0, -2.0, 3.0]), np.float32([0.5, 0.25])
    optimizer = ScaledAdam(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["variable_1"])
    stepper = Stepper(optimizer, [kernel, bias])
    stepper.step(np.zeros(3, np.float32), np.zeros(2, np.float32))
    np.testing.assert_allclose(stepper.values()[0], 0.95 * kernel, rtol=1e-6)
    np.testing.assert_array_equal(stepper.values()[1], bias)


@pytest.mark.parametrize("state_dtype", ["float32", *NARROW])
def test_accumulated_microbatches_are_one_batch(state_dtype):
    """One decay and one bias correction for three microbatches."""
    start = np.float32(np.random.default_rng(0).normal(size=(16,)))

    def build(**kwargs):
        optimizer = ScaledAdam(
            1e-2, weight_decay=0.1, state_dtype=state_dtype, **kwargs
        )
        return Stepper(optimizer, [start])

    whole, parts = build(), build(gradient_accumulation_steps=3)
    rng = np.random.default_rng(1)
    for update in range(3):
        gradients = np.float32(rng.normal(size=(3, 16)))
        before = parts.values()[0]
        for g in gradients[:2]:
            parts.step(g)
        np.testing.assert_array_equal(parts.values()[0], before)
        parts.step(gradients[2])
        whole.step(gradients.mean(0))
        assert to_numpy(parts.optimizer.iterations) == update + 1
        assert relative_error(parts.values()[0], whole.values()[0]) <= 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clipnorm": 0.1},
        {"global_clipnorm": 0.1},
        {"clipvalue": 0.01},
        {"gradient_accumulation_steps": 2},
        {"use_ema": True},
        {"state_dtype": "bfloat16", "amsgrad": True},
    ],
)
def test_sparse_gradients_are_dense_ones(options):
    """TensorFlow's Embedding gives IndexedSlices, an index perhaps twice."""
    start = np.float32(np.random.default_rng(0).normal(size=(10, 4)))
    sparse, dense = (Stepper(ScaledAdam(1e-2, **options), [start]) for _ in range(2))
    for step in range(6):
        rows = np.float32(np.random.default_rng(step).normal(size=(3, 4)))
        indices = [1, 1, 2] if step % 2 else [1, 2, 3]
        whole = np.zeros((10, 4), np.float32)
        np.add.at(whole, indices, rows)
        dense.step(whole)
        sparse.step(_slices(rows, indices, (10, 4)))
    # Which order an index's rows are summed in is the backend's choice.
    np.testing.assert_allclose(sparse.values()[0], dense.values()[0], atol=1e-5)
    for stepper in (sparse, dense):
        unused = [0, 4, 5, 6, 7, 8, 9]
        np.testing.assert_array_equal(stepper.values()[0][unused], start[unused])
        assert np.all(stepper.values()[0][1:4] != start[1:4])


def _slices(rows, indices, shape):
    if BACKEND == "tensorflow":
        tf = importlib.import_module("tensorflow")
        return tf.IndexedSlices(
            tf.constant(rows), tf.constant(indices), tf.constant(shape)
        )
    whole = np.zeros(shape, np.float32)
    np.add.at(whole, indices, rows)
    return whole


WRONG = [
    ({"state_dtype": "float8_e4m3fn"}, ("state_dtype", "float8_e4m3fn", "float16")),
    ({"state_dtype": "float64"}, ("state_dtype", "float64", "bfloat16")),
    ({"state_dtype": None}, ("state_dtype", "None", "float32")),
    ({"state_dtype": 16}, ("state_dtype", "16", "float32")),
    ({"state_dtype": ["float16"]}, ("state_dtype", "['float16']", "float32")),
    ({"seed": 1.5}, ("seed", "1.5", "integer")),
    ({"seed": True}, ("seed", "True", "integer")),
    ({"seed": "0"}, ("seed", "'0'", "integer")),
    ({"clipnorm": 1.0, "clipvalue": 1.0}, ("clipnorm", "clipvalue", "1.0")),
    ({"state_type": "float16"}, ("state_type", "float16", "not recognized")),
]


@pytest.mark.parametrize("optimizer", [ScaledAdam, ks.optimizers.ScaledAdamW])
@pytest.mark.parametrize(("kwargs", "words"), WRONG)
def test_wrong_arguments(optimizer, kwargs, words):
    with pytest.raises(ValueError) as error:
        optimizer(**kwargs)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("optimizer", [ScaledAdam, ks.optimizers.ScaledAdamW])
def test_config_gives_the_same_training(optimizer):
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5)
    first = optimizer(
        schedule, state_dtype="bfloat16", seed=7, amsgrad=True, clipnorm=1.0
    )
    config = keras.optimizers.serialize(first)
    second = keras.optimizers.deserialize(copy.deepcopy(config))
    assert type(second) is optimizer
    assert keras.optimizers.serialize(second) == config
    assert (second.state_dtype, second.seed, second.amsgrad) == ("bfloat16", 7, True)
    steppers = [Stepper(o, [np.zeros(64)]) for o in (first, second)]
    for step in range(5):
        g = np.float32(np.random.default_rng(step).normal(size=64))
        for stepper in steppers:
            stepper.step(g)
    np.testing.assert_array_equal(*(s.values()[0] for s in steppers))


def test_documented_defaults():
    adam, adamw = ScaledAdam(), ks.optimizers.ScaledAdamW()
    assert (adam.state_dtype, adam.seed, adam.weight_decay) == ("float16", 0, None)
    assert (adamw.state_dtype, adamw.seed, adamw.weight_decay) == ("float16", 0, 0.004)
    for scaled, stock in (
        (adam, keras.optimizers.Adam()),
        (adamw, keras.optimizers.AdamW()),
    ):
        for key, value in stock.get_config().items():
            assert key == "name" or scaled.get_config()[key] == value
    assert isinstance(adam, keras.optimizers.Adam)
    assert isinstance(adamw, keras.optimizers.AdamW)
