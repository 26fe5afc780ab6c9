"""The optimizers' arguments: clipping, decay, accumulation, wrong ones, the config."""

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
        {"state_dtype": "float8", "min_size": 0},
    ],
)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="no other backend has them")
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
    tf = importlib.import_module("tensorflow")
    return tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant(shape))


ADAM = ScaledAdam, ks.optimizers.ScaledAdamW
MOMENTUM = ks.optimizers.ScaledLion, ks.optimizers.ScaledSGD

WRONG = [  # for whom, the arguments, what the message names
    (ADAM, {"state_dtype": "float8_e4m3fn"}, ("float8_e4m3fn", "float16")),
    (ADAM, {"state_dtype": "float64"}, ("float64", "bfloat16")),
    (ADAM, {"state_dtype": None}, ("None", "float32")),
    (ADAM, {"state_dtype": 16}, ("16", "float32")),
    (ADAM, {"state_dtype": ["float16"]}, ("['float16']", "float32")),
    (ADAM, {"state_dtype": {"momentum": "float8"}}, ("velocity", "float8")),
    (
        ADAM,
        {"state_dtype": {"momentum": "float8", "velocity": "fp8"}},
        ("fp8", "float8"),
    ),
    (
        ADAM,
        {"state_dtype": {"momentum": "float8", "root": "float8"}},
        ("root", "velocity"),
    ),
    (MOMENTUM, {"state_dtype": "float8_e5m2"}, ("float8_e5m2", "float8")),
    (MOMENTUM, {"state_dtype": {"velocity": "float8"}}, ("velocity", "momentum")),
    (MOMENTUM, {"state_dtype": {"momentum": 8}}, ("{'momentum': 8}", "float8")),
    (MOMENTUM, {"state_dtype": {}}, ("{}", "momentum")),
    (ADAM, {"min_size": -1}, ("-1", "at least 0")),
    (ADAM, {"min_size": 4096.0}, ("4096.0", "at least 0")),
    (ADAM, {"min_size": False}, ("False", "at least 0")),
    (MOMENTUM, {"min_size": "4096"}, ("'4096'", "at least 0")),
    (ADAM, {"seed": 1.5}, ("1.5", "integer")),
    (ADAM, {"seed": True}, ("True", "integer")),
    (MOMENTUM, {"seed": "0"}, ("'0'", "integer")),
    (ADAM, {"clipnorm": 1.0, "clipvalue": 1.0}, ("1.0",)),
    (ADAM, {"state_type": "float16"}, ("float16", "not recognized")),
]


@pytest.mark.parametrize(("optimizers", "kwargs", "words"), WRONG)
def test_wrong_arguments(optimizers, kwargs, words):
    for optimizer in optimizers:
        with pytest.raises(ValueError) as error:
            optimizer(**kwargs)
        for word in (*kwargs, *words):
            assert word in str(error.value)


@pytest.mark.parametrize("optimizer", ADAM)
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
