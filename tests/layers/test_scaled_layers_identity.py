"""With the float32 recipe every scaled layer is its Keras twin, bit for bit."""

import functools

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_same, relative_error, to_numpy
from tests.layers.layer_cases import normal
from tests.layers.scaled_cases import EVERY, PRODUCTS

BACKEND = keras.backend.backend()


@functools.cache
def of_keras(case, policy=None):
    """Input, gradient, and what Keras's layer makes of them."""
    x, g = case.data()
    return x, g, pull_back(case.model("keras", dtype=policy), x, g)


@pytest.mark.parametrize("kind", ["plain", "propagated"])
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_values_and_gradients(case, kind):
    x, g, expected = of_keras(case)
    assert_same(pull_back(case.model(kind), x, g), expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("case", PRODUCTS[::3] + EVERY[-6:-4], ids=str)
def test_values_under_mixed_policies(case, policy):
    if (BACKEND, policy) == ("jax", "mixed_float16") and case.name != "Dense":
        pytest.skip("JAX compiles long, and has no float16 attention on a CPU")
    x, g, expected = of_keras(case, policy)
    for kind in "plain", "propagated":
        y, dx, dws = pull_back(case.model(kind, dtype=policy), x, g)
        # Scale casts x; Keras's layer normalization computes with it as it is.
        if kind == "plain" or case.name != "LayerNormalization":
            assert_same((y, dws), (expected[0], expected[2]))
        if kind == "plain" and "Attention" not in case.name:
            assert_same(dx, expected[1])
        # Else x is cast in other places, where parts of its gradient add up.
        assert relative_error(dx, expected[1]) <= 2.0**-8


def embeddings(cls, propagated, **kwargs):
    """Token and position embeddings, summed, then the tied output projection."""
    ids = keras.Input((5,), dtype="int32")
    tokens = cls(11, 8, **kwargs)
    add = ks.layers.ScaledAdd() if propagated else keras.layers.Add()
    x = add([tokens(ids), cls(11, 8, **kwargs)(ids)])
    model = keras.Model(ids, ks.layers.Unscale()(x) if propagated else x)
    for i, v in enumerate(model.trainable_variables):
        v.assign(normal(*v.shape, seed=i))
    return model, tokens


def test_embedding():
    ids = np.arange(10).reshape(2, 5) % 11
    plain, _ = embeddings(keras.layers.Embedding, propagated=False)
    for scaled in False, True:
        model, tokens = embeddings(
            ks.layers.ScaledEmbedding, scaled, scaled=scaled, recipe="float32"
        )
        assert_same(model.predict(ids, verbose=0), plain.predict(ids, verbose=0))
        x = normal(2, 5, 8, seed=7)
        table = to_numpy(tokens.embeddings)
        y = tokens(ks.ops.scale(x) if scaled else x, reverse=True)
        y = ks.ops.unscale(y)
        np.testing.assert_allclose(to_numpy(y), x @ table.T, rtol=1e-5, atol=1e-5)
