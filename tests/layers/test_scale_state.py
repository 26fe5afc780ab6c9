"""Delayed and static scales: what is recorded, what is used, and for how long."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, relative_error, to_numpy
from tests.layers.layer_cases import FORWARD, built, normal, scale_states

WINDOW = 4
BACKEND = keras.backend.backend()


def delayed(window=WINDOW, **kwargs):
    scalings = {
        f"{role}_scaling": "delayed" for role in ("input", "kernel", "gradient")
    }
    return ks.Recipe(window=window, **scalings, **kwargs)


def batch(amax, seed=0):
    """Data of a given largest magnitude."""
    x = normal(8, 6, seed=seed)
    return (x / np.abs(x).max() * amax).astype("float32")


def model_of(recipe, **kwargs):
    layer = built(6, 4, recipe=recipe, use_bias=False, **kwargs)
    return keras.Sequential([keras.Input((6,)), layer])


def run(model, amaxes, optimizer=None, **kwargs):
    """One training step a batch, at rate 0 unless told otherwise."""
    kwargs.setdefault("jit_compile", BACKEND == "jax")
    model.compile(optimizer or keras.optimizers.SGD(0.0), "mse", **kwargs)
    for i, amax in enumerate(amaxes):
        model.train_on_batch(batch(amax, seed=i), normal(8, 4, seed=i))
    return model.layers[0]


def needed_scale(amax, largest=448.0):
    return 2.0 ** np.ceil(np.log2(amax / largest))


def test_the_window_holds_the_last_amaxes():
    layer = run(model_of(delayed()), [1, 2, 16, 4, 8, 3])
    np.testing.assert_allclose(to_numpy(layer.scales.input_window), [16, 4, 8, 3])
    assert float(layer.input_scale) == needed_scale(16)
    kernel_amax = np.abs(to_numpy(layer.kernel)).max()
    np.testing.assert_array_equal(to_numpy(layer.scales.kernel_window), kernel_amax)
    assert float(layer.kernel_scale) == needed_scale(kernel_amax)


def test_the_gradient_arrives_one_step_later_with_its_own_amax():
    model = model_of(delayed())
    layer, amaxes = model.layers[0], []
    model.compile(keras.optimizers.SGD(0.0), lambda g, y: ops.sum(g * y))
    for i in range(4):
        g = normal(8, 4, seed=i, scale=10.0**-i)
        model.train_on_batch(batch(1), g)
        amaxes.append(np.abs(g).max())
    np.testing.assert_allclose(to_numpy(layer.scales.gradient_amax), amaxes[3])
    np.testing.assert_allclose(to_numpy(layer.scales.gradient_window), [0, *amaxes[:3]])
    assert float(layer.gradient_scale) == needed_scale(amaxes[0], 57344.0)


def test_the_scale_comes_down_after_a_window():
    layer = run(model_of(delayed()), [1e5] * 3 + [1.0] * (WINDOW + 1))
    assert float(layer.input_scale) == needed_scale(1.0)
    x = np.full((8, 6), 1e-3, "float32")
    x[0] = 1.0
    y = to_numpy(layer(x))
    truth = x @ to_numpy(layer.kernel)
    assert relative_error(y[1:], truth[1:]) <= 0.15


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_bad_batch_is_forgotten_after_a_window(value):
    model = model_of(delayed())
    model.compile(keras.optimizers.SGD(0.0), "mse")
    layer = model.layers[0]
    bad = np.where(np.arange(48).reshape(8, 6) == 7, value, batch(1)).astype("float32")
    model.train_on_batch(bad, normal(8, 4))
    assert_power_of_two([float(v) for v in layer.weights if v.path.endswith("_scale")])
    kernel = normal(6, 4, seed=9, scale=6**-0.5)
    layer.kernel.assign(kernel)  # a bad gradient times a rate of 0 is NaN
    run(model, [1.0] * (WINDOW + 2))
    assert float(layer.input_scale) == needed_scale(1.0)
    layer.kernel.assign(kernel)
    x = batch(1, seed=4)
    assert relative_error(layer(x), x @ kernel) <= 1.5 * FORWARD[1]


def test_accumulated_steps_keep_the_largest_amax():
    optimizer = keras.optimizers.SGD(0.0, gradient_accumulation_steps=2)
    layer = run(model_of(delayed()), [8, 2, 8], optimizer)
    assert float(layer.input_scale) == needed_scale(8)
    assert to_numpy(layer.scales.input_window).max() == 8
    y = layer(batch(8))
    truth = batch(8) @ to_numpy(layer.kernel)
    assert relative_error(y, truth) <= 1.5 * FORWARD[1]


class CustomStep(keras.Sequential):
    """A train_step of its own, as Keras's guides write it for each backend."""

    def train_step(self, *args):
        return getattr(self, f"{BACKEND}_step")(*args)

    def jax_step(self, state, data):
        import jax

        trainable, non_trainable, optimizer, metrics = state
        x, y = data

        def loss(trainable, non_trainable):
            pred, non_trainable = self.stateless_call(
                trainable, non_trainable, x, training=True
            )
            return self.compute_loss(x, y, pred), non_trainable

        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, non_trainable), grads = gradient(trainable, non_trainable)
        trainable, optimizer = self.optimizer.stateless_apply(
            optimizer, grads, trainable
        )
        return {"loss": value}, (trainable, non_trainable, optimizer, metrics)

    def tensorflow_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}

    def torch_step(self, data):
        import torch

        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x, training=True))
        loss.backward()
        grads = [v.value.grad for v in self.trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(grads, self.trainable_weights)
        return {"loss": loss}


@pytest.mark.parametrize("recipe", [delayed(), "float8"], ids=["delayed", "float8"])
def test_every_way_to_train_records_the_same(recipe):
    amaxes = [1, 2, 4, 8, 16]
    x = np.concatenate([batch(a, seed=i) for i, a in enumerate(amaxes)])
    y = np.concatenate([normal(8, 4, seed=i) for i in range(len(amaxes))])
    states = []
    for way in ("train_on_batch", "fit", "train_step"):
        model = model_of(recipe)
        if way == "train_on_batch":
            run(model, amaxes, keras.optimizers.SGD(0.01))
        else:
            if way == "train_step":
                model = CustomStep([keras.Input((6,)), model.layers[0]])
            jit = BACKEND == "jax"
            model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        states.append(scale_states(model))
    assert float(model.layers[0].input_scale) == needed_scale(16)
    for state in states[1:]:
        for key, value in states[0].items():
            np.testing.assert_allclose(state[key], value, rtol=1e-6, err_msg=key)


def test_loss_scaling_leaves_the_forward_scales_alone():
    states = []
    for wrap in (False, True):
        optimizer = keras.optimizers.SGD(0.0)
        if wrap:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 1024.0)
        model = model_of(delayed(), dtype="mixed_float16")
        run(model, [5.0, 3.0, 4.0], optimizer)
        states.append(scale_states(model))
    for key, value in states[0].items():
        if "gradient" not in key:
            np.testing.assert_array_equal(states[1][key], value, err_msg=key)
        elif key.endswith("amax"):
            assert states[1][key] / value == pytest.approx(1024, rel=0.01)


