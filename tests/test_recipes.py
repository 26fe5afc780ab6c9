"""Recipes: the named ones, their config, and what they refuse."""

import dataclasses
import json

import pytest

from keras_scalify.recipes import RECIPES, ROLES, Recipe, get_recipe, recipe_config

# name: formats of input, kernel and gradient, and the scaling of all three
NAMED = {
    "float8": ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "current"),
    "float8_delayed": ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "delayed"),
    "float8_e4m3": ("float8_e4m3fn",) * 3 + ("current",),
    "float16": ("float16",) * 3 + ("current",),
    "bfloat16": ("bfloat16",) * 3 + ("current",),
    "float32": ("float32",) * 3 + ("current",),
}

WRONG = [
    ("input", "float8", "float8_e4m3fn"),
    ("kernel", None, "float8_e4m3fn"),
    ("gradient", "e5m2", "float8_e5m2"),
    ("input_scaling", "propagated", "current, delayed, static"),
    ("kernel_scaling", "", "current, delayed, static"),
    ("gradient_scaling", 1, "current, delayed, static"),
    ("window", 0, "at least 1"),
    ("window", 2.0, "at least 1"),
    ("window", True, "at least 1"),
    ("margin", -1, "at least 0"),
    ("margin", 0.5, "at least 0"),
]


def test_named_recipes():
    assert set(RECIPES) == set(NAMED)
    for name, (*formats, scaling) in NAMED.items():
        recipe = RECIPES[name]
        assert [recipe.format(role).name for role in ROLES] == formats
        assert {recipe.scaling(role) for role in ROLES} == {scaling}
        assert recipe.is_identity == (name == "float32")


def test_the_default_is_float8():
    assert Recipe() == RECIPES["float8"] == get_recipe("float8")


@pytest.mark.parametrize("name", NAMED)
def test_a_name_a_recipe_and_its_config_are_the_same(name):
    recipe = RECIPES[name]
    config = json.loads(json.dumps(recipe.get_config()))
    assert get_recipe(name) is get_recipe(recipe) is recipe
    assert get_recipe(config) == recipe
    assert recipe_config(recipe) == recipe_config(get_recipe(config)) == name


def test_config_of_an_unnamed_recipe_gives_it_back():
    recipe = Recipe(gradient="float16", kernel_scaling="static", window=3, margin=1)
    assert recipe_config(recipe) == recipe.get_config()
    assert get_recipe(recipe_config(recipe)) == recipe


@pytest.mark.parametrize(("argument", "value", "allowed"), WRONG)
def test_wrong_field_names_argument_value_and_choices(argument, value, allowed):
    with pytest.raises(ValueError) as error:
        Recipe(**{argument: value})
    assert f"`{argument}`" in str(error.value)
    assert f"{argument}={value!r}" in str(error.value)
    assert allowed in str(error.value)


@pytest.mark.parametrize("recipe", ["fp8", None, 8, {"inputs": "float16"}, Recipe])
def test_unknown_recipe_names_argument_value_and_choices(recipe):
    with pytest.raises(ValueError) as error:
        get_recipe(recipe)
    assert f"recipe={recipe!r}" in str(error.value)
    assert all(name in str(error.value) for name in NAMED)


def test_a_recipe_never_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["float8"].window = 2
