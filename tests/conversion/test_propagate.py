"""propagate=True: a graph with scales through every stretch of layers with rules."""

import keras
import pytest
from keras import layers

import keras_scalify as ks
import keras_scalify.conversion.propagation as propagation
from tests.conversion.converted import Subclassed, mlp, predict, state
from tests.helpers import assert_same, relative_error
from tests.layers.layer_cases import normal

SEQUENCE = (6, 16)


def residual():
    """A residual branch, a nested model, a sum by an operator, and two outputs."""
    x = inputs = keras.Input(SEQUENCE)
    x = layers.Dense(16, name="first")(x)
    y = layers.LayerNormalization(name="norm")(x)
    y = layers.MultiHeadAttention(2, 8, name="attention")(y, y)
    x = layers.Add(name="sum")([x, y])
    mlp = [keras.Input(SEQUENCE), layers.Dense(32, "gelu", name="wide")]
    mlp += [layers.Dense(16, name="narrow")]
    x = x + keras.Sequential(mlp, name="mlp")(x)
    x = layers.Dense(16, "elu", name="last")(x)
    y = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, [layers.Dense(4, name="logits")(y), x])


def conv_net():
    """A normalization without a rule between two stretches."""
    names = [keras.Input((8, 8, 16))]
    names += [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()]
    names += [layers.BatchNormalization(), layers.Conv2D(16, 3), layers.Flatten()]
    names += [layers.Dropout(0.0), layers.Dense(16, "gelu"), layers.Dense(3)]
    return keras.Sequential(names)


STRETCHES = {
    residual: (["first", "norm", "attention", "sum"], ["wide", "narrow"]),
    conv_net: (
        ["conv2d", "max_pooling2d"],
        ["conv2d_1", "flatten", "dropout", "dense"],
    ),
}


@pytest.mark.parametrize("build", STRETCHES)
def test_propagate_train_save_and_back(build, tmp_path):
    keras.backend.clear_session()
    model = build()
    x, names = normal(4, *model.input_shape[1:]), [v.path for v in model.variables]
    y = predict(model, x)
    scaled = ks.scalify(model, propagate=True)
    report = ks.scalify_report(scaled)
    assert [list(s) for s in report.stretches] == list(STRETCHES[build])
    assert "scales travel: " + " ".join(STRETCHES[build][0]) in str(report)
    assert relative_error(predict(scaled, x), y) < 0.15
    if build is conv_net or keras.backend.backend() != "jax":  # it compiles long
        train(scaled, x)
    scaled.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    y = predict(scaled, x)
    assert_same(predict(loaded, x), y)
    stock = ks.unscalify(loaded)
    assert not ks.scalify_report(stock).converted
    assert [layer.name for layer in stock.layers][1:] == [
        layer.name for layer in build_again(build).layers
    ][1:]
    assert len(stock.variables) == len(names)
    assert relative_error(predict(stock, x), y) < 0.15


def train(model, x):
    """One step towards zeros."""
    targets = keras.tree.map_structure(lambda t: 0 * t, model.predict(x, verbose=0))
    jit = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
    model.train_on_batch(x, targets)


def build_again(build):
    """The same model with the same automatic names."""
    keras.backend.clear_session()
    return build()


def test_the_optimizer_goes_on():
    model = mlp()
    x, y = normal(8, 16), normal(8, 4)
    jit = keras.backend.backend() == "jax"
    model.compile("adam", "mse", jit_compile=jit)
    model.train_on_batch(x, y)
    scaled = ks.scalify(model, propagate=True)
    assert type(scaled) is keras.Sequential
    scaled.train_on_batch(x, y)
    assert int(scaled.optimizer.iterations) == 2
    with pytest.warns(UserWarning, match="scaled already"):
        assert ks.scalify(scaled, propagate=True) is scaled


def test_a_failure_undoes_all(monkeypatch):
    keras.backend.clear_session()
    model = conv_net()
    x = normal(2, 8, 8, 16)
    y, before = predict(model, x), state(model)

    def fails(*args, **kwargs):
        raise RuntimeError("no memory")

    monkeypatch.setattr(propagation, "Unscale", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        ks.scalify(model, propagate=True)
    assert state(model) == before
    assert model.layers[0].output.shape == (None, 6, 6, 16)
    assert_same(predict(model, x), y)


def test_a_subclassed_model_cannot_be_rebuilt():
    model = Subclassed()
    model(normal(2, *SEQUENCE))
    before = state(model)
    with pytest.raises(ValueError, match="`propagate=True` rebuilds a Sequential"):
        ks.scalify(model, propagate=True)
    assert state(model) == before
