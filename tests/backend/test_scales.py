"""Scales that a backend computes or multiplies in a way of its own."""

import numpy as np
import pytest
from keras import ops

from keras_scalify import backend
from keras_scalify.equations import parse
from keras_scalify.formats import FORMATS
from keras_scalify.scaling import SCALE_LIMITS, amax_to_scale, mean_square_to_scale
from tests.helpers import to_numpy

# Every exponent, mantissas around those of the formats' largest values, and the ends.
EDGES = np.float32([0.0, 2.0**-126, 3.4028235e38, np.nan])
MANTISSAS = np.float32([1.0, 1.25, 1.7499999, 1.75, 1.7500001, 1.9375, 1.9999999])
NUMBERS = np.concatenate(
    [np.ldexp(m, np.arange(-126, 128)) for m in MANTISSAS] + [EDGES]
).astype("float32")


@pytest.mark.parametrize("function", [amax_to_scale, mean_square_to_scale])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16", "float32"])
def test_a_scalar_is_computed_as_a_tensor_is(name, function):
    row = FORMATS[name]
    expected = to_numpy(function(ops.array(NUMBERS), row))
    for i in (*range(0, NUMBERS.size, 7), *range(-EDGES.size, 0)):
        scale = backend.scalar(function, ops.array(NUMBERS[i]), row)
        assert scale.dtype == ops.array(NUMBERS).dtype and scale.shape == ()
        assert to_numpy(scale) == expected[i]


@pytest.mark.parametrize(
    "scales",
    [
        (2.0**-7, 2.0**-6),
        (2.0**-59, 2.0**-2),
        (2.0**-40, 2.0**-40),
        (2.0**61, 2.0**-61),
        (2.0**-90, 2.0**100),
        (2.0**80, 2.0**40),
        SCALE_LIMITS,
        (2.0**100, 2.0**-90),
    ],
)
@pytest.mark.parametrize("equation", ["bk,kn->bn", "abk,kn->nab"])
def test_a_product_takes_one_scale_after_the_other(equation, scales, monkeypatch):
    monkeypatch.setattr("keras_scalify.config._matmul", "emulated")
    rng = np.random.default_rng(0)
    shapes = [[4 + ord(c) % 5 for c in t] for t in equation.split("->")[0].split(",")]
    a, b = (ops.array(rng.integers(-8, 9, s).astype("float32")) for s in shapes)

    def product(*scales):
        scales = [ops.array(np.float32(s)) for s in scales]
        return to_numpy(backend.einsum(parse(equation), a, b, scales, "float32"))

    first, second = map(np.float32, scales)
    np.testing.assert_array_equal(product(*scales), product(1, 1) * first * second)
