"""Turning a built Keras layer into a scaled one, in place: the same variables, no copy.

It needs what Keras keeps private, for want of a public way: a layer's tracker, its
variables' autocast and, on Torch, its registry. Seen working with Keras 3.15.
"""

from typing import Any

from keras_scalify.recipes import get_recipe


def adopt(
    layer,
    scaled_class: type,
    recipe: Any = "float8",
    weight_dtype: str | None = None,
) -> None:
    """Make a built layer an instance of the scaled class that replaces its own.

    Args:
        layer: a built layer whose class is a base of `scaled_class`.
        scaled_class: a QuantizedKernel.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: "float16" or "bfloat16" to initialize the kernel anew in it.
    """
    layer._tracker.unlock()
    layer.__class__ = scaled_class
    layer.recipe = get_recipe(recipe)
    layer.scales = None
    layer.weight_dtype = weight_dtype
    layer.weight_scales = None
    if weight_dtype is not None:
        _store_narrow(layer)
    layer._convert_input_args = False
    if not layer.recipe.is_identity:
        for variable in (layer.kernel_variable, layer.bias):
            if variable is not None:
                variable._autocast = False
        layer.add_scales()
    if hasattr(layer, "_track_variables"):  # Torch
        layer._track_variables()
    layer._tracker.lock()


def _store_narrow(layer):
    """Replace the kernel's variable, not used so far, by a narrow one."""
    old, bias = layer._kernel, layer.bias
    layer._kernel = None
    layer._untrack_variable(old)
    layer._kernel = layer.add_weight(
        name="kernel",
        shape=old.shape,
        initializer=layer.kernel_initializer,
        regularizer=old.regularizer,
        constraint=old.constraint,
    )
    if bias is not None:  # the kernel comes first
        layer._untrack_variable(bias)
        layer._track_variable(bias)
