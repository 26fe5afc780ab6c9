"""Sizes that differ: copies, permuted labels, edges of a convolution."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


@pytest.mark.parametrize("equation", ["abc,cd->bad", "ac,cde->aed", "bac,bcd->bda"])
def test_einsum_with_permuted_labels(equation):
    shapes = {"a": 4, "b": 3, "c": 4, "d": 5, "e": 2}
    terms = equation.split("->")[0].split(",")
    x, w = (normal(*(shapes[c] for c in term)) for term in terms)
    y = ks.ops.einsum(equation, ks.ops.scale(x), ks.ops.scale(w))
    assert relative_error(y.value, np.einsum(equation, x, w)) < 0.08


@pytest.mark.parametrize(
    ("scaled", "stock"),
    [
        (ks.layers.ScaledAdd, keras.layers.Add),
        (ks.layers.ScaledMultiply, keras.layers.Multiply),
    ],
)
def test_merging_tensors_of_different_rank(scaled, stock):
    x, y = normal(4, 4, 3), normal(4, 3)
    merged = scaled()([ks.ops.scale(x), ks.ops.scale(y)])
    np.testing.assert_array_equal(to_numpy(merged.value), to_numpy(stock()([x, y])))


@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
def test_conv1d_pads_as_keras_does(padding):
    x = normal(2, 8, 3)
    layers = []
    for make, arguments in (
        (ks.layers.ScaledConv1D, {"recipe": "float8"}),
        (keras.layers.Conv1D, {}),
    ):
        keras.utils.set_random_seed(0)
        layers.append(make(4, 3, padding=padding, dilation_rate=2, **arguments))
    y, exact = (layer(x) for layer in layers)
    assert relative_error(y, exact) < 0.08


@pytest.mark.parametrize("window", [3, 5])
def test_conv_counts_only_the_positions_that_there_are(window):
    layer = ks.layers.ScaledConv2D(8, window)
    x = normal(4, 5, 5, 2)
    layer(x)
    product = layer.product(ops.convert_to_tensor(x))
    contracted, outputs, rows = product.fans(x, layer.kernel)
    positions = (6 - window) ** 2
    assert contracted == window**2 * 2
    assert rows == 4 * positions
    assert outputs == pytest.approx(window**2 * 8 * positions / 25)


def test_unscale_casts_to_its_dtype():
    x = ks.ops.scale(ops.cast(normal(2, 3), "bfloat16"))
    y = ks.layers.Unscale(dtype="float32")(x)
    assert keras.backend.standardize_dtype(y.dtype) == "float32"


def test_pooling_drops_the_mask_as_keras_does():
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(7, 4, mask_zero=True)(ids)
    x = ks.layers.Scale()(x)
    x = ks.layers.Carry(keras.layers.GlobalAveragePooling1D())(x)
    model = keras.Model(ids, ks.layers.Unscale()(x))
    model.compile("sgd", "mse")
    model.fit(np.array([[1, 2, 0, 0, 0]] * 2), normal(2, 4), verbose=0)
