"""Conversion of models of unusual structure, and of what is not the package's."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy
from tests.layers.layer_cases import normal


def branches():
    """Two branches of one length, whose order Keras takes from the depth of each."""
    x = keras.Input((32,))
    b = x
    for name in ("b1", "b2", "b3"):
        b = layers.Dense(32, name=name)(b)
    a = layers.Dense(32, name="a2")(layers.LeakyReLU()(layers.Dense(32, name="a1")(x)))
    return keras.Model(x, layers.Dense(32, name="out")(layers.Add()([b, a])))


@pytest.mark.filterwarnings("ignore:Keras orders the layers")
def test_the_state_of_an_optimizer_follows_its_variables():
    model = branches()
    model.compile("adam", "mse")
    x = normal(8, 32)
    model.fit(x, x, verbose=0)

    def moments(model):
        variables = model.optimizer.variables
        named = {v.path.split("/")[-1]: to_numpy(v) for v in variables}
        return {k: v for k, v in named.items() if "momentum" in k and "kernel" in k}

    before = moments(model)
    after = moments(ks.scalify(model, propagate=True))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_a_loss_that_nothing_can_name_goes_on():
    def own_loss(y, p):
        return ops.mean(ops.square(y - p), -1)

    model = keras.Sequential(
        [keras.Input((32,)), layers.Dense(32), layers.Dense(32), layers.Dense(32)]
    )
    model.compile("adam", own_loss)
    x = normal(8, 32)
    model.fit(x, x, verbose=0)
    new = ks.scalify(model, propagate=True)
    assert np.isfinite(new.fit(x, x, verbose=0).history["loss"][0])


class Tripled(ks.layers.ScaledDense):
    def call(self, inputs, training=None):
        return 3.0 * super().call(inputs, training=training)


def test_layers_of_ones_own_are_left_as_they_are():
    own = Tripled(16, recipe="float32")
    model = keras.Sequential([keras.Input((16,)), own, layers.Dense(16)])
    x = normal(2, 16)
    before = model.predict(x, verbose=0)
    ks.unscalify(model)
    assert type(own) is Tripled
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)


@pytest.mark.parametrize("name", ["softmax", "linear", "exponential"])
def test_a_function_with_the_name_of_an_activation_is_itself(name):
    def own(x):
        return 0.25 * x

    own.__name__ = name
    layer = ks.layers.ScaledDense(4, activation=own, recipe="float32")
    x = normal(8, 16)
    plain = to_numpy(layer(x))
    try:
        y = ks.ops.unscale(layer(ks.ops.scale(ops.convert_to_tensor(x))))
    except ValueError as error:  # refused is as good: no rule is known
        assert name in str(error)
        return
    assert relative_error(y, plain) <= 1e-5


@pytest.mark.filterwarnings("ignore:scalify found no layer")
def test_heads_behind_a_wrapper_and_a_shared_activation_keep_their_precision():
    x = keras.Input((8, 32))
    h = layers.Dense(32, name="inner")(x)
    wrapped = keras.Model(x, layers.TimeDistributed(layers.Dense(32, name="logits"))(h))
    softmax = layers.Activation("softmax")
    heads = [softmax(layers.Dense(32, name=name)(h)) for name in ("o1", "o2")]
    several = keras.Model(x, heads)
    for model in (wrapped, several):
        ks.scalify(model)
        scaled = {
            layer.name
            for layer in model._flatten_layers()
            if isinstance(layer, ks.layers.ScaledDense)
        }
        assert scaled == {"inner"}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: ks.scalify(m, filter="("), "`filter`"),
        (lambda m: ks.scalify(m, activation="relu"), "activation"),
        (lambda m: ks.callbacks.ScaleMonitor(limits=None), "`limits` must be a dict"),
    ],
)
def test_wrong_arguments_are_named(call, match):
    model = keras.Sequential([keras.Input((32,)), layers.Dense(32), layers.Dense(32)])
    with pytest.raises(ValueError, match=match):
        call(model)
