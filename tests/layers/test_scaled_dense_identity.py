"""ScaledDense(recipe="float32") is Keras's Dense, bit for bit."""

import keras
import pytest

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_same, to_numpy
from tests.layers.layer_cases import fit, mlp, normal

OPTIONS = [
    {},
    {"activation": "gelu"},
    {"use_bias": False},
    {"lora_rank": 2, "lora_alpha": 3},
    {"kernel_regularizer": "l2", "kernel_constraint": "max_norm"},
    {"dtype": "mixed_bfloat16"},
    {"dtype": "mixed_float16"},
    {"dtype": "bfloat16"},
    {"dtype": "mixed_bfloat16", "lora_rank": 2},
]


def both(inputs, units, rank=2, **kwargs):
    """A Dense and its identity twin, built from the same seed, each in a model.

    In a model, because a bare layer's `stateless_call` goes past Keras's casting.
    """
    models = []
    for cls, recipe in (
        (keras.layers.Dense, {}),
        (ks.layers.ScaledDense, {"recipe": "float32"}),
    ):
        keras.utils.set_random_seed(3)
        layer = cls(units, bias_initializer="normal", **kwargs, **recipe)
        leading = [None] * (rank - 2)
        models.append(keras.Sequential([keras.Input((*leading, inputs)), layer]))
    return models


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(options):
    dense, scaled = both(12, 5, **options)
    x, g = normal(6, 12), normal(6, 5, seed=1)
    expected, result = (pull_back(layer, x, g) for layer in (dense, scaled))
    assert_same(result, expected)
    assert [v.path.split("/")[-1] for v in scaled.weights] == [
        v.path.split("/")[-1] for v in dense.weights
    ]
    assert_same(scaled.losses, dense.losses)


@pytest.mark.parametrize("rank", [3, 4])
def test_higher_ranks(rank):
    dense, scaled = both(6, 4, rank=rank)
    x, g = normal(*[2] * (rank - 1), 6), normal(*[2] * (rank - 1), 4, seed=1)
    assert_same(pull_back(scaled, x, g), pull_back(dense, x, g))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "float64"])
def test_inputs_of_any_dtype(dtype):
    dense, scaled = both(6, 4)
    x = (normal(3, 6) > 0).astype(dtype)
    assert_same(scaled(x), dense(x))


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {}),
        ("adam", {"dtype": "mixed_bfloat16"}),
        ("adam", {"kernel_regularizer": "l2", "kernel_constraint": "max_norm"}),
    ],
)
def test_training(optimizer, options):
    models = []
    for cls, recipe in (
        (keras.layers.Dense, {}),
        (ks.layers.ScaledDense, {"recipe": "float32"}),
    ):
        model = fit(mlp(cls, **options, **recipe), optimizer=optimizer)
        models.append([to_numpy(v) for v in model.weights])
    assert_same(*models)


def test_the_recipe_is_what_makes_the_difference():
    x, g = normal(6, 12), normal(6, 5, seed=1)
    dense, _ = both(12, 5)
    scaled = ks.layers.ScaledDense(5)
    scaled.build((None, 12))
    scaled.set_weights([*dense.get_weights(), *scaled.get_weights()[2:]])
    with pytest.raises(AssertionError):
        assert_same(pull_back(scaled, x, g), pull_back(dense, x, g))
