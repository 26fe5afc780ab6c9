"""ScaledAdam against keras.optimizers.Adam, with every option that Adam has."""

import functools

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import relative_error
from tests.optimizers.stepper import BACKEND, Stepper

STEPS, RATE = 100, 1e-2
EMA = {"use_ema": True, "ema_momentum": 0.9}

# The first argument of each is what it is about.
OPTIONS = {
    "defaults": {},
    "amsgrad": {"amsgrad": True, "beta_2": 0.9},
    "betas": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3},
    "weight_decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "use_ema": EMA,
    "ema_overwrite_frequency": {"ema_overwrite_frequency": 7, **EMA},
    "accumulation": {"gradient_accumulation_steps": 3},
    "accumulation, clipnorm": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    "loss_scale_factor": {"loss_scale_factor": 1024.0, "epsilon": 1e-4},
    "all": {
        **EMA,
        "ema_overwrite_frequency": 20,
        "amsgrad": True,
        "weight_decay": 0.01,
        "global_clipnorm": 1.0,
        "gradient_accumulation_steps": 2,
        "loss_scale_factor": 8.0,
    },
}
STOCK = {
    ks.optimizers.ScaledAdam: keras.optimizers.Adam,
    ks.optimizers.ScaledAdamW: keras.optimizers.AdamW,
}
CASES = [(ks.optimizers.ScaledAdam, option) for option in OPTIONS]
CASES += [(ks.optimizers.ScaledAdamW, option) for option in ("defaults", "all")]

# Largest relative error of the way from the start. Keras's Adam on Torch runs as list
# operations in another order; a stored moment is off by about half a unit in the last
# place, of 11 bits and of 8, and Adam divides one by the other.
TOLERANCE = {"float16": 0.01, "bfloat16": 0.06}


def start():
    rng = np.random.default_rng(0)
    return [np.float32(rng.normal(size=shape)) for shape in ((8, 16), (16,))]


@functools.cache
def run(optimizer, option, rate=RATE, without=0, **kwargs):
    """The variables and the state after STEPS steps, without the first arguments."""
    kwargs |= dict([*OPTIONS[option].items()][without:])
    stepper = Stepper(optimizer(rate, **kwargs), start())
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        size = 0.1 if step < STEPS // 2 else 0.01  # amsgrad keeps the larger ones
        gradients = [size * rng.normal(0.1, 1.0, v.shape) for v in stepper.variables]
        stepper.step(*[np.float32(g) for g in gradients])
    stepper.optimizer.finalize_variable_values(stepper.variables)  # the average, if any
    return stepper.values(), stepper.state()


@pytest.mark.parametrize(("optimizer", "option"), CASES)
def test_float32_state_is_adam(optimizer, option):
    values, state = run(optimizer, option, state_dtype="float32")
    expected, expected_state = run(STOCK[optimizer], option)
    assert state.keys() == expected_state.keys()
    moments = [(state[name], expected_state[name]) for name in state]
    # On Torch v = 0.999 v + 0.001 g**2, two roundings a step, where others round once.
    for pairs, torch_tolerance in (
        (zip(values, expected, strict=True), 1e-6),
        (moments, 3e-6),
    ):
        for value, reference in pairs:
            if BACKEND == "torch":
                assert relative_error(value, reference) <= torch_tolerance
            else:
                np.testing.assert_array_equal(value, reference)


NARROW = [(*case, "float16") for case in CASES]
NARROW += [(ks.optimizers.ScaledAdam, o, "bfloat16") for o in ("amsgrad", "all")]


@pytest.mark.parametrize(("optimizer", "option", "state_dtype"), NARROW)
def test_narrow_state_follows_adam(optimizer, option, state_dtype):
    values, _ = run(optimizer, option, state_dtype=state_dtype)
    expected, _ = run(STOCK[optimizer], option)
    for value, reference, origin in zip(values, expected, start(), strict=True):
        error = relative_error(value - origin, reference - origin)
        assert 0 < error <= TOLERANCE[state_dtype]


@pytest.mark.parametrize("option", [o for o in OPTIONS if o not in ("defaults", "all")])
def test_the_options_matter(option):
    """Else the tests above would not see one that is ignored."""
    values, _ = run(keras.optimizers.Adam, option)
    expected, _ = run(keras.optimizers.Adam, option, without=1)
    error = relative_error(values[0] - start()[0], expected[0] - start()[0])
    assert error > 2 * TOLERANCE["float16"]


def test_a_schedule_is_followed():
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 10, 0.5)
    values, _ = run(ks.optimizers.ScaledAdam, "defaults", schedule)
    expected, _ = run(keras.optimizers.Adam, "defaults", schedule)
    for value, reference, origin in zip(values, expected, start(), strict=True):
        error = relative_error(value - origin, reference - origin)
        assert 0 < error <= TOLERANCE["float16"]
