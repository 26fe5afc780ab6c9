"""How faithfully moments rest: over thousands of steps, and within their bound."""

import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.formats import FORMATS
from tests.helpers import to_numpy
from tests.optimizers.stepper import Stepper

BETA_2 = 0.999
STEPS, DROP, SIZE = 6000, 2500, 2000
# How far the mean of stored / exact may be from 1, and the spread of a coordinate: a
# random walk of 1 / (1 - BETA_2) steps of about half a unit in the last place.
MEAN = {"float16": 0.01, "bfloat16": 0.02}
SPREAD = {"float16": 0.03, "bfloat16": 0.15}


def gradients(rng):
    """Magnitudes of ln-sigma 1.5 between coordinates, tenfold smaller from DROP on."""
    size = np.exp(1.5 * rng.normal(size=SIZE)) * 1e-3
    size[0] = 0
    for step in range(STEPS):
        g = size * rng.normal(size=SIZE) * (0.1 if step >= DROP else 1.0)
        yield step + 1, g.astype(np.float32)


@pytest.mark.parametrize("state_dtype", MEAN)
def test_the_root_of_v_keeps_its_mean(state_dtype):
    start = np.float32(np.random.default_rng(1).normal(size=SIZE))
    optimizer = ks.optimizers.ScaledAdam(1e-3, state_dtype=state_dtype)
    stepper, v = Stepper(optimizer, [start]), np.zeros(SIZE)
    for step, g in gradients(np.random.default_rng(0)):
        stepper.step(g)
        v += (1 - BETA_2) * (np.square(g, dtype=np.float64) - v)
        if step in (DROP, 4000, STEPS):
            stored = stepper.moment("velocity_root")
            ratio = stored[1:] / np.sqrt(v[1:])
            assert abs(ratio.mean() - 1) <= MEAN[state_dtype]
            assert ratio.std() <= SPREAD[state_dtype]
            assert np.all(stored[1:] > 0)
    # The coordinate without a gradient.
    assert stepper.values()[0][0] == start[0]
    assert stepper.moment("momentum")[0] == stepper.moment("velocity_root")[0] == 0
    assert np.all(stepper.values()[0][1:] != start[1:])


def spikes(rng, step):
    """Now and then a gradient 10**6 times the usual one."""
    return rng.normal(size=64) * (1e6 if step % 37 == 5 else 1.0)


SEQUENCES = {
    "normal": lambda rng, step: rng.normal(size=64),
    "constant": lambda rng, step: np.full(64, 0.37),
    "all signs the same, one magnitude": lambda rng, step: np.full(64, 1.0),
    "growing": lambda rng, step: rng.normal(size=64) * 1.1**step,
    "shrinking": lambda rng, step: rng.normal(size=64) * 0.9**step,
    "from 1e-12 to 1e10": lambda rng, step: (
        rng.normal(size=64) * 10.0 ** (step % 23 - 12)
    ),
    "spikes": spikes,
    "zero, then not": lambda rng, step: rng.normal(size=64) * (step >= 100),
    "one, then zero": lambda rng, step: np.full(64, 1.0 * (step == 0)),
}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_amax_bound_holds(sequence):
    """It comes from the step before and the gradient: no moment is measured."""
    rng = np.random.default_rng(0)
    optimizer = ks.optimizers.ScaledAdam(1e-3, amsgrad=True)
    stepper = Stepper(optimizer, [np.zeros(64)])
    for step in range(200):
        stepper.step(np.float32(SEQUENCES[sequence](rng, step)))
        for name in ("momentum", "velocity_root", "velocity_hat_root"):
            moment = np.abs(stepper.moment(name)).max()
            amax = to_numpy(optimizer._slots[name][0].amax)
            # Rounding up at every step adds up to some percent in the long run.
            assert moment <= 1.05 * amax
            assert np.abs(stepper.data(name)).max() <= 0.75 * FORMATS["float16"].max


def test_data_times_scale_is_the_moment():
    """The reference decodes what rests without the package's help."""
    stepper = Stepper(ks.optimizers.ScaledAdam(), [np.zeros(64)])
    for step in range(3):
        stepper.step(np.float32(np.random.default_rng(step).normal(size=64)))
    for name in ("momentum", "velocity_root"):
        amax = float(to_numpy(stepper.optimizer._slots[name][0].amax))
        # The smallest power of two that brings amax to half of the largest number.
        scale = 2.0 ** np.ceil(np.log2(amax / 32752.0))
        data = stepper.data(name)
        np.testing.assert_array_equal(data, np.float32(np.float16(data)))
        np.testing.assert_array_equal(stepper.moment(name), data * np.float32(scale))


@pytest.mark.parametrize("state_dtype", MEAN)
def test_equal_gradients_do_not_round_in_lockstep(state_dtype):
    optimizer = ks.optimizers.ScaledAdam(state_dtype=state_dtype, amsgrad=True)
    stepper = Stepper(optimizer, [np.zeros(4096)])
    for g in (0.3, 0.7):
        stepper.step(np.full(4096, g, np.float32))
    up = []
    for name in ("momentum", "velocity_root"):
        data = stepper.data(name)
        assert len(np.unique(data)) > 1
        up.append(data > data.mean())
    # Nor do an element's two moments: their correlation is within four errors of 0.
    assert abs(np.corrcoef(*up)[0, 1]) < 4 / np.sqrt(4096)


def test_rounding_differs_between_steps_variables_and_seeds():
    def rest(steps=1, seed=0):
        optimizer = ks.optimizers.ScaledAdam(seed=seed)
        stepper = Stepper(optimizer, [np.zeros(4096)] * 2)
        for _ in range(steps):
            stepper.step(*[np.full(4096, 0.3, np.float32)] * 2)
        return [stepper.data("momentum", index) for index in (0, 1)]

    first, second = rest()
    again = rest()
    np.testing.assert_array_equal(first, again[0])
    np.testing.assert_array_equal(second, again[1])
    others = {"variable": second, "seed": rest(seed=1)[0]}
    for other in others.values():
        assert 0.3 < np.mean(first == other) < 0.9
    assert len(np.unique(rest(steps=2)[0])) > 2  # in lockstep there would be two values


def test_the_state_rests_in_its_dtype():
    for name, bytes_a_moment in (("float16", 2), ("bfloat16", 2), ("float32", 4)):
        optimizer = ks.optimizers.ScaledAdam(state_dtype=name, amsgrad=True)
        Stepper(optimizer, [np.zeros((8, 8)), np.zeros(3)])
        own = [v for v in optimizer.variables[2:] if v.name != "holds_roots"]
        large = [v for v in own if v.shape != ()]
        assert [v.dtype for v in large] == [name] * 6
        size = sum(np.prod(v.shape) for v in large) * FORMATS[name].bits // 8
        assert size == 3 * (64 + 3) * bytes_a_moment
        scalars = [v for v in own if v.shape == ()]
        assert [v.dtype for v in scalars] == ["float32"] * (6 * (name == "float16"))
