"""ScaledAdam in Keras's training loop: loss scaling, schedules, freezing, company."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.helpers import to_numpy
from tests.optimizers.small_model import X, Y, build, changed, fit, snapshot
from tests.optimizers.stepper import Stepper

ScaledAdam = ks.optimizers.ScaledAdam
LossScale = keras.optimizers.LossScaleOptimizer


@pytest.mark.parametrize(
    ("state_dtype", "options"),
    [("float16", {}), ("bfloat16", {"weight_decay": 0.01, "amsgrad": True})],
)
def test_the_loss_falls_as_with_adam(state_dtype, options):
    scaled = fit(build(ScaledAdam(1e-2, state_dtype=state_dtype, **options)), epochs=12)
    stock = fit(build(keras.optimizers.Adam(1e-2, **options)), epochs=12)
    assert stock[-1] < 0.5 * stock[0]
    assert scaled[-1] == pytest.approx(stock[-1], rel=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_overflow_changes_nothing(bad):
    stepper = Stepper(LossScale(ScaledAdam(1e-3), initial_scale=2.0**15), [np.ones(4)])
    good = np.full(4, 2.0**15, np.float32)
    stepper.step(good)
    values, state = stepper.values(), stepper.state()
    overflow = good.copy()
    overflow[2] = bad
    stepper.step(overflow)
    np.testing.assert_array_equal(stepper.values()[0], values[0])
    different = {k for k in state if not np.array_equal(state[k], stepper.state()[k])}
    assert {name.split()[1] for name in different} == {"dynamic_scale", "step_counter"}
    for _ in range(5):
        stepper.step(good)
    assert to_numpy(stepper.optimizer.dynamic_scale) == 2.0**14
    assert to_numpy(stepper.optimizer.inner_optimizer.iterations) == 6
    assert np.all(np.isfinite(stepper.values()[0]))
    assert np.all(stepper.values()[0] < values[0])


def test_mixed_float16_skips_a_bad_batch():
    """Weights, moments and counters of the bad step stay; later steps are normal."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build(LossScale(ScaledAdam(1e-3), initial_scale=2.0**15))
    finally:
        keras.config.set_dtype_policy("float32")
    model.train_on_batch(X, Y)
    before = snapshot([*model.variables, *model.optimizer.variables])
    x = X.copy()
    x[3, 1] = np.nan
    model.train_on_batch(x, Y)
    after = snapshot([*model.variables, *model.optimizer.variables])
    names = {name.rpartition("/")[2] for name in changed(before, after)}
    assert names <= {"dynamic_scale", "step_counter", "total", "count"}
    assert to_numpy(model.optimizer.dynamic_scale) == 2.0**14
    for _ in range(5):
        loss = model.train_on_batch(X, Y)
    assert np.isfinite(loss)
    assert to_numpy(model.optimizer.inner_optimizer.iterations) == 6


def test_the_schedule_counts_applied_updates():
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 4, 0.5)
    stepper = Stepper(LossScale(ScaledAdam(schedule), initial_scale=1.0), [np.ones(4)])
    for step in range(10):
        bad = step in (3, 6)
        stepper.step(np.full(4, np.inf if bad else 1.0, np.float32))
    inner = stepper.optimizer.inner_optimizer
    assert to_numpy(inner.iterations) == 8
    expected = 1e-2 * 0.5 ** (8 / 4)
    assert float(to_numpy(inner.learning_rate)) == pytest.approx(expected, rel=1e-6)


def test_a_rate_set_through_the_wrapper_counts():
    stepper = Stepper(LossScale(ScaledAdam(1e-3), initial_scale=1.0), [np.zeros(4)])
    moves = []
    for rate in (1e-3, 5e-4, 2.5e-4):
        stepper.optimizer.learning_rate = rate
        before = stepper.values()[0]
        moves.append(before - stepper.step(np.ones(4, np.float32)).values()[0])
    for move, rate in zip(moves, (1e-3, 5e-4, 2.5e-4), strict=True):
        np.testing.assert_allclose(move, rate, rtol=0.01)


def test_callbacks_set_the_rate():
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model = build(ScaledAdam(1e-3))
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[halve])
    assert float(to_numpy(model.optimizer.learning_rate)) == pytest.approx(1e-3 / 8)


def test_freezing_and_thawing():
    model = build(ScaledAdam(1e-2))
    fit(model)
    before = snapshot(model.variables)
    model.get_layer("first").trainable = False
    model.compile(ScaledAdam(1e-2), "mse")
    fit(model)
    after = snapshot(model.variables)
    assert changed(before, after) == {"second/kernel", "second/bias"}
    model.get_layer("first").trainable = True
    model.compile(ScaledAdam(1e-2), "mse")
    assert np.all(np.isfinite(fit(model)))
    assert len(changed(after, snapshot(model.variables))) == 4


@pytest.mark.parametrize("compile_again", [False, True])
def test_freezing_with_a_used_optimizer_does_what_adam_does(compile_again):
    """Whether that is an error or training depends on the backend, not on the state."""

    def outcome(optimizer):
        model = build(optimizer)
        fit(model)
        before = snapshot(model.variables)
        model.get_layer("first").trainable = False
        if compile_again:
            model.compile(optimizer, "mse")
        try:
            fit(model)
        except ValueError as error:
            return str(error)[:40]
        return changed(before, snapshot(model.variables))

    assert outcome(ScaledAdam(1e-2)) == outcome(keras.optimizers.Adam(1e-2))


def test_several_optimizers(tmp_path):
    """Each variable is moved by one of them, also after loading."""
    biases = {".*bias": ScaledAdam(0.0, state_dtype="bfloat16")}
    optimizers = keras.optimizers.OptimizerMap(ScaledAdam(1e-2), biases)
    model = build(keras.optimizers.MultiOptimizer(optimizers))
    before = snapshot(model.variables)
    fit(model)
    after = snapshot(model.variables)
    assert changed(before, after) == {"first/kernel", "second/kernel"}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert fit(loaded) == fit(model)
    assert changed(snapshot(model.variables), snapshot(loaded.variables)) == set()


@pytest.mark.parametrize(
    "options",
    [{}, {"clipnorm": 0.1}, {"gradient_accumulation_steps": 2}, {"use_ema": True}],
)
def test_embedding(options):
    """Rows that no index names stay bit for bit, whatever the gradient's form."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(10, 4, name="table"), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    model.compile(ScaledAdam(1e-2, **options), "mse")
    before = to_numpy(model.get_layer("table").embeddings)
    ids = np.array([[1, 2, 3], [1, 1, 2]] * 4)
    model.fit(ids, np.ones((8, 2)), batch_size=4, epochs=3, verbose=0)
    after = to_numpy(model.get_layer("table").embeddings)
    unused = [0, 4, 5, 6, 7, 8, 9]
    np.testing.assert_array_equal(after[unused], before[unused])
    assert np.all(after[1:4] != before[1:4])


def test_clipping_does_not_touch_the_scales():
    """Delayed scales pass through the optimizer as gradients, but are none."""

    def dense(*args, **kwargs):
        return ks.layers.ScaledDense(*args, recipe="float8_delayed", **kwargs)

    runs = []
    for options in (
        {},
        {"clipnorm": 1e-3},
        {"global_clipnorm": 1e-3},
        {"clipvalue": 1e-3},
    ):
        model = build(ScaledAdam(0.0, weight_decay=0.1, **options), dense)
        fit(model)
        runs.append(snapshot(v for v in model.variables if "scales" in v.path))
    assert runs[0]
    for run in runs[1:]:
        assert changed(runs[0], run) == set()
