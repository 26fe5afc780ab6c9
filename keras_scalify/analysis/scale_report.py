"""scale_report: what recipes do to the operands of a model, on one batch."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_scalify.analysis.capture import Captured, capture
from keras_scalify.analysis.report import ScaleReport
from keras_scalify.formats import Format
from keras_scalify.layers.check_model import check_model
from keras_scalify.recipes import Recipe, get_recipe, recipe_config
from keras_scalify.scaling import amax_to_scale, mean_square_to_scale
from keras_scalify.statistics import measured, shown


def scale_report(
    model,
    batch,
    recipes: str | Recipe | dict | Iterable = (),
    loss: str | Callable | None = None,
    path: Any = None,
    verbose: bool = True,
) -> ScaleReport:
    """The operands of every product in a model, measured in one pass on one batch.

    One forward and one backward pass, without training: no variable changes. Each input
    x, kernel w and gradient g of a product is held against the formats of the layer's
    recipe, with the scales that the layer used. Scales that were propagated are shown
    beside the true size.

    Args:
        model: a built model. Layers of Keras with a product are reported too, for the
            recipes to compare.
        batch: (inputs, targets), (inputs, targets, sample_weight), or inputs alone:
            then the gradient of each output is Gaussian noise.
        recipes: one, or several, to compare on the same operands, without converting
            the model: names in RECIPES, Recipes or their config dicts. Delayed scaling
            is taken as settled on this batch. Default: none; "float8" if no layer has a
            recipe.
        loss: function (targets, outputs) to a tensor, or the name of one of Keras.
            Default: the compiled loss.
        path: where to save the picture, if given. Needs matplotlib.
        verbose: whether to print the table. Default True.

    Returns:
        ScaleReport.

    Raises:
        ValueError: a model that is not built, an unknown recipe or loss, targets
            without a loss.

    Example:

    >>> import keras, numpy as np, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((3,)), ks.layers.ScaledDense(2)])
    >>> x = np.ones((8, 3), "float32")
    >>> report = ks.analysis.scale_report(model, x, recipes=["float16"], verbose=False)
    >>> report.rows["recipe"][:4], report.rows["role"][::2]
    (['own', 'float16', 'own', 'float16'], ['input', 'kernel', 'gradient'])

    Reference: the picture is after Blake et al., "Unit Scaling" (2023).
    """
    check_model(model)
    if isinstance(recipes, str | dict) or not isinstance(recipes, Iterable):
        recipes = [recipes]
    compared = {_name(recipe): get_recipe(recipe) for recipe in recipes}
    inputs, targets, weight = (
        keras.utils.unpack_x_y_sample_weight(batch)
        if isinstance(batch, tuple)
        else (batch, None, None)
    )
    found = capture(model, inputs, _loss(model, inputs, targets, weight, loss))
    if not compared and all(c.recipe is None for c in found):
        compared = {"float8": get_recipe("float8")}
    records = [row for c in found for row in _rows(c, compared)]
    names = records[0] if records else {}
    report = ScaleReport({name: [row[name] for row in records] for name in names})
    if verbose:
        print(report)
    if path is not None:
        report.plot(path)
    return report


def _name(recipe) -> str:
    name = recipe_config(get_recipe(recipe))
    return name if isinstance(name, str) else str(recipe)


def _loss(model, inputs, targets, weight, loss):
    """The scalar whose gradient goes back."""
    if targets is None:
        return _noise
    if loss is not None:
        measure = keras.losses.get(loss)
        return lambda outputs: ops.mean(measure(targets, outputs))
    if not getattr(model, "compiled", False):
        raise ValueError("`loss` must be given: the model is not compiled")
    targets = keras.tree.map_structure(ops.convert_to_tensor, targets)
    return lambda y: model.compute_loss(inputs, targets, y, weight, training=False)


def _noise(outputs):
    """The outputs times fixed Gaussian noise, summed."""
    rng = np.random.default_rng(0)
    total = 0.0
    for y in keras.tree.flatten(outputs):
        noise = rng.standard_normal(tuple(y.shape)).astype("float32")
        total = total + ops.sum(ops.cast(y, "float32") * ops.convert_to_tensor(noise))
    return total


def _rows(found: Captured, compared: dict[str, Recipe]) -> list[dict[str, Any]]:
    own = {} if found.recipe is None else {"own": found.recipe}
    return [_row(found, n, r, n in own) for n, r in {**own, **compared}.items()]


def _row(found: Captured, name: str, recipe: Recipe, is_own: bool) -> dict[str, Any]:
    """One operand under one recipe."""
    format = recipe.format(found.role)
    x = ops.convert_to_tensor(found.value)
    scale = _scale(found, recipe, format, x, is_own)
    square = found.mean_square
    return {
        "layer": found.layer,
        "role": found.role,
        "recipe": name,
        "format": format.name,
        "predicted_rms": math.nan if square is None else math.sqrt(square),
        **shown(ops.convert_to_numpy(measured(x, scale, format))),
    }


def _scale(found: Captured, recipe: Recipe, format: Format, x, is_own: bool):
    """The scale that was used; of a recipe to compare what it would use."""
    if found.mean_square is not None:
        return mean_square_to_scale(ops.array(found.mean_square, "float32"), format)
    if is_own and found.scale:
        return ops.array(found.scale, "float32")
    delayed = recipe.scaling(found.role) == "delayed" and not is_own
    amax = ops.max(ops.where(ops.isfinite(x), ops.abs(x), 0.0), initial=0.0)
    return amax_to_scale(amax, format, recipe.margin if delayed else 0)
