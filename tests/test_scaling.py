"""Scales: powers of two by their bits, and the smallest one that fits an amax."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_scalify.formats import FORMATS
from keras_scalify.scaling import amax_to_scale, finite_amax, mean_square_to_scale
from tests.helpers import assert_power_of_two, to_numpy

POWERS = (2.0 ** np.arange(-126, 128)).astype("float32")  # every normal power of two
BELOW, ABOVE = (np.nextafter(POWERS, np.float32(v)) for v in (0, np.inf))
SCALED = [name for name, row in FORMATS.items() if row.is_scaled]


def scale_of(amax, name, margin=0):
    amax = ops.convert_to_tensor(np.float32(amax))
    return to_numpy(amax_to_scale(amax, FORMATS[name], margin))


def test_mean_square_to_scale_is_the_power_of_two_at_or_below_the_root():
    row = FORMATS["float8_e4m3fn"]
    for root in POWERS[64:190:7]:
        for factor in (1.0, 1.5, 1.99):
            square = ops.convert_to_tensor(np.float32(float(root * factor) ** 2))
            assert float(to_numpy(mean_square_to_scale(square, row))) == root


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("name", SCALED)
def test_scale_is_the_smallest_power_of_two_that_fits(name, margin):
    limit = FORMATS[name].max / 2**margin
    # Where the scale changes: at the format's largest value times a power of two.
    edges = limit * POWERS.astype("float64")
    edges = edges[(edges > 2.0**-126) & (edges < 2.0**127)].astype("float32")
    amaxes = np.concatenate(
        [POWERS, BELOW[1:], ABOVE, edges, np.nextafter(edges, np.float32(np.inf))]
    )
    scale = scale_of(amaxes, name, margin).astype("float64")
    assert_power_of_two(scale)
    assert np.all((scale >= 2.0**-126) & (scale <= 2.0**126))
    fits = amaxes / scale <= limit
    smallest = (amaxes / (scale / 2) > limit) | (scale == 2.0**-126)
    assert np.all(fits & smallest)


@given(amax=st.floats(0, 3.4028234663852886e38, width=32))
@pytest.mark.parametrize("name", SCALED)
def test_any_amax_gives_a_scale_that_fits(name, amax):
    scale = scale_of(amax, name)
    assert_power_of_two(scale)
    assert float(amax) / float(scale) <= FORMATS[name].max


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_a_format_of_float32_range_needs_no_scale(name):
    np.testing.assert_array_equal(scale_of([0, 1e-30, 3.0, 1e38], name), 1.0)


def test_zero_gives_scale_one():
    assert scale_of(0.0, "float8_e4m3fn") == 1.0


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([[1.0, -5.0], [3.0, 0.0]], 5.0),
        ([-0.0, 0.0], 0.0),
        ([], 0.0),
        ([[], []], 0.0),
        ([np.nan, -2.0, np.inf], 2.0),
        ([np.nan, np.inf, -np.inf], 0.0),
        ([3.4e38, -np.inf], 3.4e38),
        ([1e-37, -2e-37], 2e-37),
    ],
)
@pytest.mark.parametrize("where", ["scaling", "backend"])
def test_amax_is_of_the_finite_entries(where, x, expected):
    from keras_scalify import backend

    amax = finite_amax if where == "scaling" else backend.amax
    result = to_numpy(amax(ops.array(np.float32(x))))
    assert result.dtype == np.float32 and result.shape == ()
    assert result == np.float32(expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_amax_of_a_narrow_tensor_is_float32(dtype):
    from keras_scalify import backend

    x = ops.cast(ops.array(np.float32([3.0, -4.0])), dtype)
    assert to_numpy(backend.amax(x)).dtype == np.float32
    assert float(backend.amax(x)) == 4.0
