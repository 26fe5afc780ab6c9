"""What a conversion will do with each layer, decided before anything is changed."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_scalify import layers as scaled
from keras_scalify.conversion.heads import heads
from keras_scalify.conversion.tree import walk
from keras_scalify.equations import parse
from keras_scalify.layers.keras_private import own_variables
from keras_scalify.layers.kernel_exchange import kernel_variable
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import keras_class
from keras_scalify.layers.scaled_einsum_dense import explicit
from keras_scalify.layers.scaled_layer import ScaledLayer

MIN_SIZE = 16  # float8 matmuls of GPUs take their sizes in sixteens

# The Keras layers that multiply by a kernel, and what replaces each.
SCALED: dict[type, type] = {
    keras_class(cls): cls
    for cls in vars(scaled).values()
    if isinstance(cls, type) and issubclass(cls, QuantizedKernel)
}
SCALED[keras.layers.ReversibleEmbedding] = scaled.ScaledEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A layer with weights, and what becomes of it.

    Attributes:
        path: names of the layers from the model to it, joined by "/".
        layer: the layer.
        target: the class that it is given, or None.
        reason: why it is left alone; "" if it is converted.
    """

    path: str
    layer: Any
    target: Any = None
    reason: str = ""

    @property
    def converted(self) -> bool:
        """Whether the layer is a scaled one already."""
        return isinstance(self.layer, ScaledLayer)


Filter = str | re.Pattern | Callable | Iterable | None


def plan(model, filter: Filter = None) -> list[Row]:
    """A Row for every layer of the model that has weights of its own."""
    chosen = chooser(model, filter)
    return [
        _row(path, layer, chosen)
        for path, layer in [("", model), *walk(model)]
        if own_variables(layer) or not layer.built
    ]


def chooser(model, filter: Filter) -> Callable[[str, Any], str]:
    """A function of (path, layer): why not to convert the layer, or ""."""
    if filter is not None:
        accepts = _acceptor(filter)
        return lambda path, layer: "" if accepts(path, layer) else "left out by filter"
    last = {id(layer) for layer in heads(model)}

    def default(path, layer):
        if id(layer) in last:
            return "projection to the output"
        return next((text for holds, text in DEFAULTS if holds(layer)), "")

    return default


def _acceptor(filter) -> Callable[[str, Any], bool]:
    if isinstance(filter, str | re.Pattern):
        try:
            pattern = re.compile(filter)
        except re.error as error:
            raise ValueError(
                f"`filter` must be a regular expression. Received: filter={filter!r}: "
                f"{error}"
            ) from error
        return lambda path, layer: pattern.search(path) is not None
    if callable(filter):
        return lambda path, layer: bool(filter(path, layer))
    if isinstance(filter, Iterable):
        accepts = [_acceptor(each) for each in filter]
        return lambda path, layer: any(a(path, layer) for a in accepts)
    raise ValueError(
        "`filter` must be a callable (path, layer) -> bool, a regular expression, a "
        f"list of them or None. Received: filter={filter!r}"
    )


def _row(path, layer, chosen) -> Row:
    reason = next((text(layer) for holds, text in OBSTACLES if holds(layer)), "")
    reason = reason or chosen(path, layer)
    target = None if reason else SCALED[type(layer)]
    return Row(path=path, layer=layer, target=target, reason=reason)


def product_sizes(layer) -> tuple[int, int]:
    """(K, N): how many terms a layer's product sums, and how many outputs share them.

    Of a convolution K is window x channels in; of a lookup both are the table's sizes.
    """
    shape = tuple(kernel_variable(layer).shape)
    if isinstance(layer, keras.layers.EinsumDense):
        term = parse(_equation(layer))
        sizes = dict(zip(term.w, shape, strict=True))
        inner, outer = ([sizes[c] for c in p] for p in (term.contracted, term.w_free))
        return math.prod(inner), math.prod(outer)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return math.prod(shape[:2]), math.prod(shape[2:])
    return math.prod(shape[:-1]), shape[-1]


def _equation(layer) -> str:
    shape = (layer.get_build_config() or {}).get("input_shape") or (None,) * 3
    return explicit(layer.equation, len(shape))


def _unlike_a_product(layer) -> bool:
    if not isinstance(layer, keras.layers.EinsumDense):
        return False
    try:
        parse(_equation(layer))
    except ValueError:
        return True
    return False


def _is_small(layer) -> bool:
    return min(product_sizes(layer)) < MIN_SIZE


def _base(layer) -> type:
    return next(base for base in type(layer).__mro__ if base in SCALED)


def _unlike_a_table(layer) -> bool:
    """Whether an embedding is more than a table, looked up or multiplied by."""
    if not isinstance(layer, keras.layers.ReversibleEmbedding):
        return _own_class(layer) and isinstance(layer, keras.layers.Embedding)
    plain = layer.reverse_dtype is None and layer.logit_soft_cap is None
    return _own_class(layer) or not (plain and layer.tie_weights)


def _own_class(layer) -> bool:
    return type(layer) not in SCALED and isinstance(layer, tuple(SCALED))


# Why a layer cannot be converted: (it cannot, the reason).
OBSTACLES: tuple[tuple[Callable, Callable], ...] = (
    (lambda x: isinstance(x, ScaledLayer), lambda x: "scaled already"),
    (lambda x: not x.built, lambda x: "not built: call the model once before"),
    (_unlike_a_table, lambda x: "an embedding of its own kind"),
    (_own_class, lambda x: f"a subclass of {_base(x).__name__} with code of its own"),
    (lambda x: type(x) not in SCALED, lambda x: "has no product with a kernel here"),
    (
        lambda x: x.quantization_mode is not None,
        lambda x: f"quantized by Keras: {x.quantization_mode}",
    ),
    (_unlike_a_product, lambda x: f"its equation is no product: {x.equation}"),
)

# Why a layer that could be converted is not, unless a filter asks for it.
DEFAULTS: tuple[tuple[Callable, str], ...] = (
    (lambda x: isinstance(x, keras.layers.Embedding), "embedding"),
    (lambda x: isinstance(x, keras.layers.DepthwiseConv2D), "one window a channel"),
    (_is_small, f"a size below {MIN_SIZE}: nothing to gain"),
)
