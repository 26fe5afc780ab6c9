"""Which format and which scaling each operand of a quantized product uses."""

import dataclasses
from typing import Any

from keras_scalify.formats import Format, get_format

ROLES = ("input", "kernel", "gradient")
SCALINGS = ("current", "delayed", "static")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the operands of a matmul are quantized.

    A product `y = x @ w` and its two gradients `dx = g @ w.T`, `dw = x.T @ g` have
    three operands: x (role "input"), w (role "kernel") and g (role "gradient").

    Args:
        input: format of x, a name in FORMATS. Default "float8_e4m3fn".
        kernel: format of w. Default "float8_e4m3fn".
        gradient: format of g. Default "float8_e5m2".
        input_scaling: where the scale of x comes from. "current" (default): the
            smallest power of two s with `amax(x) / s <= max`, measured in this step.
            "delayed": the same from the largest amax of the last `window` training
            steps. "static": the layer's `input_scale`, as given or last recorded. A
            ScaledTensor brings its own scale.
        kernel_scaling: the same for w.
        gradient_scaling: the same for g.
        window: training steps that delayed scaling looks back, at least 1. Default 16.
        margin: powers of two of extra headroom of delayed scaling, at least 0. Default
            0.

    Raises:
        ValueError: an unknown format or scaling, a window below 1, a negative margin.

    Example:

    >>> import keras_scalify as ks
    >>> recipe = ks.Recipe(gradient="float8_e4m3fn")
    >>> layer = ks.layers.ScaledDense(64, recipe=recipe)

    Reference: Micikevicius et al., "FP8 formats for deep learning" (2022), for e4m3
    forward and e5m2 backward.
    """

    input: str = "float8_e4m3fn"
    kernel: str = "float8_e4m3fn"
    gradient: str = "float8_e5m2"
    input_scaling: str = "current"
    kernel_scaling: str = "current"
    gradient_scaling: str = "current"
    window: int = 16
    margin: int = 0

    def __post_init__(self):
        for role in ROLES:
            get_format(getattr(self, role), argument=role)
            scaling = self.scaling(role)
            if scaling not in SCALINGS:
                raise ValueError(
                    f"`{role}_scaling` must be one of {', '.join(SCALINGS)}. "
                    f"Received: {role}_scaling={scaling!r}"
                )
        for name, least in (("window", 1), ("margin", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"`{name}` must be an integer of at least {least}. "
                    f"Received: {name}={value!r}"
                )

    def format(self, role: str) -> Format:
        """The format of the operand with this role."""
        return get_format(getattr(self, role), argument=role)

    def scaling(self, role: str) -> str:
        """The scaling of the operand with this role."""
        return getattr(self, f"{role}_scaling")

    @property
    def is_identity(self) -> bool:
        """Whether no operand is rounded: the layer is then exactly Keras's own."""
        return all(self.format(role).is_identity for role in ROLES)

    def get_config(self) -> dict[str, Any]:
        """The arguments as a plain dict; `Recipe(**config)` gives the recipe back."""
        return dataclasses.asdict(self)


def _same(name: str) -> Recipe:
    return Recipe(input=name, kernel=name, gradient=name)


RECIPES: dict[str, Recipe] = {
    "float8": Recipe(),
    "float8_delayed": Recipe(
        input_scaling="delayed",
        kernel_scaling="delayed",
        gradient_scaling="delayed",
    ),
    "float8_e4m3": _same("float8_e4m3fn"),
    "float16": _same("float16"),
    "bfloat16": _same("bfloat16"),
    "float32": _same("float32"),
}


def get_recipe(recipe: "str | dict | Recipe") -> Recipe:
    """A Recipe from a name in RECIPES, a config dict or a Recipe.

    Raises:
        ValueError: names what came and what is allowed.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]
    if isinstance(recipe, dict):
        names = {field.name for field in dataclasses.fields(Recipe)}
        if set(recipe) <= names:
            return Recipe(**recipe)
    raise ValueError(
        f"`recipe` must be one of {', '.join(RECIPES)}, a keras_scalify.Recipe or its "
        f"config dict. Received: recipe={recipe!r}"
    )


def recipe_config(recipe: Recipe) -> "str | dict[str, Any]":
    """The name of a recipe in RECIPES, or else its config dict."""
    for name, row in RECIPES.items():
        if row == recipe:
            return name
    return recipe.get_config()
