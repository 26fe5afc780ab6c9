"""8-bit codes: every byte is a number and back, and rounding to them is unbiased."""

import functools
import importlib

import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_scalify.optimizers.codes import CODES
from keras_scalify.optimizers.random_bits import random_bits
from keras_scalify.optimizers.stochastic_rounding import stochastic_round
from tests.helpers import to_numpy
from tests.optimizers.stepper import BACKEND

BYTES = np.arange(256)
# Exponent bits, mantissa bits and whether there is a sign bit.
SMALL = {
    "float8_e3m4": (3, 4, True),
    "float8_ue4m4": (4, 4, False),
    "float8_ue5m3": (5, 3, False),
}


def numbers(name):
    """The number of each byte, float64; NaN and infinities for those that are none."""
    if name not in SMALL:
        dtype = getattr(ml_dtypes, name)
        return BYTES.astype(np.uint8).view(dtype).astype(np.float64)
    exponent_bits, mantissa_bits, signed = SMALL[name]
    fraction = BYTES % 2**mantissa_bits / 2**mantissa_bits
    exponent = BYTES >> mantissa_bits & (2**exponent_bits - 1)
    bias = 2 ** (exponent_bits - 1) - 1
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    x = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    return np.where((BYTES >= 128) & signed, -x, x)


def compiled(fn):
    """The function as a compiled step runs it; Torch runs it as it is."""
    if BACKEND == "jax":
        return importlib.import_module("jax").jit(fn)
    if BACKEND == "tensorflow":
        return importlib.import_module("tensorflow").function(fn, jit_compile=True)
    return fn


def finite(name):
    """The bytes that are numbers, and the numbers, float32."""
    x = numbers(name)
    known = np.isfinite(x)
    return BYTES[known].astype(np.uint8), x[known].astype(np.float32)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("run", [lambda fn: fn, compiled], ids=["eager", "compiled"])
def test_every_byte_is_a_number_and_back(name, run):
    code = CODES[name]
    codes, expected = finite(name)
    x = to_numpy(run(code.decode)(ops.convert_to_tensor(codes)))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(np.signbit(x), np.signbit(expected))
    back = to_numpy(run(code.encode)(ops.convert_to_tensor(x)))
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, codes)


@pytest.mark.parametrize("name", CODES)
def test_the_format_describes_the_code(name):
    row, (_, x) = CODES[name].format, finite(name)
    assert row.max == x.max()
    assert 2.0**row.quantum_exponent == x[x > 0].min()
    assert CODES[name].signed == (x.min() < 0)


@functools.cache
def rounding(name, keep_positive):
    """A compiled function of numbers to what they are rounded to, and their bytes."""

    def program(x):
        bits = random_bits(x.shape, 0, 5, ops.convert_to_tensor(11))
        y = stochastic_round(x, CODES[name].format, bits, keep_positive)
        return y, CODES[name].encode(y)

    return compiled(program)


def rounded(name, x, keep_positive=False):
    y, codes = rounding(name, keep_positive)(ops.convert_to_tensor(x))
    np.testing.assert_array_equal(to_numpy(y), numbers(name)[to_numpy(codes)])
    return to_numpy(y).astype(np.float64)


def neighbors(name, x):
    """The numbers of the code at or below x and at or above it."""
    grid = np.unique(numbers(name)[np.isfinite(numbers(name))])
    above = np.searchsorted(grid, x)
    return np.where(grid[above] == x, x, grid[above - 1]), grid[above]


def logarithmic(name, count):
    """Numbers of any size from far below the smallest one to the largest one."""
    row, rng = CODES[name].format, np.random.default_rng(0)
    low = row.quantum_exponent - 4
    x = np.minimum(2.0 ** rng.uniform(low, np.log2(row.max), count), row.max)
    signs = rng.choice([-1.0, 1.0], count) if CODES[name].signed else 1.0
    return np.float32(x * signs)


@pytest.mark.parametrize("name", CODES)
def test_rounding_gives_a_neighbor_and_its_byte_is_exact(name):
    x = logarithmic(name, 65_536)
    y = rounded(name, x)
    low, high = neighbors(name, x)
    assert np.all((y == low) | (y == high))
    kept = rounded(name, np.abs(x), keep_positive=True)
    assert kept.min() == 2.0 ** CODES[name].format.quantum_exponent


@pytest.mark.parametrize("name", CODES)
def test_unbiased(name):
    """One number at a time, 200000 draws: normal ones, subnormal ones, the largest."""
    row, count = CODES[name].format, 200_000
    quantum, normal = 2.0**row.quantum_exponent, 2.0**row.min_exponent
    for x in (1.03, 1.99, quantum / 3, normal * 0.9, normal * 1.01, row.max * 0.99):
        y = rounded(name, np.full(count, x, np.float32))
        low, high = map(float, neighbors(name, np.float64(np.float32(x))))
        assert set(np.unique(y)) == {low, high}
        share = (np.float32(x) - low) / (high - low)
        error = np.sqrt(share * (1 - share) / count)
        assert abs(np.mean(y == high) - share) < 4 * error, x


@pytest.mark.parametrize("name", CODES)
def test_equal_elements_do_not_round_in_lockstep(name):
    """Neither adjacent ones nor those in the same place of two blocks."""
    y = rounded(name, np.full(65_536, 1.03, np.float32))
    for distance in (1, 256):
        correlation = np.corrcoef(y[:-distance], y[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(y.size - distance)
