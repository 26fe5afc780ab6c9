"""What makes a layer with a quantized product observable."""

from typing import Any

from keras_scalify.layers import keras_private as private
from keras_scalify.layers.scale_statistics import ScaleStatistics


class WatchedKernel:
    """Mixin before a Keras layer: a place where an observer sees the operands.

    Attributes:
        monitor: whether the layer is built with statistics of its own, the gradient's
            among them. ScaleMonitor adds the rest where it is False.
        statistics: the ScaleStatistics, or another observer with its `watch`; None
            while nobody looks, and then a program contains nothing of it.
    """

    bias: Any
    recipe: Any
    scales: Any

    def __init__(self, *args, monitor: bool = False, **kwargs):
        self.monitor = monitor
        self.statistics: Any = None
        super().__init__(*args, **kwargs)

    def add_statistics(self):
        """Create the statistics of a layer built with `monitor=True`."""
        if self.monitor:
            self.statistics = ScaleStatistics(self.recipe, name="statistics")
            self.statistics.trainable = self.trainable
            self.statistics.build()

    def watch(self, y, operands, training, gradient_scale=None):
        """y, seen by the observer if there is one. See ScaleStatistics.watch."""
        if self.statistics is None:
            return y
        equation = getattr(self.product(operands[0][0]), "equation", None)
        rank = 0 if self.bias is None else len(self.bias.shape)
        shape = {"equation": equation, "bias_rank": rank}
        return self.statistics.watch(y, operands, training, gradient_scale, **shape)

    def get_config(self):
        return {**super().get_config(), "monitor": self.monitor}


def watched_layers(model) -> dict[str, Any]:
    """The built layers of a model with a product that a recipe rounds, by their path.

    The path of a layer within the model: "multi_head_attention/query".
    """
    named: dict[str, Any] = {}
    for layer in private.flattened(model):
        if isinstance(layer, WatchedKernel) and layer.scales is not None:
            named[unique_path(layer, model, named)] = layer
    return named


def unique_path(layer, model, taken) -> str:
    """A layer's path within a model, with a number if one of these has it already."""
    path = (layer.path or layer.name).removeprefix(f"{model.name}/")
    count = sum(name.split("#")[0] == path for name in taken)
    return f"{path}#{count + 1}" if count else path


def attach(layer, observer) -> None:
    """Let an observer see the layer's operands from its next trace on.

    A Keras layer takes state after it was built, or gives it back, by its tracker alone
    (3.15).
    """
    detach(layer)
    with private.unlocked(layer):
        layer.statistics = observer


def detach(layer) -> Any:
    """Remove the layer's observer, and return it."""
    observer = layer.statistics
    private.untrack(layer, observer)
    del layer.statistics  # Torch would take nothing but a module in a module's place
    layer.statistics = None
    return observer
