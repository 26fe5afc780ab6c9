"""What a compiled model needs to go on after its layers have changed."""

import contextlib
import warnings

import keras

from keras_scalify.conversion.tree import models, walk
from keras_scalify.layers.keras_private import register_variables

# Where Keras and KerasHub keep what they have compiled.
PROGRAMS = "train_function", "test_function", "predict_function", "generate_function"


@contextlib.contextmanager
def continued(model):
    """Let compiled programs be made again, and optimizers go on with their state."""
    before = [(each, _trainable(each)) for each in models(model)]
    yield
    for layer in [*(layer for _, layer in walk(model)), model]:
        register_variables(layer)
    for each, variables in before:
        for name in PROGRAMS:  # models that were never compiled have some, too
            if getattr(each, name, None) is not None:
                setattr(each, name, None)
        if each.compiled and _trainable(each) != variables:
            each.optimizer = _successor(each.optimizer, each)


def go_on(rebuilt, model):
    """A model of another one's layers, compiled with the state of its optimizer."""
    if rebuilt is not model and model.compiled:
        if not rebuilt.compiled:
            rebuilt.compile_from_config(model.get_compile_config())
        rebuilt.optimizer = _successor(model.optimizer, rebuilt)
    return rebuilt


def _trainable(model):
    return [id(variable) for variable in model.trainable_variables]


def _successor(old, model):
    """An optimizer for the variables there are now, with the state of the old one.

    Delayed scaling adds variables that have no state in the optimizer.
    """
    if not old.built:
        return old
    new = type(old).from_config(old.get_config())
    new.build(model.trainable_variables)
    shapes = ([tuple(v.shape) for v in each.variables] for each in (old, new))
    if next(shapes) != next(shapes):
        warnings.warn(
            f"The variables of {model.name} are others now: its optimizer starts anew.",
            stacklevel=2,
        )
        return new
    for target, source in zip(new.variables, old.variables, strict=True):
        # Through numpy: on JAX an assignment would share the buffer.
        target.assign(keras.ops.convert_to_numpy(source))
    return new
