"""The variable of a built layer's kernel: its name, and another one in its place."""

import keras

from keras_scalify.layers import keras_private as private
from keras_scalify.layers.registration import keras_class

# Under which name an instance holds its kernel's variable.
STOCK = {keras.layers.Embedding: "_embeddings", keras.layers.DepthwiseConv2D: "kernel"}
SCALED = {keras.layers.Embedding: "_embeddings"}
KERNEL = "_kernel"


def kernel_variable(layer):
    """The variable of a layer's kernel or table, without LoRA's share."""
    names = KERNEL, *STOCK.values()
    return next(vars(layer)[name] for name in names if name in vars(layer))


def _kernel_name(layer, names) -> str:
    return names.get(keras_class(type(layer)), KERNEL)


def rename(layer, before, after):
    """Move the variable from its name in one table to that in the other."""
    before, after = (_kernel_name(layer, names) for names in (before, after))
    if before in vars(layer):
        vars(layer)[after] = vars(layer).pop(before)


def narrow_kernel(layer):
    """Let a kernel with a `weight_dtype` rest in it. Returns the old variable."""
    if layer.weight_dtype is None:
        return None
    old = layer.kernel_variable
    new = _new_kernel(
        layer, old, regularizer=old.regularizer, constraint=old.constraint
    )
    replace_kernel(layer, new)
    layer.weight_scales.trainable = old.trainable  # LoRA freezes the kernel alone
    layer.assign_kernel(old.value)
    return old


def wide_variable(layer):
    """A variable in the variables' dtype with the kernel that rests narrow."""
    narrow, value = layer.kernel_variable, layer.wide_kernel()
    layer.weight_dtype = None
    inner = {
        name: getattr(getattr(narrow, name), "inner", None)
        for name in ("regularizer", "constraint")
    }
    new = _new_kernel(layer, narrow, **inner)
    new.assign(value)
    return new


def _new_kernel(layer, like, **kwargs):
    name, trainable = like.name, like.trainable
    new = layer.add_weight(name=name, shape=like.shape, initializer="zeros", **kwargs)
    new.trainable = trainable
    return new


def replace_kernel(layer, variable):
    """Put a variable in the place of the kernel's, first among the layer's."""
    old = layer.kernel_variable
    rest = [
        v for v in private.own_variables(layer) if v is not old and v is not variable
    ]
    kinds = private.trainable_kinds(layer)
    flags = [(v, v.trainable) for v in (variable, *rest)]
    for each in (old, variable, *rest):
        private.untrack(layer, each)
    for each, _ in flags:
        # A frozen variable stays among those that Keras thaws with the layer.
        each.trainable = id(old if each is variable else each) in kinds
    setattr(layer, _kernel_name(layer, SCALED), variable)
    for each in rest:
        private.track(layer, each)
    for each, trainable in flags:
        each.trainable = trainable
