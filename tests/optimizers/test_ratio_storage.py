"""Adam's first moment relative to the root of the second: bounded, and faithful."""

import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.optimizers.block_storage import BLOCK, BlockStorage
from keras_scalify.optimizers.storages import ratio_storage
from tests.helpers import relative_error
from tests.optimizers.stepper import Stepper
from tests.optimizers.test_storage import SEQUENCES

BETAS = [(0.9, 0.999), (0.5, 0.999), (0.9, 0.9999), (0.9, 0.99)]


class Exact:
    """Adam in float64."""

    def __init__(self, size, beta_1=0.9, beta_2=0.999):
        self.betas, self.t = (beta_1, beta_2), 0
        self.m, self.v = np.zeros(size), np.zeros(size)

    def step(self, g, epsilon=1e-7):
        """The update for a learning rate of 1."""
        g, self.t = np.float64(g), self.t + 1
        first, second = self.betas
        self.m += (1 - first) * (g - self.m)
        self.v += (1 - second) * (g * g - self.v)
        rate = np.sqrt(1 - second**self.t) / (1 - first**self.t)
        return rate * self.m / (np.sqrt(self.v) + epsilon)


def worst(beta_1, beta_2, step, steps):
    """The gradients of the largest ratio: Cauchy and Schwarz hold with equality."""
    return np.full(64, (beta_2 / beta_1) ** (step - steps))


@pytest.mark.parametrize("betas", BETAS)
def test_the_limit_is_never_reached(betas):
    """All sequences side by side in one variable, so that blocks hold any sizes."""
    beta_1, beta_2 = betas
    limit, steps, size = ratio_storage(beta_1, beta_2).limit, 150, 64
    optimizer = ks.optimizers.ScaledAdam(
        1e-3, beta_1=beta_1, beta_2=beta_2, state_dtype="float8", min_size=0
    )
    count = (len(SEQUENCES) + 1) * size
    stepper, exact = Stepper(optimizer, [np.zeros(count)]), Exact(count, *betas)
    rng, largest = np.random.default_rng(0), 0.0
    for step in range(steps):
        rows = [make(rng, step) for make in SEQUENCES.values()]
        rows.append(worst(beta_1, beta_2, step, steps))
        g = np.float32(np.concatenate(rows))
        exact.step(g)
        stepper.step(g)
        root = np.sqrt(np.maximum(exact.v, 1e-60))
        largest = max(largest, np.max(np.abs(exact.m) / root))
        stored = stepper.moment("velocity_root")
        assert np.all(stored[exact.v > 1e-30] > 0)
        # Among the subnormals of its block a root may be rounded down again and again:
        # m saturates there, where r is too large anyway.
        peaks = [stored[i : i + BLOCK].max() for i in range(0, count, BLOCK)]
        normal = stored >= 2.0**-12 * np.repeat(peaks, BLOCK)[:count]
        assert np.max(np.abs(exact.m[normal]) / stored[normal], initial=0.0) <= limit
    # Half of it is for the rounding of the root; the bound without is a tight one.
    assert 0.95 * limit / 2 <= largest <= limit / 2 * (1 + 1e-6)


@pytest.mark.parametrize("betas", [(0.95, 0.9), (0.99, 0.9801), (0.9, 0.5)])
def test_without_a_limit_it_rests_in_blocks(betas):
    beta_1, beta_2 = betas
    assert isinstance(ratio_storage(beta_1, beta_2), BlockStorage)


def test_without_a_limit_it_trains():
    """A quadratic bowl: as low as with float32 state."""
    target = np.float32(np.random.default_rng(0).normal(size=300))
    left = {}
    for state_dtype in ("float8", "float32"):
        optimizer = ks.optimizers.ScaledAdam(
            0.05, beta_1=0.95, beta_2=0.9, state_dtype=state_dtype, min_size=0
        )
        stepper = Stepper(optimizer, [np.zeros(300)])
        for _ in range(100):
            stepper.step(stepper.values()[0] - target)
        left[state_dtype] = np.mean((stepper.values()[0] - target) ** 2)
    assert left["float8"] <= max(2 * left["float32"], 0.02 * np.mean(target**2))


MIXES = [
    # momentum, velocity, relative error of the way
    ("float8", "float8", 0.1),
    ("float8", "float16", 0.05),
    ("float8", "float32", 0.05),
    ("float16", "float8", 0.1),
    ("bfloat16", "float16", 0.02),
    ("float32", "float16", 0.005),
]


@pytest.mark.parametrize(("momentum", "velocity", "tolerance"), MIXES)
def test_mixed_state_follows_adam(momentum, velocity, tolerance):
    state_dtype = {"momentum": momentum, "velocity": velocity}
    optimizer = ks.optimizers.ScaledAdam(1e-2, state_dtype=state_dtype, min_size=0)
    stepper, exact = Stepper(optimizer, [np.zeros(600)]), Exact(600)
    rng, expected = np.random.default_rng(0), np.zeros(600)
    for _ in range(50):
        g = np.float32(rng.normal(0.1, 1.0, size=600))
        stepper.step(g)
        expected -= 1e-2 * exact.step(g)
    dtypes = {v.name: v.dtype for v in optimizer.variables}
    rests = {"float8": "uint8"}
    assert dtypes["variable_0_momentum"] == rests.get(momentum, momentum)
    assert dtypes["variable_0_velocity_root"] == rests.get(velocity, velocity)
    error = relative_error(stepper.values()[0], expected)
    assert error <= tolerance


RATE, SIGMAS, FLOOR = 1e-2, (2.0, 3.0), 0.05


def test_no_update_is_inflated():
    """Updates against exact ones, which count as at least FLOOR of the learning rate:
    where m happens to be near 0 its rounding is of that order.
    """
    rng = np.random.default_rng(0)
    optimizer = ks.optimizers.ScaledAdam(RATE, state_dtype="float8")
    stepper = Stepper(optimizer, [np.zeros(8192)] * 2)
    exact = [Exact(8192) for _ in SIGMAS]
    sizes = [1e-3 * np.exp(sigma * rng.normal(size=8192)) for sigma in SIGMAS]
    for step in range(100):
        gradients = [np.float32(s * rng.normal(size=8192)) for s in sizes]
        before = stepper.values()
        stepper.step(*gradients)
        for index, reference in enumerate(exact):
            update = np.abs(stepper.values()[index] - before[index]) / RATE
            expected = np.abs(reference.step(gradients[index]))
            if step >= 10:
                assert np.max(update / np.maximum(expected, FLOOR)) <= 4


def test_the_root_of_v_keeps_its_mean():
    """The schedule of test_storage, a shorter one; beta_2 is the default 0.999."""
    rng, size = np.random.default_rng(0), 4096
    sizes = np.exp(1.5 * rng.normal(size=size)) * 1e-3
    optimizer = ks.optimizers.ScaledAdam(1e-3, state_dtype="float8")
    stepper, exact = Stepper(optimizer, [np.zeros(size)]), Exact(size)
    for step in range(1000):
        g = np.float32(sizes * rng.normal(size=size) * (0.1 if step >= 400 else 1.0))
        stepper.step(g)
        exact.step(g)
        if step + 1 in (400, 700, 1000):
            ratio = stepper.moment("velocity_root") / np.sqrt(exact.v)
            assert abs(ratio.mean() - 1) <= 0.03
            assert ratio.std() <= 0.3
            assert ratio.min() > 0
