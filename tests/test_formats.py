"""The table of formats against the published limits and ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

from keras_scalify.formats import FORMATS, get_format

# name: mantissa bits, smallest normal, smallest subnormal, largest, infinity, scaled
LIMITS = {
    "float8_e4m3fn": (3, 2.0**-6, 2.0**-9, 448.0, False, True),
    "float8_e5m2": (2, 2.0**-14, 2.0**-16, 57344.0, True, True),
    "float16": (10, 2.0**-14, 2.0**-24, 65504.0, True, True),
    "bfloat16": (7, 2.0**-126, 2.0**-133, 3.3895313892515355e38, True, False),
    "float32": (23, 2.0**-126, 2.0**-149, 3.4028234663852886e38, True, False),
}


def test_every_format_has_its_limits():
    assert set(FORMATS) == set(LIMITS)


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    row = FORMATS[name]
    smallest = 2.0**row.min_exponent, 2.0**row.quantum_exponent
    flags = row.has_inf, row.is_scaled
    assert (row.mantissa_bits, *smallest, row.max, *flags) == LIMITS[name]
    assert row.bits == 8 * np.dtype(getattr(ml_dtypes, name, name)).itemsize
    assert row.is_identity == (name == "float32")


@pytest.mark.parametrize("name", ["float8", "float8_e4m3", "FLOAT16", "", None, 8])
def test_unknown_format_names_argument_value_and_choices(name):
    with pytest.raises(ValueError) as error:
        get_format(name, argument="kernel")
    assert "`kernel`" in str(error.value)
    assert f"kernel={name!r}" in str(error.value)
    assert all(known in str(error.value) for known in FORMATS)
