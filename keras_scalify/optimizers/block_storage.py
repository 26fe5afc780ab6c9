"""Moments in a byte each, with a scale for each block of 256."""

import dataclasses
import math

from keras_scalify import backend
from keras_scalify.backend import arrays
from keras_scalify.optimizers.codes import Code
from keras_scalify.optimizers.storage import Storage

BLOCK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockStorage(Storage):
    """Moments as 8-bit codes, with a power-of-two scale per 256 elements in a row.

    Attributes:
        code: the code of the scaled moments; `format` is its format.
    """

    code: Code

    @property
    def dtype(self):
        return "uint8"

    def amax_shape(self, shape):
        return (blocks_of(shape),)

    def amax(self, gradient):
        """The amax of each block of the gradient, float32."""
        return backend.amax(_blocked(gradient), axis=-1)

    def round(self, moment, scale, bits, keep_positive):
        return self.code.round(_times(moment, scale.inverse), bits, keep_positive)

    def decode(self, data, scale):
        return _times(self.code.decode(data), scale.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeStorage(Storage):
    """Moments as 8-bit codes of their ratio to another one, which is bounded.

    Adam's `m / sqrt(v)` is at most `(1 - beta_1) / sqrt((1 - beta_2) (1 - b))` with
    `b = beta_1**2 / beta_2`, by Cauchy and Schwarz, whatever the gradients were: 7.3 at
    the default. It needs no scale, and its error is a fraction of a step's size even
    where a block holds gradients of very different sizes.

    Attributes:
        code: the code of the ratios; `format` is its format.
        limit: the largest ratio. Larger ones saturate, at less than twice of it.
    """

    code: Code
    limit: float = 8.0

    is_relative = True

    @property
    def dtype(self):
        return "uint8"

    def amax_shape(self, shape):
        return None

    def amax(self, gradient):
        return None

    def round(self, moment, scale, bits, keep_positive):
        return self.code.round(moment * (1.0 / self._unit), bits, keep_positive)

    def decode(self, data, scale):
        return self.code.decode(data) * self._unit

    @property
    def _unit(self) -> float:
        """The power of two that brings the limit near the format's largest number."""
        return 2.0 ** math.ceil(math.log2(self.limit / self.format.max))


def blocks_of(shape) -> int:
    """How many blocks a variable of this shape has."""
    return max(-(-math.prod(shape) // BLOCK), 1)


def _blocked(x):
    """The elements in rows of a block each; the last row filled up with zeros."""
    flat = arrays.reshape(x, (-1,))
    size = flat.shape[0]
    missing = blocks_of((size,)) * BLOCK - size
    if missing:
        flat = arrays.pad(flat, ((0, missing),))
    return arrays.reshape(flat, (-1, BLOCK))


def _times(x, scales):
    """x with each block times its scale."""
    rows = _blocked(x) * arrays.expand_dims(scales, -1)
    if math.prod(x.shape) % BLOCK or not math.prod(x.shape):
        rows = arrays.reshape(rows, (-1,))[: math.prod(x.shape)]
    return arrays.reshape(rows, x.shape)
