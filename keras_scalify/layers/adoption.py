"""Turning built Keras layers into scaled ones and back: the same variables, no copy."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_scalify.layers import keras_private as private
from keras_scalify.layers import kernel_exchange as exchange
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import keras_class
from keras_scalify.recipes import recipe_config

# Under which name a layer keeps an argument, where it is another one.
KEPT_AS = {"output_shape": "partial_output_shape"}


def arguments(scaled_class: type) -> list[str]:
    """The names of the arguments that a scaled class adds to Keras's."""
    bases = scaled_class.__mro__[
        : scaled_class.__mro__.index(keras_class(scaled_class))
    ]
    return [
        name
        for base in bases
        if "__init__" in vars(base)
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]


def settings_of(layer) -> dict:
    """The arguments that a scaled layer's class adds to Keras's, as in its config."""
    names = arguments(type(layer))
    given: dict[str, Any] = {name: getattr(layer, name, None) for name in names}
    if "recipe" in given:
        given["recipe"] = recipe_config(given["recipe"])
    return {name: value for name, value in given.items() if value is not None}


def stock_arguments(layer, required: bool = False) -> dict:
    """The arguments that a layer gave to the constructor of its class of Keras.

    They are the objects themselves: a user's own need not have a config.

    Args:
        layer: of a class with a scaled one, or of a scaled class.
        required: whether to leave out those that have a default.
    """
    signature = inspect.signature(keras_class(type(layer)).__init__)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    _, *parameters = signature.parameters.values()  # without self
    return {
        p.name: getattr(layer, KEPT_AS.get(p.name, p.name))
        for p in parameters
        if p.kind in kinds and not (required and p.default is not p.empty)
    }


def adopt(layer, scaled_class: type, **settings):
    """Make a built layer an instance of the scaled class that replaces its own.

    Args:
        layer: a built layer whose class is the base of `scaled_class`.
        scaled_class: a ScaledLayer.
        **settings: the arguments that `scaled_class` adds to Keras's, such as
            recipe="float8".

    Returns:
        The variable of the kernel, if `weight_dtype` made another one take its place,
        for `release`; or else None.

    Raises:
        ValueError: a setting that the class does not take, or not this value of it.
            The layer is unchanged.
    """
    if unknown := settings.keys() - set(arguments(scaled_class)):
        raise ValueError(
            f"`settings` of {scaled_class.__qualname__} are "
            f"{', '.join(arguments(scaled_class))}. Received: {', '.join(unknown)}"
        )
    pattern = _unbuilt(layer, scaled_class, settings)
    stock, added, kernel = type(layer), _added(pattern, layer), None
    try:
        with private.unlocked(layer), _name_scope(layer):
            layer.__class__ = scaled_class
            for name in added:
                setattr(layer, name, getattr(pattern, name))
            private.copy_call(pattern, layer)
            if isinstance(layer, QuantizedKernel):
                exchange.rename(layer, exchange.STOCK, exchange.SCALED)
                kernel = exchange.narrow_kernel(layer)
                _set_autocast(layer, False)
            layer.add_state()
    except BaseException:
        _drop(layer, stock, added, kernel)
        raise
    private.register_variables(layer)
    return kernel


def release(layer, kernel=None) -> None:
    """Undo `adopt`: make a scaled layer one of the Keras class that it replaces.

    Args:
        layer: a built scaled layer.
        kernel: the variable of the kernel, if `adopt` replaced it. Default: the one
            there is, or of a kernel that rests narrow a wide one.
    """
    stock = layer.stock_class
    scaled = _unbuilt(layer, type(layer), settings_of(layer))
    _drop(layer, stock, _added(scaled, _unbuilt(layer, stock, {})), kernel)


def restate(layer, recipe) -> Callable[[], None]:
    """Give a scaled layer another recipe, and the state that it needs.

    Returns:
        A function that undoes it.
    """
    old = layer.scales, layer.recipe

    def assign(scales, recipe):
        with private.unlocked(layer), _name_scope(layer):
            private.untrack(layer, layer.scales)
            layer.scales, layer.recipe = scales, recipe
            if scales is None:
                layer.add_state()
        private.register_variables(layer)

    assign(None, recipe)
    kept = {variable.name: variable for variable in old[0].variables}
    for variable in layer.scales.variables:
        if variable.name in kept:
            variable.assign(keras.ops.convert_to_numpy(kept[variable.name]))
    return lambda: assign(*old)


def _drop(layer, stock, added, kernel):
    """Give a layer its Keras class back, without the attributes that were added."""
    with private.unlocked(layer), _name_scope(layer):
        if isinstance(layer, QuantizedKernel):
            if getattr(layer, "weight_scales", None) is not None:
                wide = exchange.wide_variable(layer) if kernel is None else kernel
                exchange.replace_kernel(layer, wide)
            _set_autocast(layer, True)
            exchange.rename(layer, exchange.SCALED, exchange.STOCK)
        for each in private.states(layer):
            private.untrack(layer, each)
        for name in added:
            if hasattr(layer, name):
                delattr(layer, name)
        layer.__class__, pattern = stock, _unbuilt(layer, stock, {})
        for name in _added(pattern, layer):
            setattr(layer, name, getattr(pattern, name))
        private.copy_call(pattern, layer)
    private.register_variables(layer)


def _unbuilt(layer, cls, settings):
    """An unbuilt layer of this class, with the arguments that it cannot do without."""
    required = stock_arguments(layer, required=True)
    return cls(**required, **settings, name=layer.name, dtype=layer.dtype_policy)


def _added(pattern, layer):
    return [name for name in vars(pattern) if name not in vars(layer)]


@contextlib.contextmanager
def _name_scope(layer) -> Iterator[None]:
    """The scope of names that the layer was built in."""
    with contextlib.ExitStack() as stack:
        for name in (layer.path or layer.name).split("/"):
            stack.enter_context(keras.name_scope(name))
        yield


def _set_autocast(layer, autocast):
    """The kernel is quantized from its widest copy, unless Keras's layer computes."""
    recipe = getattr(layer, "recipe", None)
    if recipe is not None and not recipe.is_identity:
        private.set_autocast(layer, autocast)
