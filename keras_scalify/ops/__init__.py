"""Ops on plain tensors and ScaledTensors, named as in keras.ops.

`RULES` holds a row for every op that takes a ScaledTensor. An op without a rule raises
an AttributeError that says to `unscale` first.
"""

import keras as _keras

from keras_scalify.ops.activate import activate
from keras_scalify.ops.activations import CURVE_OPS as _CURVE_OPS
from keras_scalify.ops.activations import glu
from keras_scalify.ops.arithmetic import (
    add,
    divide,
    multiply,
    negative,
    subtract,
    where,
)
from keras_scalify.ops.entry import rescale, rescale_gradient, scale, unscale
from keras_scalify.ops.linear import einsum, matmul
from keras_scalify.ops.normalization import (
    dropout,
    exp,
    layer_normalization,
    log_softmax,
    rms_normalization,
    softmax,
)
from keras_scalify.ops.propagation import RULES
from keras_scalify.ops.quantization import dequantize, qdq, quantize
from keras_scalify.ops.reductions import average_pool, max, max_pool, mean, sum
from keras_scalify.ops.shapes import KEEPING_OPS as _KEEPING_OPS
from keras_scalify.ops.shapes import (
    broadcast_to,
    concatenate,
    pad,
    repeat,
    slice,
    split,
    stack,
    take,
)

globals().update(_CURVE_OPS, **_KEEPING_OPS)

__all__ = [
    "RULES",
    "activate",
    "add",
    "average_pool",
    "broadcast_to",
    "concatenate",
    "dequantize",
    "divide",
    "dropout",
    "einsum",
    "exp",
    "glu",
    "layer_normalization",
    "log_softmax",
    "matmul",
    "max",
    "max_pool",
    "mean",
    "multiply",
    "negative",
    "pad",
    "qdq",
    "quantize",
    "repeat",
    "rescale",
    "rescale_gradient",
    "rms_normalization",
    "scale",
    "slice",
    "softmax",
    "split",
    "stack",
    "subtract",
    "sum",
    "take",
    "unscale",
    "where",
    *_CURVE_OPS,
    *_KEEPING_OPS,
]


def __getattr__(name: str):
    if hasattr(_keras.ops, name):
        raise AttributeError(
            f"keras_scalify.ops has no rule for {name!r}: use ks.ops.unscale(x) first, "
            f"then keras.ops.{name}."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
