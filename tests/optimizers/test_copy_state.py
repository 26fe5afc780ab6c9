"""copy_state: between Keras's optimizers and the scaled ones, and between dtypes."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.optimizers.wide_moments import wide_moments
from tests.helpers import to_numpy
from tests.optimizers.stepper import Stepper

copy_state = ks.optimizers.copy_state
RNG = np.random.default_rng(0)
START = [np.float32(RNG.normal(size=shape)) for shape in ((70, 65), (5,))]
GRADIENTS = [
    [np.float32(RNG.normal(size=v.shape) * 10.0 ** RNG.normal()) for v in START]
    for _ in range(12)
]
FAMILIES = {  # name: (Keras's, ours, what both are given)
    "Adam": ("Adam", "ScaledAdam", {}),
    "amsgrad": ("Adam", "ScaledAdam", {"amsgrad": True}),
    "AdamW": ("AdamW", "ScaledAdamW", {"weight_decay": 0.01}),
    "Lion": ("Lion", "ScaledLion", {}),
    "SGD": ("SGD", "ScaledSGD", {"momentum": 0.9}),
}
ERRORS = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2, "float8": 0.15}


def stepper(make, values=START, **kwargs):
    return Stepper(make(1e-2, **kwargs), values)


def pair(family, state_dtype):
    stock, scaled, given = FAMILIES[family]
    plain = stepper(getattr(keras.optimizers, stock), **given)
    scaled = getattr(ks.optimizers, scaled)
    return plain, stepper(scaled, state_dtype=state_dtype, **given)


def moments(optimizer):
    wide = wide_moments(optimizer)
    return {name: [to_numpy(m) for m in values] for name, values in wide.items()}


@pytest.mark.parametrize("state_dtype", ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_goes_on_in_the_other_optimizer_and_back(family, state_dtype):
    plain, scaled = pair(family, state_dtype)
    for gradients in GRADIENTS:
        plain.step(*gradients)
    expected = moments(plain.optimizer)
    copy_state(plain.optimizer, scaled.optimizer)
    back, _ = pair(family, state_dtype)
    copy_state(scaled.optimizer, back.optimizer)
    for optimizer in (scaled.optimizer, back.optimizer):
        assert int(optimizer.iterations) == len(GRADIENTS)
        found = moments(optimizer)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            for value, wide in zip(values, found[name], strict=True):
                error = np.linalg.norm(wide - value) / np.linalg.norm(value)
                assert error <= ERRORS[state_dtype], (name, error)
    for other in (scaled, back):
        for variable, value in zip(other.variables, plain.variables, strict=True):
            variable.assign(to_numpy(value))
        other.step(*GRADIENTS[0])
    before = [to_numpy(v) for v in plain.variables]
    plain.step(*GRADIENTS[0])
    for other in (scaled, back):
        steps = [b - a for a, b in zip(before, other.values(), strict=True)]
        exact = [b - a for a, b in zip(before, plain.values(), strict=True)]
        for step, true in zip(steps, exact, strict=True):
            error = np.linalg.norm(step - true) / np.linalg.norm(true)
            # Lion steps by a sign, which an error may turn.
            assert (
                error <= (0.6 if family == "Lion" else 2 * ERRORS[state_dtype]) + 1e-5
            )


def test_state_of_every_dtype_is_copied_into_every_other():
    make = ks.optimizers.ScaledAdam
    first = stepper(make, state_dtype="bfloat16")
    for gradients in GRADIENTS:
        first.step(*gradients)
    exact = moments(first.optimizer)
    for dtype in ("float32", "float16", "float8"):
        other = stepper(make, state_dtype=dtype, min_size=0)
        copy_state(first.optimizer, other.optimizer)
        for name, values in moments(other.optimizer).items():
            for a, b in zip(values, exact[name], strict=True):
                assert np.linalg.norm(a - b) <= ERRORS[dtype] * np.linalg.norm(b)


def test_loss_scaling_and_accumulation_keep_their_counts():
    plain = stepper(keras.optimizers.Adam)
    for gradients in GRADIENTS:
        plain.step(*gradients)
    inner = ks.optimizers.ScaledAdam(gradient_accumulation_steps=4)
    wrapped = keras.optimizers.LossScaleOptimizer(inner)
    Stepper(wrapped, START)
    copy_state(plain.optimizer, wrapped)
    assert int(inner.iterations) == len(GRADIENTS)


def test_errors_name_the_argument_and_change_nothing():
    adam, other = stepper(keras.optimizers.Adam), stepper(ks.optimizers.ScaledLion)
    small = stepper(ks.optimizers.ScaledAdam, values=START[:1])
    for target in (other, small):
        before = target.step(*GRADIENTS[0][: len(target.variables)]).state()
        with pytest.raises(ValueError, match="must have the same moments"):
            copy_state(adam.optimizer, target.optimizer)
        for name, value in target.state().items():
            np.testing.assert_array_equal(value, before[name])
    with pytest.raises(ValueError, match="`source` must be a built optimizer"):
        copy_state(keras.optimizers.Adam(), adam.optimizer)
    with pytest.raises(ValueError, match="`target` must be a built optimizer"):
        copy_state(adam.optimizer, "adam")
