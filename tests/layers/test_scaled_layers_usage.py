"""Scaled layers wherever their Keras twins can stand."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_same, relative_error, to_numpy
from tests.layers.layer_cases import BACKWARD, FORWARD, normal
from tests.layers.scaled_cases import case

BACKEND = keras.backend.backend()
layers = ks.layers


def network(recipe="float8", length=6, attention=True):
    """Scales from end to end, whatever the length of the sequence."""
    inputs = keras.Input((length, 8))
    x = layers.Scale()(inputs)
    y = layers.ScaledLayerNormalization()(x)
    if attention:
        attend = layers.ScaledMultiHeadAttention(2, 4, recipe=recipe)
        y = attend(y, y, use_causal_mask=True)
    x = layers.ScaledAdd()([x, y])
    y = layers.ScaledRMSNormalization()(x)
    y = layers.ScaledDense(16, activation="silu", recipe=recipe)(y)
    y = layers.ScaledEinsumDense("...a,ab->...b", (8,), recipe=recipe)(y)
    x = layers.ScaledAdd()([x, y])
    x = layers.ScaledConv1D(4, 3, padding="same", recipe=recipe)(x)
    return keras.Model(inputs, layers.Unscale()(x))


def with_fixed_weights(model):
    for i, v in enumerate(model.trainable_variables):
        v.assign(normal(*v.shape, seed=i, scale=0.3))
    return model


@pytest.mark.skipif(BACKEND == "jax", reason="compiles op by op unless all at once")
def test_ways_to_run_agree():
    ways = [{"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}]
    if BACKEND == "torch":  # whose compiler takes minutes
        ways.pop()
    results = []
    for way in ways:
        model = with_fixed_weights(network())
        model.compile(keras.optimizers.SGD(0.01), "mse", **way)
        for seed in range(2):
            model.train_on_batch(normal(4, 6, 8, seed=seed), normal(4, 6, 4, seed=9))
        results.append([to_numpy(v) for v in model.trainable_variables])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            # A last bit tips a few operands to the next number of their format.
            np.testing.assert_allclose(a, b, rtol=0, atol=5e-3)


@pytest.mark.parametrize("batch", [1, 5])
def test_lengths_and_batches_of_any_size(batch):
    model = with_fixed_weights(network("float32", length=None))
    fixed = with_fixed_weights(network("float32", length=6))
    x = normal(batch, 6, 8)
    a, b = model.predict(x, verbose=0), fixed.predict(x, verbose=0)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_of_unknown_length_trains():
    model = with_fixed_weights(network(length=None))
    assert model.output_shape == (None, None, 4)
    jit = BACKEND == "jax"
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
    for length in 6, 9:
        loss = model.train_on_batch(normal(4, length, 8), normal(4, length, 4))
        assert np.isfinite(loss)


def masked(module, prefix, **kwargs):
    """Masks of an embedding, through attention, to a layer that uses them."""
    ids = keras.Input((6,), dtype="int32")
    settings = {"scaled": True} if kwargs else {}
    embed = getattr(module, f"{prefix}Embedding")
    x = embed(9, 8, mask_zero=True, **kwargs, **settings)(ids)
    attend = getattr(module, f"{prefix}MultiHeadAttention")(2, 4, **kwargs)
    norm = getattr(module, f"{prefix}LayerNormalization")()
    x = norm(attend(x, x))
    x = layers.Unscale()(x) if kwargs else x
    return keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))


def test_masks_reach_as_far_as_keras_takes_them():
    models = masked(keras.layers, ""), masked(layers, "Scaled", recipe="float32")
    ids = np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 1]])
    plain, scaled = (with_fixed_weights(m).predict(ids, verbose=0) for m in models)
    np.testing.assert_allclose(scaled, plain, rtol=1e-5, atol=1e-6)
    unmasked = with_fixed_weights(models[1]).predict(np.maximum(ids, 1), verbose=0)
    assert np.any(np.abs(unmasked[0] - scaled[0]) > 0.01)


@pytest.mark.skipif(BACKEND != "jax", reason="rematerialization is JAX's here")
def test_rematerialized_layers_give_the_same_gradients():
    results = []
    for scope in contextlib.nullcontext(), keras.RematScope(mode="full"):
        with scope:  # in which Keras's own attention fails too
            model = with_fixed_weights(network(attention=False))
        results.append(pull_back(model, normal(2, 6, 8), normal(2, 6, 4, seed=1)))
    for a, b in zip(*((y, dx, *dws) for y, dx, dws in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


LORA = [
    case("EinsumDense", (5, 8), equation="abc,cd->abd", output_shape=(5, 6)),
    case("EinsumDense", (5, 8), equation="abc,cde->abde", output_shape=(5, 3, 4)),
    case("Conv1D", (9, 4), filters=6, kernel_size=3),
    case("Conv2D", (6, 5, 4), filters=6, kernel_size=(2, 3), padding="same"),
]


@pytest.mark.parametrize("case", LORA[1:3] if BACKEND == "jax" else LORA, ids=str)
def test_lora(case):
    """With the float32 recipe Keras's own; with float8 near it; only adapters train."""
    results, x = {}, normal(4, *case.shape)
    for kind, recipe in (
        ("keras", None),
        ("plain", "float32"),
        ("plain", "float8"),
        (
            "propagated",
            "float8",
        ),
    ):
        model = case.model(kind, recipe)
        layer = next(v for v in model.layers if hasattr(v, "lora_enabled"))
        before = model.predict(x, verbose=0)
        layer.enable_lora(2, lora_alpha=3)
        assert_same(model.predict(x, verbose=0), before)
        named = [v for v in layer.trainable_variables if "lora" in v.name]
        assert len(named) == 2 and not any(
            v is layer._kernel for v in layer.trainable_variables
        )
        for i, v in enumerate(named):
            v.assign(normal(*v.shape, seed=50 + i))
        g = normal(4, *model.output_shape[1:], seed=2)
        results[kind, recipe] = pull_back(model, x, g)
    y, dx, dws = results["keras", None]
    assert_same(results["plain", "float32"], results["keras", None])
    for kind in "plain", "propagated":
        result = results[kind, "float8"]
        assert relative_error(result[0], y) <= FORWARD[1]
        assert relative_error(result[1], dx) <= BACKWARD[1]
        for a, b in zip(result[2], dws, strict=True):
            assert relative_error(a, b) <= 1e-4  # adapters are not quantized


