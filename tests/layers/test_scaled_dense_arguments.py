"""Wrong arguments raise a ValueError that says what came and what is allowed."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.layers.layer_cases import built

WRONG_RECIPES = ["fp8", "", None, 8, {"inputs": "float16"}]
KERAS_MODES = ["float8_from_float32", "float8_from_mixed_bfloat16", "int8_from_float32"]


@pytest.mark.parametrize("recipe", WRONG_RECIPES, ids=str)
def test_unknown_recipe(recipe):
    with pytest.raises(ValueError) as error:
        ks.layers.ScaledDense(4, recipe=recipe)
    assert f"`recipe` must be one of {', '.join(ks.RECIPES)}" in str(error.value)
    assert f"recipe={recipe!r}" in str(error.value)


def test_unknown_format_in_a_recipe():
    with pytest.raises(ValueError) as error:
        ks.layers.ScaledDense(4, recipe={"kernel": "float7"})
    assert "`kernel` must be one of float8_e4m3fn" in str(error.value)
    assert "kernel='float7'" in str(error.value)


@pytest.mark.parametrize("recipe", ["float8", "float32"])
@pytest.mark.parametrize("dtype", KERAS_MODES)
def test_policies_of_keras_quantization(dtype, recipe):
    with pytest.raises(ValueError) as error:
        ks.layers.ScaledDense(4, recipe=recipe, dtype=dtype)
    for part in ("`dtype`", "ScaledDense", "'mixed_bfloat16'", f"dtype={dtype!r}"):
        assert part in str(error.value)


def test_a_global_policy_of_keras_quantization():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float8_from_float32")
    try:
        with pytest.raises(ValueError, match="float8_from_float32"):
            ks.layers.ScaledDense(4)
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("mode", ["float8", "int8", "int4"])
def test_keras_quantization_after_building(mode):
    layer = built(4, 3)
    with pytest.raises(NotImplementedError, match="quantize"):
        layer.quantize(mode)
    assert layer.dtype_policy.quantization_mode is None


@pytest.mark.parametrize("symbolic", [False, True])
def test_rank_1(symbolic):
    x = keras.Input(batch_shape=(4,)) if symbolic else np.ones(4, "float32")
    with pytest.raises(ValueError) as error:
        ks.layers.ScaledDense(4)(x)
    for part in ("min_ndim=2", "ndim=1", "(4,)"):
        assert part in str(error.value)


def test_another_last_axis_than_built_for():
    with pytest.raises(ValueError, match="expected axis -1"):
        built(4, 3)(np.ones((2, 5), "float32"))


@pytest.mark.parametrize("units", [0, -1, 2.5, None, "64"])
def test_units(units):
    with pytest.raises(ValueError, match="positive integer") as error:
        ks.layers.ScaledDense(units)
    assert str(units) in str(error.value)


def test_unknown_keyword():
    with pytest.raises(ValueError, match="recipes"):
        ks.layers.ScaledDense(4, recipes="float8")


def test_every_argument_of_dense_is_kept():
    arguments = {
        "units": 3,
        "activation": "relu",
        "use_bias": False,
        "kernel_initializer": "zeros",
        "bias_initializer": "ones",
        "kernel_regularizer": "l2",
        "bias_regularizer": "l1",
        "activity_regularizer": "l1",
        "kernel_constraint": "non_neg",
        "bias_constraint": "max_norm",
        "lora_rank": 2,
        "lora_alpha": 5,
        "name": "named",
        "trainable": False,
        "dtype": "mixed_bfloat16",
    }
    plain = keras.layers.Dense(**arguments).get_config()
    scaled = ks.layers.ScaledDense(**arguments, recipe="float16").get_config()
    assert scaled.pop("recipe") == "float16"
    assert {k: v for k, v in scaled.items() if k in plain} == plain
    assert ks.layers.ScaledDense(3, "relu", False).activation is keras.activations.relu
