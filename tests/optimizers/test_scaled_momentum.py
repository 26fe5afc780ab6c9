"""ScaledLion and ScaledSGD against Keras's own, and 8-bit state across a stop."""

import copy
import functools

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy
from tests.optimizers import small_model
from tests.optimizers.stepper import BACKEND, Stepper

Lion, SGD = ks.optimizers.ScaledLion, ks.optimizers.ScaledSGD
STOCK = {Lion: keras.optimizers.Lion, SGD: keras.optimizers.SGD}
STEPS, SHAPES = 50, ((64, 80), (16,))  # the first one rests in 8 bits

OPTIONS = {
    "clipnorm": 2.0,
    "weight_decay": 0.02,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 20,
    "gradient_accumulation_steps": 2,
}
CASES = {
    "lion": (Lion, {"learning_rate": 1e-3}),
    "lion, options": (Lion, {"learning_rate": 1e-3, "beta_1": 0.8, **OPTIONS}),
    "momentum": (SGD, {"momentum": 0.9}),
    "nesterov, options": (SGD, {"momentum": 0.9, "nesterov": True, **OPTIONS}),
}
STATELESS = {"sgd": (SGD, {"learning_rate": 0.1})}
# Of the way from the start.
TOLERANCE = {"float16": 0.01, "float8": 0.1}


def start():
    rng = np.random.default_rng(0)
    return [np.float32(rng.normal(size=shape)) for shape in SHAPES]


@functools.cache
def run(case, state_dtype=None):
    """The variables and the state after STEPS steps; without a dtype Keras's own."""
    optimizer, kwargs = (CASES | STATELESS)[case]
    if state_dtype is None:
        optimizer = STOCK[optimizer](**kwargs)
    else:
        optimizer = optimizer(state_dtype=state_dtype, **kwargs)
    stepper, rng = Stepper(optimizer, start()), np.random.default_rng(1)
    for _ in range(STEPS):
        gradients = [0.1 * rng.normal(0.3, 1.0, size=shape) for shape in SHAPES]
        stepper.step(*[np.float32(g) for g in gradients])
    optimizer.finalize_variable_values(stepper.variables)
    return stepper.values(), stepper.state()


@pytest.mark.parametrize("case", CASES | STATELESS)
def test_float32_state_is_keras_own(case):
    values, state = run(case, "float32")
    expected, expected_state = run(case)
    assert state.keys() == expected_state.keys()
    pairs = [*zip(values, expected, strict=True)]
    pairs += [(state[name], expected_state[name]) for name in state]
    for value, reference in pairs:
        if BACKEND == "torch":  # its own runs as list operations
            assert relative_error(value, reference) <= 1e-6
        else:
            np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("state_dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_narrow_state_follows(case, state_dtype):
    values, _ = run(case, state_dtype)
    expected, _ = run(case)
    errors = [
        relative_error(value - origin, reference - origin)
        for value, reference, origin in zip(values, expected, start(), strict=True)
    ]
    assert 0 < errors[0] <= TOLERANCE[state_dtype]
    assert errors[1] <= (1e-5 if state_dtype == "float8" else TOLERANCE[state_dtype])


@pytest.mark.parametrize("state_dtype", ["float16", "float8"])
def test_without_momentum_there_is_no_state(state_dtype):
    stepper = Stepper(SGD(0.1, state_dtype=state_dtype), [np.ones(4)])
    stepper.step(np.ones(4, np.float32))
    assert [v.name for v in stepper.optimizer.variables] == [
        "iteration",
        "learning_rate",
    ]
    np.testing.assert_allclose(stepper.values()[0], 0.9, rtol=1e-6)


EIGHT_BITS = [
    (ks.optimizers.ScaledAdam, {"state_dtype": "float8"}),
    (
        ks.optimizers.ScaledAdamW,
        {"state_dtype": {"momentum": "float8", "velocity": "float16"}},
    ),
    (Lion, {"state_dtype": {"momentum": "float8"}, "beta_1": 0.8}),
    (SGD, {"state_dtype": "float8", "momentum": 0.9, "nesterov": True}),
]


@pytest.mark.parametrize(("optimizer", "kwargs"), EIGHT_BITS)
def test_the_config_is_whole(optimizer, kwargs):
    first = optimizer(1e-3, seed=3, min_size=7, **kwargs)
    config = keras.optimizers.serialize(first)
    second = keras.optimizers.deserialize(copy.deepcopy(config))
    assert type(second) is optimizer
    assert keras.optimizers.serialize(second) == config
    for name, value in {"seed": 3, "min_size": 7, **kwargs}.items():
        assert second.get_config()[name] == getattr(second, name) == value


# AdamW's state is Adam's.
@pytest.mark.parametrize(("optimizer", "kwargs"), [EIGHT_BITS[0], *EIGHT_BITS[2:]])
def test_a_saved_model_goes_on(optimizer, kwargs, tmp_path):
    """Bit for bit, in bytes."""
    model = small_model.build(optimizer(1e-2, min_size=0, **kwargs))
    small_model.fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert "uint8" in {v.dtype for v in loaded.optimizer.variables}
    assert everything(loaded) == everything(model)
    assert small_model.fit(loaded, epochs=1) == small_model.fit(model, epochs=1)
    assert everything(loaded) == everything(model)


def everything(model):
    """Every variable of model and optimizer, as (dtype, bytes)."""
    variables = [*model.variables, *model.optimizer.variables]
    return [(v.dtype, to_numpy(v).tobytes()) for v in variables]