def test_lora_of_an_embedding():
    for scaled in False, True:
        layer = layers.ScaledEmbedding(11, 8, scaled=scaled)
        layer.build()
        layer.embeddings.assign(normal(11, 8))
        x, ids = normal(4, 8, seed=1), np.arange(6)
        layer.enable_lora(2)
        for i, v in enumerate(layer.trainable_variables):
            v.assign(normal(*v.shape, seed=50 + i))
        table = to_numpy(layer.embeddings)
        found = layer(ids)
        value = found.value if scaled else found
        np.testing.assert_allclose(to_numpy(value), table[ids], rtol=1e-6)
        if scaled:
            assert float(found.mean_square) == pytest.approx(
                np.mean(table**2), rel=1e-5
            )
        y = ks.ops.unscale(layer(ks.ops.scale(x) if scaled else x, reverse=True))
        assert relative_error(y, x @ table.T) <= FORWARD[1]


CHANNELS_FIRST = [
    case("Conv1D", (6, 11), filters=5, kernel_size=3, data_format="channels_first"),
    case(
        "Conv2D",
        (6, 9, 8),
        filters=5,
        kernel_size=3,
        strides=2,
        padding="same",
        data_format="channels_first",
    ),
    case("DepthwiseConv2D", (6, 9, 8), kernel_size=3, data_format="channels_first"),
]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="has none on a CPU")
@pytest.mark.parametrize("case", CHANNELS_FIRST, ids=str)
def test_channels_first(case):
    x, g = case.data()
    truth = pull_back(case.model("keras"), x, g)
    assert_same(pull_back(case.model("plain"), x, g), truth)
    for kind in "plain", "propagated":
        y, dx, _ = pull_back(case.model(kind, "float8"), x, g)
        assert relative_error(y, truth[0]) <= FORWARD[1]
        assert relative_error(dx, truth[1]) <= BACKWARD[1]


