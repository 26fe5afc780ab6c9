"""All that the package needs of what Keras keeps private, for want of a public way.

A layer's sublayers and variables, its tracker and the record of its call's signature,
the graph behind a model's outputs, and, on Torch, the registry. `missing` says what a
Keras lacks of it; a test asks. Seen working with Keras 3.15.
"""

import contextlib
from collections.abc import Callable, Iterator

from keras_scalify.layers.scale_state import ScaleState
from keras_scalify.layers.scale_statistics import ScaleStatistics
from keras_scalify.layers.stored_kernel import WeightScales

# What Keras derives from a layer's class when the layer is constructed.
CALL = (
    "_call_signature",
    "call_signature_parameters",
    "_call_has_training_arg",
    "_call_has_mask_arg",
    "_call_has_context_arg",
    "_convert_input_args",
)
LAYER = (*CALL, "_layers", "_trainable_variables", "_non_trainable_variables")
TRACKER = ("locked", "lock", "unlock", "track", "untrack")


def missing(layer) -> list[str]:
    """What this built layer lacks of all that this file relies on."""
    own = *LAYER, "_tracker", "_inbound_nodes", "_outbound_nodes", "_flatten_layers"
    wanted = [(layer, name) for name in own]
    wanted += [(getattr(layer, "_tracker", None), name) for name in TRACKER]
    wanted += [(variable, "_autocast") for variable in layer.weights]
    return [name for owner, name in wanted if not hasattr(owner, name)]


def sublayers(layer) -> list:
    """The layers that a layer holds, in the order in which it got them."""
    states = ScaleState, WeightScales, ScaleStatistics
    return [each for each in layer._layers if not isinstance(each, states)]


def flattened(layer) -> list:
    """A layer and all the layers within it."""
    return layer._flatten_layers()


def states(layer) -> list:
    """What a scaled layer holds beside its sublayers."""
    inner = sublayers(layer)
    return [each for each in layer._layers if all(each is not x for x in inner)]


def set_autocast(layer, autocast: bool) -> None:
    """Whether Keras casts a layer's variables to the compute dtype when it reads."""
    for variable in own_variables(layer):
        variable._autocast = autocast


def own_variables(layer) -> list:
    """The variables of a layer without those of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def trainable_kinds(layer) -> set[int]:
    """The ids of the variables that Keras freezes and thaws with a layer."""
    return {id(variable) for variable in layer._trainable_variables}


def source(tensor) -> tuple:
    """The layer or operation that a tensor comes from, and the tensors it was given in
    that call: a shared layer has several."""
    operation, node, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node].input_tensors


def is_given_mask(layer) -> bool:
    """Whether a call of a layer in a graph has a mask as argument."""
    calls = (node.arguments.kwargs for node in layer._inbound_nodes)
    return any(kwargs.get("mask") is not None for kwargs in calls)


def edges(model) -> list[tuple]:
    """(a, b) for every call of b on a result of a, in a graph of layers."""
    graph = getattr(model, "_functional", None) or model
    nodes = [node for group in graph._nodes_by_depth.values() for node in group]
    return [(p.operation, node.operation) for node in nodes for p in node.parent_nodes]


def forget_calls(operation) -> Callable[[], None]:
    """Let a layer or operation be called as if for the first time. Returns what undoes
    it."""
    before = operation._inbound_nodes, operation._outbound_nodes

    def undo():
        operation._inbound_nodes, operation._outbound_nodes = before

    operation._inbound_nodes, operation._outbound_nodes = [], []
    return undo


@contextlib.contextmanager
def uncompiled(model) -> Iterator[None]:
    """Let clone_model leave the clone uncompiled: it would do it from a config, which
    functions that are not registered do not have."""
    compiled, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = compiled


def compile_arguments(model) -> dict:
    """The arguments that a model was compiled with, the same objects."""
    return model._compile_config.config


def copy_call(source, target) -> None:
    """Let Keras call a layer as it calls another one."""
    for name in CALL:
        setattr(target, name, getattr(source, name))


@contextlib.contextmanager
def unlocked(layer) -> Iterator[None]:
    """A built layer takes no new state outside of this."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if locked:
            layer._tracker.lock()


def track(layer, value) -> None:
    """Let a layer count a variable or layer as its own."""
    layer._tracker.track(value)


def untrack(layer, value) -> None:
    """Let a layer no longer count a variable or layer as its own."""
    layer._tracker.untrack(value)


def register_variables(layer) -> None:
    """Let Torch's registry of a layer hold the variables that the layer has now."""
    if hasattr(layer, "_torch_params"):
        layer._track_variables()
