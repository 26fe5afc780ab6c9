"""ScaledAdam's steps: narrow weights, gradients that are tiny, huge or 0."""

import numpy as np
import pytest

import keras_scalify as ks
from tests.optimizers.stepper import Stepper

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
