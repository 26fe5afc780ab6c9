"""Kernels at rest in 16 bits: values, gradients, files, errors."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.ops.narrow_weight import SCALE, used_unit
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, relative_error, to_numpy

layers = ks.layers
DTYPES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # and the error of a rounding
RNG = np.random.default_rng(0)

CASES = {  # name: (layer, its arguments, shape of its input)
    "dense": (layers.ScaledDense, (4,), (3, 8)),
    "einsum": (layers.ScaledEinsumDense, ("ab,bc->ac", 4), (3, 8)),
    "conv1d": (layers.ScaledConv1D, (4, 3), (2, 9, 3)),
    "conv2d": (layers.ScaledConv2D, (4, 3), (2, 5, 5, 3)),
    "depthwise": (layers.ScaledDepthwiseConv2D, (3,), (2, 5, 5, 3)),
}


def as_data(layer):
    return to_numpy(layer.kernel_variable).astype(np.float32)


def scales(layer):
    return to_numpy(layer.weight_scales.scales)


@pytest.mark.parametrize("recipe", ["float8", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_output_is_that_of_the_wide_kernel(case, recipe):
    make, args, shape = CASES[case]
    narrow, plain = (
        make(*args, weight_dtype=dtype, recipe=recipe) for dtype in ("float16", None)
    )
    for layer in (narrow, plain):
        layer.build(shape)
    plain.assign_kernel(narrow.wide_kernel())
    x = np.float32(RNG.normal(size=shape))
    np.testing.assert_array_equal(to_numpy(narrow(x)), to_numpy(plain(x)))
    np.testing.assert_array_equal(to_numpy(narrow.kernel), to_numpy(plain.kernel))
    assert narrow.kernel_variable.dtype == "float16"
    assert_power_of_two(scales(narrow)[SCALE])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_initial_values_keep_their_precision(dtype, size):
    value = np.float32(RNG.normal(size=(8, 4)) * size)
    layer = layers.ScaledDense(
        4, weight_dtype=dtype, kernel_initializer=keras.initializers.Constant(value)
    )
    layer.build((None, 8))
    error = np.abs(to_numpy(layer.kernel) - value) / np.abs(value).max()
    assert error.max() <= DTYPES[dtype]
    assert 2**6 <= np.abs(as_data(layer)).max() <= 2**7


def kernel_gradients(h, unit):
    """The gradients of a kernel's data and scales where the kernel's own is h."""
    layer = layers.ScaledDense(
        h.shape[1], recipe="float32", weight_dtype="float16", use_bias=False
    )
    layer.build((None, len(h)))
    layer.weight_scales.scales.assign([2.0**-7, unit])
    return pull_back(layer, np.eye(len(h), dtype="float32"), h)[2]


@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0])
def test_gradient_of_data_is_that_of_the_weight_times_its_unit(size):
    h = np.float32(RNG.normal(size=(5, 3)) * size)
    data, found = kernel_gradients(h, unit=2.0**5)
    assert data.dtype == np.float16
    np.testing.assert_allclose(data, h * 2.0**5, rtol=2**-10, atol=2**-24)
    np.testing.assert_allclose(found, [1.0, np.abs(h).max()], rtol=1e-6)


def test_a_gradient_out_of_range_is_clipped_and_an_infinity_is_not():
    data, _ = kernel_gradients(np.float32([[1e6, np.inf, np.nan]]), unit=1.0)
    np.testing.assert_array_equal(data, np.float16([[2048, np.inf, np.nan]]))


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_a_first_gradient_finds_its_unit(size):
    h = np.float32(RNG.normal(size=(5, 3)) * size)
    data, found = kernel_gradients(h, unit=0.0)
    unit = to_numpy(used_unit(np.float32(0), keras.ops.convert_to_tensor(found)))
    wide = data.astype(np.float32) / unit
    np.testing.assert_allclose(wide, h, rtol=2**-10, atol=size * 2**-20)


def test_embedding_looks_up_and_projects_the_wide_table():
    layer = layers.ScaledEmbedding(6, 4, weight_dtype="float16", recipe="float32")
    layer.build()
    table, ids = to_numpy(layer.embeddings), np.array([[1, 5]])
    assert table.dtype == np.float32 and layer.kernel_variable.dtype == "float16"
    np.testing.assert_array_equal(to_numpy(layer(ids)), table[ids])
    x = np.float32(RNG.normal(size=(2, 4)))
    y = to_numpy(layer(x, reverse=True))
    np.testing.assert_allclose(y, x @ table.T, rtol=1e-5, atol=1e-6)


def test_attention_stores_its_projections_narrow():
    """With the initial values that Keras's layer has."""
    given = {"recipe": "float32"}
    x = np.float32(RNG.normal(size=(2, 3, 8)))
    outputs = []
    for make, kwargs in (
        (layers.ScaledMultiHeadAttention, {**given, "weight_dtype": "float16"}),
        (layers.ScaledMultiHeadAttention, given),
        (keras.layers.MultiHeadAttention, {}),
    ):
        keras.utils.set_random_seed(0)
        layer = make(2, 4, **kwargs)
        outputs.append(to_numpy(layer(x, x)))
        kernels = [v.dtype for v in layer.weights if v.name == "kernel"]
        assert kernels == [kwargs.get("weight_dtype", "float32")] * 4
        assert layer.get_config().get("weight_dtype") == kwargs.get("weight_dtype")
    assert relative_error(outputs[0], outputs[2]) <= 2e-3
    np.testing.assert_array_equal(outputs[1], outputs[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_keep_the_data_and_plain_ones_are_read(dtype, tmp_path):
    def model(weight_dtype):
        layer = layers.ScaledDense(5, weight_dtype=weight_dtype, name="d")
        return keras.Sequential([keras.Input((3,)), layer])

    narrow, again, plain = model(dtype), model(dtype), model(None)
    narrow.save_weights(path := tmp_path / "narrow.weights.h5")
    for other in (again, plain):
        other.load_weights(path)
        np.testing.assert_array_equal(
            to_numpy(other.layers[0].kernel), to_numpy(narrow.layers[0].kernel)
        )
    np.testing.assert_array_equal(as_data(again.layers[0]), as_data(narrow.layers[0]))
    plain.layers[0].assign_kernel(np.float32(RNG.normal(size=(3, 5)) * 100))
    plain.save_weights(path := tmp_path / "plain.weights.h5")
    again.load_weights(path)
    error = relative_error(again.layers[0].kernel, plain.layers[0].kernel)
    assert error <= DTYPES[dtype]


def test_a_keras_layer_refuses_the_file(tmp_path):
    def model(layer):
        return keras.Sequential([keras.Input((3,)), layer])

    narrow = model(layers.ScaledDense(5, weight_dtype="float16", name="d"))
    narrow.save_weights(path := tmp_path / "narrow.weights.h5")
    with pytest.raises(ValueError, match="expected 2 variables"):
        model(keras.layers.Dense(5, name="d")).load_weights(path)


@pytest.mark.parametrize("wrong", ["float32", "float8", 16, "half"])
def test_other_dtypes_are_refused(wrong):
    for make in (layers.ScaledDense, layers.ScaledMultiHeadAttention):
        with pytest.raises(ValueError, match="`weight_dtype` must be None, 'float16'"):
            make(*(2, 4)[: 1 + (make is not layers.ScaledDense)], weight_dtype=wrong)
