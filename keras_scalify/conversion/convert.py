"""scalify and unscalify."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from keras_scalify.conversion.continuation import continued, go_on
from keras_scalify.conversion.holder import Holder, holder_class, holders, original
from keras_scalify.conversion.plan import Filter, plan
from keras_scalify.conversion.propagation import propagated
from keras_scalify.conversion.stretches import COUNTERPARTS
from keras_scalify.conversion.tree import walk
from keras_scalify.conversion.unpropagation import carries_scales, unpropagated
from keras_scalify.layers.adoption import adopt, release, settings_of
from keras_scalify.layers.check_model import check_model
from keras_scalify.layers.keras_private import own_variables
from keras_scalify.layers.kernel_exchange import kernel_variable
from keras_scalify.recipes import get_recipe

REPLACEMENTS = frozenset(COUNTERPARTS.values())  # a user's own have code of their own

Undo = list[Callable[[], None]]


def scalify(
    model,
    recipe: Any = "float8",
    filter: Filter = None,
    propagate: bool = False,
    **settings,
):
    """Give every layer with a product the scaled class, in place: `y = x @ w` becomes
    `y = q(x) @ q(w)`.

    Variables stay the same objects, with their values, names, order and sharding;
    nothing is copied. Works on Sequential, Functional and subclassed models, on blocks
    such as MultiHeadAttention, whose projections are converted, and on KerasHub's
    models. A compiled model trains on, its optimizer with its state.

    Args:
        model: a built keras.Model, or a built layer with layers inside.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        filter: which layers to convert: a callable (path, layer) -> bool, a regular
            expression that is searched in the path, or a list of them, any of which
            may accept. A path is the names of the layers down to this one, joined by
            "/". Default None: every layer that can be, but for the projection to the
            output, embeddings, depthwise convolutions and products with a size below
            16.
        propagate: whether to rebuild a Sequential or Functional model so that scales
            travel from layer to layer through every stretch of layers with rules, with
            Scale and Unscale at its edges. Then a new model of the same layers is
            returned, and the one that was given must no longer be used. Default False.
        **settings: other arguments that the scaled layers add to Keras's:
            weight_dtype="float16" (then there is a copy of the weights, in 16 bits),
            monitor=True.

    Returns:
        The model. Where nothing is left to convert, it is unchanged and a warning says
        so. `scalify_report` tells what became of each layer.

    Raises:
        ValueError: a model that is not built, an unknown recipe, filter or setting, a
            `weight_dtype` for a kernel that another layer holds too, such as
            SpectralNormalization. When anything fails the model is as it was.

    Example:

    >>> import keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((32,)),
    ...     keras.layers.Dense(64, "relu", name="inner"),
    ...     keras.layers.Dense(10, name="logits")])
    >>> print(ks.scalify_report(ks.scalify(model)))
    path    layer        K x N    recipe
    inner   ScaledDense  32 x 64  float8  scaled
    logits  Dense        64 x 10          projection to the output
    1 of 2 scaled

    A model that another, compiled one contains is converted too, but the outer one
    keeps its compiled programs: convert the outer one, or compile it again.
    """
    recipe = get_recipe(recipe)
    check_model(model)
    rows = plan(model, filter)
    chosen = [row for row in rows if row.target]
    if not chosen and (not propagate or carries_scales(model)):
        _note(rows)
        return model
    if settings.get("weight_dtype") is not None:
        _check_unshared(model, chosen)
    with undone_on_failure() as undo, continued(model):
        for row in chosen:
            kernel = adopt(row.layer, row.target, recipe=recipe, **settings)
            undo.append(partial(release, row.layer, kernel))
        rebuilt = propagated(unpropagated(model, undo), undo) if propagate else model
        hold(rebuilt, undo)
        go_on(rebuilt, model)
    return rebuilt


def hold(model, undo: Undo) -> None:
    """Let every layer that makes its sublayers itself remember the scaled ones."""
    for layer in holders(model):
        undo.append(partial(setattr, layer, "__class__", type(layer)))
        layer.__class__ = holder_class(type(layer))


def unscalify(model):
    """Give every scaled layer back the class of Keras, in place, with its weights.

    The inverse of `scalify`, for exporting or sharing a model with those who do not
    have this package. Scales and recipes are dropped. A ScaledEmbedding becomes a
    ReversibleEmbedding if it was ever called with `reverse=True`, or else an Embedding.

    Args:
        model: a keras.Model, or a layer with layers inside.

    Returns:
        The model; of one with scales that travel, a new model of the same layers.

    Raises:
        ValueError: a model that is not built, or whose own code passes ScaledTensors.
            When anything fails it is as it was.

    Example:

    >>> import keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((8,)), ks.layers.ScaledDense(4)])
    >>> type(ks.unscalify(model).layers[0]) is keras.layers.Dense
    True
    """
    check_model(model)
    with undone_on_failure() as undo, continued(model):
        rebuilt = unpropagated(model, undo)
        for layer in [rebuilt, *(layer for _, layer in walk(rebuilt))]:
            if isinstance(layer, Holder):
                undo.append(partial(setattr, layer, "__class__", type(layer)))
                layer.__class__ = original(type(layer))
            elif type(layer) in REPLACEMENTS:
                again = partial(adopt, layer, type(layer), **settings_of(layer))
                release(layer)
                undo.append(again)
        go_on(rebuilt, model)
    return rebuilt


@contextlib.contextmanager
def undone_on_failure() -> Iterator[Undo]:
    """Collects what undoes each step, and does it, last first, if a step fails."""
    undo: Undo = []
    try:
        yield undo
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _check_unshared(model, rows) -> None:
    """Raise if a variable that is to be replaced is held by a second layer."""
    kernels = {id(kernel_variable(row.layer)): row for row in rows}
    for _, layer in [("", model), *walk(model)]:
        for variable in own_variables(layer):
            row = kernels.get(id(variable))
            if row is not None and row.layer is not layer:
                raise ValueError(
                    "`weight_dtype` gives a layer another variable, which must be its "
                    f"own: {layer.name}, a {type(layer).__qualname__}, holds that of "
                    f"{row.path} too. Leave it out by `filter`."
                )


def _note(rows) -> None:
    done = sum(row.converted for row in rows)
    text = f"{done} are scaled already" if done else "see keras_scalify.scalify_report"
    warnings.warn(
        f"scalify found no layer to convert among {len(rows)}: {text}.", stacklevel=3
    )
