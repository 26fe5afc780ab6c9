"""ScaledDense wherever Dense can stand."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, assert_same, relative_error, to_numpy
from tests.layers.layer_cases import FORWARD, built, fit, mlp, normal, scale_states

BACKEND = keras.backend.backend()


class Subclassed(keras.Model):
    def __init__(self, recipe):
        super().__init__()
        self.hidden = ks.layers.ScaledDense(8, activation="relu", recipe=recipe)
        self.head = ks.layers.ScaledDense(3, recipe=recipe)

    def call(self, x, training=None):
        return self.head(self.hidden(x, training=training), training=training)


def sequential(recipe):
    layers = [ks.layers.ScaledDense(n, recipe=recipe) for n in (8, 3)]
    return keras.Sequential([keras.Input((6,)), *layers])


def shared(recipe):
    x = keras.Input((6,))
    layer = ks.layers.ScaledDense(6, activation="tanh", recipe=recipe)
    return keras.Model(x, ks.layers.ScaledDense(3, recipe=recipe)(layer(layer(x))))


def time_distributed(recipe):
    x = keras.Input((6,))
    y = keras.layers.Reshape((3, 2))(x)
    y = keras.layers.TimeDistributed(ks.layers.ScaledDense(4, recipe=recipe))(y)
    y = keras.layers.Flatten()(y)
    return keras.Model(x, ks.layers.ScaledDense(3, recipe=recipe)(y))


def masked(recipe):
    x = keras.Input((6,))
    y = keras.layers.Reshape((3, 2))(x)
    y = keras.layers.Masking()(y)
    y = ks.layers.ScaledDense(4, recipe=recipe)(y)
    return keras.Model(x, keras.layers.LSTM(3)(y))


def regularized(recipe):
    layer = ks.layers.ScaledDense(
        3, kernel_regularizer="l2", activity_regularizer="l2", recipe=recipe
    )
    return keras.Sequential([keras.Input((6,)), layer])


def adapted(recipe):
    layers = [ks.layers.ScaledDense(n, lora_rank=2, recipe=recipe) for n in (8, 3)]
    return keras.Sequential([keras.Input((6,)), *layers])


@keras.saving.register_keras_serializable(package="tests")
class Cell(keras.layers.Layer):
    """A recurrent cell whose two products are scaled."""

    def __init__(self, units, recipe, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units
        self.recipe = recipe
        self.inner = ks.layers.ScaledDense(units, recipe=recipe)
        self.recurrent = ks.layers.ScaledDense(units, use_bias=False, recipe=recipe)

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.recurrent.build((None, self.units))
        self.built = True

    def call(self, x, states, training=None):
        h = self.inner(x, training=training)
        h = ops.tanh(h + self.recurrent(states[0], training=training))
        return h, [h]

    def get_config(self):
        return {**super().get_config(), "units": self.units, "recipe": self.recipe}


def recurrent(recipe, **kwargs):
    x = keras.Input((6,))
    y = keras.layers.Reshape((3, 2))(x)
    return keras.Model(x, keras.layers.RNN(Cell(3, recipe), **kwargs)(y))


def bidirectional(recipe):
    x = keras.Input((6,))
    y = keras.layers.Reshape((3, 2))(x)
    y = keras.layers.Bidirectional(keras.layers.RNN(Cell(3, recipe)))(y)
    return keras.Model(x, ks.layers.ScaledDense(3, recipe=recipe)(y))


def subclassed(recipe):
    model = Subclassed(recipe)
    model(np.zeros((1, 6), "float32"))
    return model


MODELS = [
    (sequential, "float8"),
    (subclassed, "float8_delayed"),
    (shared, "float8_delayed"),
    (time_distributed, "float8_delayed"),
    (masked, "float8"),
    (regularized, "float8_delayed"),
    (adapted, "float8_delayed"),
    (bidirectional, "float8_delayed"),
]


def moved(model, before):
    """Whether each trainable kernel moved, and all stayed finite."""
    pairs = [(to_numpy(v), before[v.path]) for v in model.trainable_variables]
    assert all(np.isfinite(a).all() for a, _ in pairs)
    return [bool(np.any(a != b)) for a, b in pairs if a.ndim == 2]


@pytest.mark.parametrize(("make", "recipe"), MODELS)
def test_a_model_of_any_kind_trains(make, recipe):
    model = make(recipe)
    before = {v.path: to_numpy(v) for v in model.variables}
    x, y = normal(20, 6), normal(20, 3, seed=1)
    # On TensorFlow without XLA, which the other tests use: it compiles for seconds.
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=BACKEND == "jax")
    model.fit(x, y, batch_size=8, verbose=0)
    assert all(moved(model, before))
    assert np.isfinite(model.predict(x, verbose=0)).all()
    scales = [v for v in model.variables if v.path.endswith("_scale")]
    assert scales
    assert_power_of_two([float(v) for v in scales])


@pytest.mark.parametrize(("steps", "unroll"), [(1, False), (12, False), (3, True)])
def test_an_rnn_cell_is_that_of_float32(steps, unroll):
    x = normal(8, steps, 4)
    outputs = []
    for recipe in ("float8", "float32"):
        rnn = keras.layers.RNN(Cell(6, recipe), return_sequences=True, unroll=unroll)
        rnn.build(x.shape)
        for i, dense in enumerate((rnn.cell.inner, rnn.cell.recurrent)):
            dense.kernel.assign(normal(*dense.kernel.shape, seed=i, scale=0.4))
        outputs.append(rnn(x, training=True))
    assert relative_error(*outputs) <= 0.10


def test_an_rnn_keeps_no_tracer_and_runs_again():
    model = recurrent("float8_delayed")
    fit(model)
    for value in scale_states(model).values():
        assert np.isfinite(value).all()
    fit(model)
    assert_same(*(model.predict(normal(4, 6), verbose=0) for _ in range(2)))


@pytest.mark.parametrize(
    ("policy", "recipe"),
    [
        ("mixed_bfloat16", "float8"),
        ("mixed_float16", "float8_delayed"),
        ("bfloat16", "float16"),
    ],
)
def test_policies_train(policy, recipe):
    model = mlp(dtype=policy, recipe=recipe)
    before = {v.path: to_numpy(v) for v in model.variables}
    optimizer = keras.optimizers.SGD(0.5)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    fit(model, optimizer=optimizer)
    assert all(moved(model, before))
    for variable in model.variables:
        if variable.path.endswith(("_scale", "_window", "_amax")):
            assert variable.dtype == "float32"


def test_training_in_float8_follows_float32():
    """30 steps on a linear task: the losses of both are close, and fall."""
    x = normal(256, 6)
    y = x @ normal(6, 3, seed=3)
    losses = []
    for recipe in ("float32", "float8", "float8_delayed"):
        model = mlp(recipe=recipe)
        model.compile(keras.optimizers.Adam(0.02), "mse")
        history = model.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    first, last = np.array(losses)[:, 0], np.array(losses)[:, -1]
    assert np.all(last < 0.6 * first)
    assert np.all(np.abs(last / last[0] - 1) < 0.05)


@pytest.mark.parametrize("recipe", ["float8", "float32"])
def test_lora_trains_the_adapters_alone(recipe):
    layer = built(6, 3, recipe=recipe)
    x = normal(8, 6)
    plain = to_numpy(layer(x))
    layer.enable_lora(2, lora_alpha=4)
    assert_same(layer(x), plain)  # the second adapter starts at zero
    layer.lora_kernel_b.assign(normal(2, 3, seed=4))
    truth = x @ to_numpy(layer.kernel) + to_numpy(layer.bias)
    assert relative_error(layer(x), truth) <= FORWARD[1]
    model = keras.Sequential([keras.Input((6,)), layer])
    kernel = to_numpy(layer._kernel)
    adapters = [to_numpy(layer.lora_kernel_a), to_numpy(layer.lora_kernel_b)]
    fit(model)
    assert_same(layer._kernel, kernel)
    trained = [to_numpy(layer.lora_kernel_a), to_numpy(layer.lora_kernel_b)]
    assert all(np.any(a != b) for a, b in zip(trained, adapters, strict=True))


def test_constraints_hold_and_regularizers_count():
    layer = built(6, 3, kernel_constraint="non_neg", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((6,)), layer])
    fit(model, optimizer=keras.optimizers.SGD(0.5))
    assert np.all(to_numpy(layer.kernel) >= 0)
    expected = 0.01 * np.sum(to_numpy(layer.kernel) ** 2)
    assert to_numpy(model.losses[0]) == pytest.approx(expected, rel=1e-5)


def test_masks_pass_through():
    layer = built(2, 4)
    x = keras.layers.Masking()(ops.array([[[1.0, 2.0], [0.0, 0.0]]]))
    mask = keras.src.backend.get_keras_mask(layer(x))
    np.testing.assert_array_equal(to_numpy(mask), [[True, False]])


@pytest.mark.skipif(BACKEND == "torch", reason="Keras allows one step on Torch")
def test_steps_per_execution_and_a_partial_batch_change_nothing():
    results = []
    for steps in (1, 2):
        model = mlp(recipe="float8_delayed")
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
        model.fit(normal(40, 6), normal(40, 3), batch_size=10, shuffle=False, verbose=0)
        model.evaluate(normal(7, 6), normal(7, 3), verbose=0)
        results.append([to_numpy(v) for v in model.variables])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{"use_ema": True}, {"clipnorm": 1.0}], ids=str)
def test_optimizer_options_with_the_default_recipe(options):
    fit(mlp(), optimizer=keras.optimizers.Adam(0.01, **options))


@pytest.mark.skipif(BACKEND != "jax", reason="Keras rematerializes on JAX only")
@pytest.mark.parametrize(
    ("mode", "recipe"), [("full", "float8"), ("activations", "float8_delayed")]
)
def test_remat_gives_the_same_gradients(mode, recipe):
    plain = mlp(recipe=recipe)
    with keras.RematScope(mode=mode):
        remat = mlp(recipe=recipe)
    x, g = normal(8, 6), normal(8, 3, seed=1)
    assert_same(*(pull_back(m, x, g)[2] for m in (plain, remat)))
    before = {v.path: to_numpy(v) for v in remat.variables}
    fit(remat)
    assert all(moved(remat, before))


@pytest.mark.skipif(BACKEND == "torch", reason="Torch runs each step in Python")
def test_a_long_fit_traces_no_more_than_a_short_one(monkeypatch):
    calls, call = [], ks.layers.ScaledDense.call

    @functools.wraps(call)
    def counted(self, *args, **kwargs):
        calls.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(ks.layers.ScaledDense, "call", counted)
    counts = []
    for epochs in (2, 6):
        model = mlp(recipe="float8_delayed")
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=False)
        calls.clear()
        model.fit(normal(20, 6), normal(20, 3), batch_size=8, epochs=epochs, verbose=0)
        counts.append(len(calls))
    assert 0 < counts[0] == counts[1]
