"""The oracle and the assertions must themselves be right."""

import numpy as np
import pytest

from tests.helpers import (
    assert_power_of_two,
    assert_sqnr,
    oracle_quantize,
    relative_error,
    sqnr_db,
)


@pytest.mark.parametrize(
    ("format_name", "x", "scale", "expected"),
    [
        ("float8_e4m3fn", [1.0, -3.0, 1e9], 1.0, [1.0, -3.0, 448.0]),
        ("float8_e4m3fn", [np.nan, np.inf, -np.inf], 1.0, [np.nan] * 3),
        ("float8_e5m2", [np.inf, 1e9], 1.0, [np.inf, 57344.0]),
        ("float8_e4m3fn", [1.0625, 1.1875], 1.0, [1.0, 1.25]),  # ties to even
        ("float8_e4m3fn", [2.0**-9, 2.0**-10], 1.0, [2.0**-9, 0.0]),  # subnormals
        ("float16", [3e38, -4.0], 2.0**-8, [65504.0, -1024.0]),
        ("bfloat16", [3.0], 2.0, [1.5]),
        ("float32", [1 / 3], 1.0, [1 / 3]),
    ],
)
def test_oracle_quantize(format_name, x, scale, expected):
    data = oracle_quantize(x, format_name, scale)
    assert data.dtype == np.float32
    np.testing.assert_array_equal(data, np.float32(expected))


def test_power_of_two():
    assert_power_of_two(np.float32([2.0**-149, 0.5, 1, 2.0**127]))
    for wrong in (0.0, -1.0, 3.0, np.inf, np.nan):
        with pytest.raises(AssertionError):
            assert_power_of_two(np.float32(wrong))


def test_sqnr():
    assert sqnr_db([1.0, 2.0], [1.0, 2.0]) == np.inf
    assert sqnr_db([10.0], [9.0]) == pytest.approx(20.0)
    assert_sqnr([10.0], [9.0], 19.9)
    for value in (9.0, np.nan):
        with pytest.raises(AssertionError):
            assert_sqnr([10.0], [value], 20.1)


def test_relative_error():
    assert relative_error([3.0, 5.0], [3.0, 4.0]) == pytest.approx(0.2)
    assert relative_error([0.0], [0.0]) == 0
    assert relative_error([1.0], [0.0]) == np.inf
