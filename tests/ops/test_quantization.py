"""quantize, dequantize and qdq of one tensor, against ml_dtypes."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.helpers import assert_power_of_two, assert_same, oracle_quantize, to_numpy
from tests.layers.layer_cases import normal

FORMATS = list(ks.FORMATS)


def numpy_of(data):
    """A narrow tensor as float32: numpy has no name for some of the dtypes."""
    return to_numpy(ops.cast(data, "float32"))


@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("name", FORMATS)
def test_quantize(name, magnitude):
    x = normal(100, 7, scale=magnitude)
    data, scale = ks.ops.quantize(x, name)
    assert keras.backend.standardize_dtype(data.dtype) == name
    assert_power_of_two(scale)
    assert_same(numpy_of(data), oracle_quantize(x, name, float(scale)))
    if ks.FORMATS[name].is_scaled:
        most = np.abs(numpy_of(data)).max()
        assert ks.FORMATS[name].max / 2.0 < most * 1.1 <= ks.FORMATS[name].max * 1.1
    again, same_scale = ks.ops.quantize(ks.ops.dequantize(data, scale), name, scale)
    assert_same(numpy_of(again), numpy_of(data))
    assert float(same_scale) == float(scale)


@pytest.mark.parametrize("name", FORMATS)
def test_qdq_is_both_in_a_row(name):
    x = normal(50, 3)
    both = ks.ops.dequantize(*ks.ops.quantize(x, name))
    assert_same(ks.ops.qdq(x, name), both)
    assert_same(ks.ops.qdq(x, name, scale=2.0**-3), oracle_quantize(x, name, 0.125) / 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype):
    x = ops.cast(ops.array([1.0, 1.0625, -300.0]), dtype)
    y = ks.ops.qdq(x)
    assert keras.backend.standardize_dtype(y.dtype) == dtype
    assert numpy_of(y).tolist() == [1.0, 1.0, -288.0]
    data, scale = ks.ops.quantize(x)
    y = ks.ops.dequantize(data, scale, dtype)
    assert keras.backend.standardize_dtype(y.dtype) == dtype


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.0, -0.0], [0.0, -0.0]),
        ([], []),
        ([np.nan, 1.0], [np.nan, 1.0]),
        ([np.inf, -2.0], [np.nan, -2.0]),
    ],
)
def test_edges(x, expected):
    data, scale = ks.ops.quantize(np.float32(x))
    assert_power_of_two(scale)
    np.testing.assert_array_equal(ks.ops.dequantize(data, scale), np.float32(expected))


def test_float32_subnormals_are_kept_or_flushed_to_zero():
    kept = to_numpy(ks.ops.qdq(np.float32([1e-40])))  # CPU XLA flushes them
    assert 0 <= kept[0] <= 1.07e-40


def test_the_gradient_of_qdq_passes_as_it_is():
    class Qdq(keras.layers.Layer):
        def call(self, x, training=None):
            return ks.ops.qdq(x, "float8_e5m2")

    from tests.gradients import pull_back

    x, g = normal(4, 5), normal(4, 5, seed=1)
    layer = Qdq()
    layer.build((None, 5))
    for compiled in (False, True):
        y, dx, _ = pull_back(layer, x, g, compiled=compiled)
        assert_same(dx, g)
        assert_same(y, to_numpy(ks.ops.qdq(x, "float8_e5m2")))
        assert np.any(y != x)


@pytest.mark.parametrize("function", [ks.ops.quantize, ks.ops.qdq])
def test_unknown_format_names_argument_value_and_choices(function):
    with pytest.raises(ValueError) as error:
        function(np.float32([1.0]), "e4m3")
    assert "format='e4m3'" in str(error.value)
    assert all(name in str(error.value) for name in FORMATS)


@pytest.mark.parametrize("function", [ks.ops.quantize, ks.ops.qdq])
def test_other_wrong_arguments(function):
    x = np.float32([1.0])
    for scale in (0.0, -1.0, 3, float("nan"), np.float32(3), 2.0**200, 2**2000):
        with pytest.raises(ValueError, match="`scale` must be a power of two"):
            function(x, scale=scale)
    with pytest.raises(ValueError, match="plain tensors.*unscale"):
        function(ks.ScaledTensor(x, np.float32(1)))
    with pytest.raises(ValueError, match="symbolic"):
        function(keras.Input((3,)))
