"""The counter hash: the same bits everywhere, and none that depend on each other."""

import numpy as np
import pytest
from keras import ops

from keras_scalify.optimizers.random_bits import high_bits, low_bits, mix, random_bits
from tests.helpers import to_numpy
from tests.optimizers import reference

COUNT = 1 << 18
# Four standard errors of the mean of a fair coin tossed COUNT times.
FOUR_ERRORS = 4 * 0.5 / np.sqrt(COUNT)


def draw(seed=0, stream=0, step=0, shape=(COUNT,)):
    return to_numpy(random_bits(shape, seed, stream, ops.convert_to_tensor(step)))


@pytest.mark.parametrize(
    ("shape", "seed", "stream", "step"),
    [
        ((1000,), 0, 0, 0),
        ((10, 7), 0, 0, 1),
        ((3, 4, 5), 0, 12, 99_999),
        ((), 3, 1, 5),
        ((0, 4), 1, 0, 0),
        ((64,), -1, 2, 2_000_000_000),
        ((64,), 2**40 + 17, 10_000, 123),
    ],
)
def test_bits_are_those_of_the_reference(shape, seed, stream, step):
    bits = draw(seed, stream, step, shape)
    assert bits.dtype == np.int32
    np.testing.assert_array_equal(
        bits, reference.random_bits(shape, seed, stream, step)
    )


def test_mix_is_that_of_the_reference():
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 1000).astype(np.int32)
    expected = reference.mix(x.view(np.uint32)).view(np.int32)
    np.testing.assert_array_equal(to_numpy(mix(ops.convert_to_tensor(x))), expected)


def test_parts_of_the_bits():
    bits = ops.convert_to_tensor(np.int32([-1, 0x12345678, -0x7FFF0000]))
    np.testing.assert_array_equal(to_numpy(low_bits(bits, 13)), [8191, 0x1678, 0])
    np.testing.assert_array_equal(
        to_numpy(high_bits(bits)), [0xFFFFF, 0x12345, 0x80010]
    )


def test_every_bit_is_a_fair_coin():
    for stream, step in ((0, 0), (0, 1), (5, 1000)):
        bits = draw(stream=stream, step=step).view(np.uint32)
        share = [np.mean(bits >> np.uint32(i) & np.uint32(1)) for i in range(32)]
        np.testing.assert_allclose(share, 0.5, atol=FOUR_ERRORS)


# What must be unrelated to draw(): the same elements in another draw, or shifted ones.
OTHERS = {
    "next step": lambda: draw(step=1),
    "next stream": lambda: draw(stream=1),
    "next seed": lambda: draw(seed=1),
    "step and stream exchanged": lambda: (
        draw(stream=7, step=3) ^ draw(stream=3, step=7)
    ),
    "mixed again": lambda: to_numpy(mix(ops.convert_to_tensor(draw()))),
    "halves exchanged": lambda: (
        np.roll(draw().view(np.uint16).reshape(-1, 2), 1, 1).copy().view(np.int32)[:, 0]
    ),
    **{
        f"element + {lag}": (lambda lag=lag: np.roll(draw(), -lag))
        for lag in (1, 2, 3, 16, 255, 256, 1024, 4096)
    },
}


@pytest.mark.parametrize("other", OTHERS)
def test_no_lockstep(other):
    agree = (~(draw() ^ OTHERS[other]())).view(np.uint32)
    share = [np.mean(agree >> np.uint32(i) & np.uint32(1)) for i in range(32)]
    np.testing.assert_allclose(share, 0.5, atol=1.25 * FOUR_ERRORS)