def test_the_first_delayed_step_measures():
    """An empty window is no default scale: the step is that of current scaling."""
    x, g = normal(8, 6, scale=1e4), normal(8, 4, seed=1, scale=1e-8)
    results = [
        pull_back(built(6, 4, recipe=recipe, use_bias=False), x, g, training=True)
        for recipe in (delayed(), "float8")
    ]
    for a, b in zip(*((y, dx, dws[0]) for y, dx, dws in results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_static_scales_are_used_as_given_and_stay():
    scalings = {f"{role}_scaling": "static" for role in ("input", "kernel", "gradient")}
    layer = built(6, 4, recipe=ks.Recipe(**scalings), use_bias=False)
    given = {"input_scale": 4.0, "kernel_scale": 0.25, "gradient_scale": 2.0**-20}
    for name, value in given.items():
        getattr(layer, name).assign(value)
    x, g = batch(4000), normal(8, 4, seed=1, scale=1e-4)
    y, dx, (dw,) = pull_back(layer, x, g, training=True)
    from tests.helpers import oracle_quantize

    qx = oracle_quantize(x, "float8_e4m3fn", 4.0) * 4.0
    qw = oracle_quantize(layer.kernel, "float8_e4m3fn", 0.25) * 0.25
    qg = oracle_quantize(g, "float8_e5m2", 2.0**-20) * 2.0**-20
    assert np.abs(qx).max() == 4 * 448 < np.abs(x).max()  # saturated as told
    for result, truth in ((y, qx @ qw), (dx, qg @ qw.T), (dw, qx.T @ qg)):
        np.testing.assert_allclose(result, truth, rtol=1e-5, atol=1e-9)
    layer(x, training=True)
    assert {name: float(getattr(layer, name)) for name in given} == given