@pytest.mark.parametrize("scaled_attention", [False, True])
@pytest.mark.parametrize("name", ["MultiHeadAttention", "GroupQueryAttention"])
def test_attention_scores_are_returned(name, scaled_attention):
    arguments = {
        "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
        "GroupQueryAttention": {
            "head_dim": 4,
            "num_query_heads": 2,
            "num_key_value_heads": 1,
        },
    }[name]
    x = normal(3, 5, 8)
    plain = getattr(keras.layers, name)(**arguments)
    scaled = getattr(layers, f"Scaled{name}")(
        **arguments, recipe="float32", scaled_attention=scaled_attention
    )
    for layer in plain, scaled:
        layer.build(x.shape, x.shape)
        for i, v in enumerate(layer.trainable_variables):
            v.assign(normal(*v.shape, seed=i, scale=0.5))
    call = {"use_causal_mask": True, "return_attention_scores": True}
    y, scores = plain(x, x, **call)
    for given in x, ks.ops.scale(x):
        output, weights = scaled(given, given, **call)
        value = ks.ops.unscale(output)
        np.testing.assert_allclose(to_numpy(value), to_numpy(y), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            to_numpy(weights), to_numpy(scores), rtol=1e-4, atol=1e-5
        )
        assert isinstance(output, ks.ScaledTensor) == (given is not x)
    inputs = layers.Scale()(keras.Input((5, 8)))
    output, weights = scaled(inputs, inputs, **call)
    assert tuple(weights.shape)[1:] == tuple(scores.shape)[1:]
    assert output.mean_square.shape == ()


def test_a_mix_of_plain_and_scaled_says_which():
    x = normal(2, 5, 8)
    attend = layers.ScaledMultiHeadAttention(2, 4)
    with pytest.raises(ValueError, match="inputs.1. scaled, inputs.0. plain"):
        attend(x, ks.ops.scale(x))
    with pytest.raises(ValueError, match="inputs.0. scaled, inputs.1. plain"):
        layers.ScaledAdd()([ks.ops.scale(x), x])
    scaled = layers.Scale()(keras.Input((5, 8)))
    with pytest.raises(ValueError, match="scaled.*plain"):
        layers.ScaledMultiply()([scaled, keras.Input((5, 8))])


def test_an_activation_without_a_rule_says_so():
    layer = layers.ScaledDense(4, activation="sparsemax")
    x = normal(2, 8)
    assert layer(x).shape == (2, 4)
    with pytest.raises(ValueError, match="sparsemax.*no rule.*unscale"):
        layer(ks.ops.scale(x))


@pytest.mark.parametrize("scaled", [False, True])
def test_embedding_tied_as_an_output_projection_trains(scaled):
    ids = keras.Input((6,), dtype="int32")
    tokens = layers.ScaledEmbedding(9, 8, scaled=scaled)
    y = tokens(layers.ScaledLayerNormalization()(tokens(ids)), reverse=True)
    model = keras.Model(ids, layers.Unscale()(y))
    assert model.output_shape == (None, 6, 9)
    assert len(model.trainable_variables) == 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, jit_compile=BACKEND == "jax")
    data = np.random.default_rng(0).integers(0, 9, (16, 6))
    losses = [model.train_on_batch(data, data) for _ in range(15)]
    assert losses[-1] < 0.6 * losses[0]


def test_ops_inside_a_layer_of_ones_own():
    class Gated(keras.layers.Layer):
        def build(self, input_shape):
            self.w = self.add_weight(shape=(8, 16), name="w")

        def call(self, x):
            x = ks.ops.scale(x)
            value, gate = ks.ops.split(ks.ops.matmul(x, ks.ops.scale(self.w)), 2, -1)
            return ks.ops.unscale(ks.ops.multiply(value, ks.ops.silu(gate)))

    model = keras.Sequential([keras.Input((8,)), Gated()])
    y, dx, (dw,) = pull_back(model, normal(16, 8), normal(16, 8, seed=1))
    w = to_numpy(model.trainable_variables[0])
    value, gate = np.split(normal(16, 8) @ w, 2, -1)
    truth = value * to_numpy(ops.silu(gate))
    assert 0.01 <= relative_error(y, truth) <= 2 * FORWARD[1]
    assert np.any(dx) and np.any(dw)


@pytest.mark.parametrize(
    "layer",
    [layers.Scale(), layers.ScaledActivation("relu"), layers.ScaledDropout(0.5)],
)
def test_several_tensors_for_one_are_refused(layer):
    x = normal(2, 4)
    with pytest.raises(ValueError, match="takes a tensor or a ScaledTensor.*list"):
        layer([x, x])


def test_dropout_of_everything():
    x = ks.ops.scale(normal(2, 4))
    y = layers.ScaledDropout(1.0)(x, training=True)
    assert np.all(to_numpy(y.value) == 0) and y.mean_square == x.mean_square
