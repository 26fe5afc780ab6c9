"""Attention: what Keras passes reaches it, and dropout counts in the mean square."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.helpers import relative_error, to_numpy

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
ATTENTION = {
    "multi_head": (
        lambda **k: ks.layers.ScaledMultiHeadAttention(2, 4, **k),
        lambda **k: keras.layers.MultiHeadAttention(2, 4, **k),
    ),
    "grouped_query": (
        lambda **k: ks.layers.ScaledGroupQueryAttention(4, 4, 2, **k),
        lambda **k: keras.layers.GroupQueryAttention(4, 4, 2, **k),
    ),
}
WAYS = [(False, False), (True, False), (False, True), (True, True)]


def attend(layer, x, scaled, **kwargs):
    x = ks.ops.scale(x) if scaled else x
    return to_numpy(ks.ops.unscale(layer(x, x, **kwargs)))


@pytest.mark.parametrize(("scaled", "scaled_attention"), WAYS)
@pytest.mark.parametrize("name", ATTENTION)
def test_dropout_drops_in_training_only(name, scaled, scaled_attention):
    layer = ATTENTION[name][0](dropout=0.9, scaled_attention=scaled_attention)
    quiet = [attend(layer, X, scaled, training=False) for _ in range(2)]
    np.testing.assert_array_equal(*quiet)
    assert relative_error(attend(layer, X, scaled, training=True), quiet[0]) > 0.5


# Keras's grouped attention warns of its projections, which ours shares.
@pytest.mark.filterwarnings("ignore:.*does not support masking")
@pytest.mark.parametrize("name", ATTENTION)
def test_masks_of_an_embedding_reach_the_attention(name):
    ids = np.array([[3, 1, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6]])
    outputs = []
    for make, arguments in zip(
        ATTENTION[name], ({"recipe": "float32"}, {}), strict=True
    ):
        keras.utils.set_random_seed(0)
        table = keras.layers.Embedding(7, 8, mask_zero=True)
        x = table(ids)
        outputs.append(to_numpy(make(**arguments)(x, x)))
    np.testing.assert_array_equal(*outputs)


def test_dropout_counts_in_the_mean_square():
    layer = ks.layers.ScaledMultiHeadAttention(2, 4, dropout=0.5)
    x = ks.ops.scale(X)
    squares = [
        float(to_numpy(layer(x, x, training=t).mean_square)) for t in (False, True)
    ]
    assert squares[1] == pytest.approx(2 * squares[0], rel=1e-5)


@pytest.mark.parametrize("policy", ["float8_from_float32", "int8_from_float32"])
def test_quantized_policies_are_refused(policy):
    with pytest.raises(ValueError, match="`dtype`.*recipe"):
        ks.layers.ScaledMultiHeadAttention(2, 4, dtype=policy)


def test_keyword_arrays_are_taken():
    layer = ks.layers.ScaledMultiHeadAttention(2, 4)
    assert tuple(layer(query=X, value=X).shape) == X.shape
    assert tuple(ks.layers.ScaledDense(3)(inputs=X).shape) == (2, 6, 3)


def test_gradient_amax_is_reported_by_delayed_recipes_on_scaled_tensors():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            ks.layers.Scale(),
            ks.layers.ScaledDense(3, recipe="float8_delayed"),
            ks.layers.Unscale(),
        ]
    )
    model.compile("sgd", "mse")
    x = X[0, :, :4]
    model.fit(x, ops.zeros((6, 3)), verbose=0)  # a warning would be an error
    assert float(to_numpy(model.layers[1].scales.gradient_amax)) == 0.0


def test_the_projections_get_the_very_regularizer():
    def squares(w):
        return keras.ops.sum(w**2)

    layer = ks.layers.ScaledMultiHeadAttention(2, 4, kernel_regularizer=squares)
    layer.build((1, 3, 8), (1, 3, 8))
    assert layer.query_dense.kernel_regularizer is squares
