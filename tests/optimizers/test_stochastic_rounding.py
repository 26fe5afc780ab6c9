"""Stochastic rounding: to a neighbour only, and exact in the mean."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_scalify.formats import FORMATS
from keras_scalify.optimizers.random_bits import random_bits
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from tests.helpers import to_numpy
from tests.optimizers.reference import neighbors

NAMES = ("float16", "bfloat16")
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in NAMES}


def rounded(x, name, bits, keep_positive=False):
    x, bits = np.broadcast_arrays(np.float32(x), np.int32(bits))
    y = stochastic_round(
        ops.convert_to_tensor(x.copy()),
        FORMATS[name],
        ops.convert_to_tensor(bits.copy()),
        keep_positive,
    )
    return to_numpy(y)


def finite(name):
    """Arrays within the format's range. CPU backends may flush float32's subnormals."""
    largest = float(ml_dtypes.finfo(name).max)
    floats = st.floats(-largest, largest, width=32, allow_subnormal=False)
    return hnp.arrays(np.float32, 32, elements=floats)


ANY_BITS = hnp.arrays(np.int32, 32, elements=st.integers(-(2**31), 2**31 - 1))


@pytest.mark.parametrize("name", NAMES)
def test_neighbors_only(name):
    @settings(max_examples=200)
    @given(finite(name), ANY_BITS)
    def check(x, bits):
        y = rounded(x, name, bits)
        np.testing.assert_array_equal(y, y.astype(DTYPES[name]).astype(np.float32))
        low, high = neighbors(x, name)
        assert np.all((y == low) | (y == high)), (x, y)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(x))

    check()


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_the_format_stay(name):
    codes = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[name])
    x = codes.astype(np.float32)
    if name == "bfloat16":  # its subnormals are float32's
        x = x[(x == 0) | ~(np.abs(x) < 2.0**-126)]
    for bits in (0, -1, 0x5A5A5A5A):
        y = rounded(x, name, bits)
        np.testing.assert_array_equal(y, x)  # NaN and infinities too
        known = ~np.isnan(x)
        np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(x[known]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("x", [1.0 + 1 / 3, -3.14159, 1000.1, 6.1e-5 * 1.7, 1e-4])
def test_mean_over_all_bits_is_exact(name, x):
    dropped = 23 - FORMATS[name].mantissa_bits
    y = rounded(x, name, np.arange(1 << dropped)).astype(np.float64)
    assert len(np.unique(y)) == 2
    assert np.mean(y) == np.float32(x)


@pytest.mark.parametrize("x", [2.0**-24 / 3, -1e-8, 3.3e-7, 6.0e-5])
def test_mean_in_the_subnormal_range(x):
    y = rounded(x, "float16", np.arange(1 << 13)).astype(np.float64)
    assert len(np.unique(y)) == 2
    # The range is shifted up to float32's spacing at 2**-14: half of that is lost.
    assert abs(np.mean(y) - np.float32(x)) <= 2.0**-14 * 2.0**-24


@pytest.mark.parametrize("name", NAMES)
def test_unbiased_over_a_million_draws(name):
    count = 1_000_000
    x = np.random.default_rng(0).uniform(0.5, 8, count).astype(np.float32)
    bits = random_bits((count,), 0, 3, ops.convert_to_tensor(17))
    error = rounded(x, name, to_numpy(bits)).astype(np.float64) - x
    low, high = neighbors(x, name)
    variance = (x - low) * (high - x)
    deviations = np.sum(error) / np.sqrt(np.sum(variance))
    assert abs(deviations) < 4
    np.testing.assert_allclose(np.sum(error**2), np.sum(variance), rtol=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_equal_values_do_not_round_in_lockstep(name):
    bits = random_bits((10_000,), 0, 0, ops.convert_to_tensor(0))
    y = rounded(1.0 + 2.0**-12, name, to_numpy(bits))
    low, high = neighbors(1.0 + 2.0**-12, name)
    share = (2.0**-12) / (high - low)
    error = np.sqrt(share * (1 - share) / len(y))
    assert abs(np.mean(y == high) - share) < 4 * error
    assert set(np.unique(y)) == {low, high}


@pytest.mark.parametrize(
    ("name", "smallest"), [("float16", 2.0**-24), ("bfloat16", 2.0**-126)]
)
def test_keep_positive(name, smallest):
    x = np.float32([0.0, smallest, smallest * 1.0001, 1.0, 2.0**-100])
    kept = rounded(x, name, 0, keep_positive=True)
    assert kept[0] == 0
    assert np.all(kept[1:] > 0)
    if name == "float16":
        assert kept[4] == smallest
        assert rounded(x, name, 0)[4] == 0  # without, it is cut off


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [0, -1])
def test_the_largest_number_is_not_left(name, bits):
    largest = float(ml_dtypes.finfo(name).max)
    below = np.nextafter(np.float32(largest), np.float32(0))
    y = rounded([largest, -largest, below, -below], name, bits)
    assert np.all(np.abs(y) <= largest)


def test_non_finite_values_stay():
    for name in NAMES:
        y = rounded([np.inf, -np.inf, np.nan], name, -1)
        np.testing.assert_array_equal(y, np.float32([np.inf, -np.inf, np.nan]))


@pytest.mark.parametrize("name", NAMES)
def test_signed_zeros_stay(name):
    y = rounded([0.0, -0.0], name, -1)
    np.testing.assert_array_equal(y, [0, 0])
    np.testing.assert_array_equal(np.signbit(y), [False, True])
