"""Carry takes a scale through every Keras layer of its table."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify.layers.carry import CARRIED
from tests.helpers import assert_same, to_numpy
from tests.ops.pulled import pull

BACKEND = keras.backend.backend()
ARGUMENTS = {
    "AveragePooling": {"pool_size": 2},
    "Cropping": {"cropping": 2},
    "Dropout": {"rate": 0.3},
    "Permute": {"dims": (2, 1)},
    "RepeatVector": {"n": 3},
    "Reshape": {"target_shape": (-1,)},
    "SpatialDropout": {"rate": 0.3},
    "UpSampling": {"size": 2},
    "ZeroPadding": {"padding": 2},
}
# Of a window of maxima, of entries beside others that get a gradient of 0, or of
# dropped channels, of which there are few: the mean squares of a sample scatter.
LIMIT = 1.25


def carried(name):
    kind = name.rstrip("123D") if name[-1] == "D" else name
    arguments = ARGUMENTS.get(kind, {})
    return getattr(keras.layers, name)(**arguments)


def inputs(name):
    rank = int(name[-2]) if name[-1] == "D" else {"RepeatVector": 0}.get(name, 1)
    shape = {0: (37, 29), 1: (64, 18, 8), 2: (32, 9, 8, 6), 3: (16, 8, 7, 6, 16)}[rank]
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("name", CARRIED)
def test_value_and_mean_squares(name):
    layer, x = carried(name), inputs(name)
    carry = ks.layers.Carry(layer)
    trains = "Dropout" in name
    spec = carry(
        keras.tree.map_structure(
            lambda t: keras.KerasTensor(t.shape), ks.ScaledTensor(x, np.float32(1))
        )
    )
    pulled = pull(lambda t: carry(t, training=trains), x, compiled=BACKEND == "jax")
    assert tuple(spec.shape) == pulled.values[0].shape
    for ratio in pulled.ratios():
        assert 1 / LIMIT <= ratio <= LIMIT, (pulled.forward, pulled.backward)
    if not trains:
        assert_same(pulled.values[0], to_numpy(layer(x)))
        assert_same(carry(x), layer(x))


def test_dropout_does_nothing_outside_of_training():
    x = ks.ops.scale(inputs("Dropout"))
    y = ks.layers.Carry(keras.layers.Dropout(0.5))(x, training=False)
    assert_same(list(y), list(x))


def test_another_layer_is_refused():
    with pytest.raises(ValueError, match="GaussianNoise.*Unscale"):
        ks.layers.Carry(keras.layers.GaussianNoise(1.0))


@pytest.mark.parametrize("name", ["Cropping2D", "MaxPooling1D", "Permute", "Reshape"])
def test_config_round_trip(name):
    carry = ks.layers.Carry(carried(name), name="carry")
    again = ks.layers.Carry.from_config(carry.get_config())
    assert again.get_config() == carry.get_config()
    x = ks.ops.scale(inputs(name))
    assert_same(list(again(x)), list(carry(x)))
