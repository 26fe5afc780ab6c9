"""What a compiled model needs to go on after its layers have changed."""

import contextlib
import warnings
from collections import Counter

import keras

from keras_scalify.conversion.tree import models, walk
from keras_scalify.layers.keras_private import compile_arguments, register_variables
from keras_scalify.optimizers.copy_state import copy_state

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
        rebuilt.compile(**compile_arguments(model))
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
    if _is_stock(old) != _is_stock(new):
        copy_state(old, new)  # one holds second moments, the other their roots
        return new
    states, targets = _by_path(old), _by_path(new)
    pairs = _paired(states, targets)
    if len(pairs) < len(states) or any(a.shape != b.shape for a, b in pairs):
        warnings.warn(
            f"The variables of {model.name} are others now: its optimizer starts anew.",
            stacklevel=2,
        )
        return new
    for target, source in pairs:  # what is new starts at its initial value
        # Through numpy: on JAX an assignment would share the buffer.
        target.assign(keras.ops.convert_to_numpy(source))
    return new


def _paired(states: dict, targets: dict) -> list[tuple]:
    """(target, state) of those that belong together."""
    pairs = [(targets[key], states[key]) for key in states if key in targets]
    # Keras numbers those that it has no name for, over all optimizers.
    unnamed = [
        [a[key] for key in a if key not in b]
        for a, b in ((targets, states), (states, targets))
    ]
    if len(unnamed[0]) == len(unnamed[1]):
        pairs += zip(*unnamed, strict=True)
    return pairs


def _by_path(optimizer) -> dict:
    """An optimizer's variables by path, and by their order among those of one path:
    the order of the model's variables may have changed."""
    counts: Counter = Counter()
    named = {}
    for variable in optimizer.variables:
        named[variable.path, counts[variable.path]] = variable
        counts[variable.path] += 1
    return named


def _is_stock(optimizer):
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "is_stock", None)
