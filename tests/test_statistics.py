"""Every statistic, of tensors made by hand, in every format, eager and compiled."""

import importlib
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_scalify.formats import FORMATS
from keras_scalify.statistics import STATISTICS, measured, shown
from tests.helpers import oracle_quantize, sqnr_db, to_numpy

BACKEND = keras.backend.backend()
SCALE = 4.0
NAMES = list(FORMATS)


def made(format, scale=SCALE):
    """16 entries: 2 of them zero, 3 that underflow, 2 that saturate, 3 not finite.

    Of a format with the range of float32 none does: then they are 1.
    """
    least = scale * 2.0**format.quantum_exponent
    most = scale * format.max
    tiny = [0.25 * least, -0.49 * least, 0.5 * least] if format.is_scaled else [1.0] * 3
    huge = [1.01 * most, -3.0 * most] if format.is_scaled else [1.0] * 2
    plain = [most / 2, -1.0, 2.0, 3.0, -4.0, scale] if format.is_scaled else [1.0] * 6
    others = [0.0, -0.0, math.nan, math.inf, -math.inf]
    return np.array([*tiny, *huge, *plain, *others], "float32")


def expected(x, format, scale=SCALE):
    """By numpy in float64, and by counting."""
    finite = x[np.isfinite(x)]
    wide = finite.astype("float64")
    q = oracle_quantize(finite, format.name, scale).astype("float64") * scale
    amax = np.abs(wide).max()
    return {
        "amax": amax,
        "rms": math.sqrt(np.mean(wide**2)),
        "scale": scale,
        "headroom_bits": math.log2(format.max * scale / amax)
        if format.is_scaled
        else math.inf,
        "underflow_rate": 3 / 11 if format.is_scaled else 0.0,
        "saturation_rate": 2 / 13 if format.is_scaled else 0.0,
        "nonfinite_count": 3,
        "sqnr_db": sqnr_db(wide, q),
    }


def in_every_format(xs):
    """(formats, statistics): of a tensor for each format."""
    rows = zip(xs, FORMATS.values(), strict=True)
    scale = ops.convert_to_tensor(np.float32(SCALE))
    return ops.stack([measured(x, scale, format) for x, format in rows])


def compiled(function):
    """The function as the backend's compiler runs it."""
    module = importlib.import_module(BACKEND)
    makers = {
        "jax": lambda: module.jit(function),
        "tensorflow": lambda: module.function(function, jit_compile=True),
        "torch": lambda: module.compile(function, backend="aot_eager"),
    }
    return makers[BACKEND]()


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_made_tensors(form):
    run = in_every_format if form == "eager" else compiled(in_every_format)
    xs = [made(format) for format in FORMATS.values()]
    found = to_numpy(run([ops.convert_to_tensor(x) for x in xs]))
    for row, x, format in zip(found, xs, FORMATS.values(), strict=True):
        statistics, truth = shown(row), expected(x, format)
        assert list(statistics) == list(STATISTICS)
        for name, value in truth.items():
            exact = name not in ("rms", "headroom_bits", "sqnr_db")
            same = np.float32(value) if exact else pytest.approx(value, rel=1e-5)
            assert statistics[name] == same, (format.name, name)


def test_extremes_stay_finite():
    """Empty, zero, all NaN, and magnitudes whose squares leave float32."""
    format = FORMATS["float8_e4m3fn"]
    one = ops.convert_to_tensor(np.float32(1.0))
    for x in ([], [0.0, -0.0], [math.nan] * 3, [1e30, -3e38], [1e-37, 2e-37]):
        row = to_numpy(measured(ops.convert_to_tensor(np.float32(x)), one, format))
        assert np.isfinite(row).all() and (row >= 0).all(), x
    large = shown(
        to_numpy(measured(ops.convert_to_tensor(np.float32([2e30] * 4)), one, format))
    )
    assert large["rms"] == pytest.approx(2e30) and large["saturation_rate"] == 1.0
    small = np.float32([3e-30, -3e-30])
    scale = ops.convert_to_tensor(np.float32(2.0**-100))
    assert shown(to_numpy(measured(small, scale, format)))["rms"] == pytest.approx(
        3e-30
    )


def test_the_worst_is_the_largest_number():
    for name, row in STATISTICS.items():
        assert row.worst([row.show(0.1), row.show(0.3)]) == row.show(0.3), name
