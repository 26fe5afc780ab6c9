"""Products that are linear in both operands: einsum and convolution."""

import dataclasses
import math
from collections.abc import Callable

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.equations import Equation
from keras_scalify.ops.shapes import size_product


@dataclasses.dataclass(frozen=True)
class EinsumProduct:
    """`y = einsum(equation, x, w)` and its two gradients, which are einsums too."""

    equation: Equation

    def forward(self, qx, qw, scales, dtype):
        return backend.einsum(self.equation, qx, qw, scales, dtype)

    def input_gradient(self, qg, qw, scales, dtype, shape):
        return backend.einsum(self.equation.input_gradient, qg, qw, scales, dtype)

    def kernel_gradient(self, qx, qg, scales, dtype, shape):
        return backend.einsum(self.equation.kernel_gradient, qx, qg, scales, dtype)

    def fans(self, x, w):
        """How many terms each entry of y, dx and dw sums: (K, N, M)."""
        sizes = dict(zip(self.equation.x, ops.shape(x), strict=True))
        sizes.update(zip(self.equation.w, ops.shape(w), strict=True))
        labels = self.equation.contracted, self.equation.w_free, self.equation.x_free
        return tuple(size_product([sizes[c] for c in term]) for term in labels)


@dataclasses.dataclass(frozen=True)
class ConvProduct:
    """`y = convolve(x, w)`, channels last in w, and its two gradients by its
    transposes.

    No backend has a float8 convolution for every stride and padding: the operands are
    widened to float32, which holds them exactly.

    Attributes:
        convolve: function of x and w, linear in each.
        window: sizes of the kernel's window.
        positions: of the output for one of the input.
        groups: in which the channels are contracted; None: each channel alone
            (depthwise).
    """

    convolve: Callable
    window: tuple[int, ...]
    positions: float
    groups: int | None = 1

    def forward(self, qx, qw, scales, dtype):
        y = self.convolve(*(ops.cast(q, "float32") for q in (qx, qw)))
        return _rescaled(y, scales, dtype)

    def input_gradient(self, qg, qw, scales, dtype, shape):
        w = ops.cast(qw, "float32")
        dx = backend.transpose(lambda x: self.convolve(x, w), shape, qg)
        return _rescaled(dx, scales, dtype)

    def kernel_gradient(self, qx, qg, scales, dtype, shape):
        x = ops.cast(qx, "float32")
        dw = backend.transpose(lambda w: self.convolve(x, w), shape, qg)
        return _rescaled(dw, scales, dtype)

    def fans(self, x, w):
        """How many terms each entry of y, dx and dw sums, about: (K, N, M)."""
        window = math.prod(self.window)
        inputs, outputs = (1, w.shape[-1]) if self.groups is None else w.shape[-2:]
        outputs = outputs / (self.groups or 1)
        channels = w.shape[-2] * (self.groups or 1)
        rows = size_product(ops.shape(x)) / channels * self.positions
        return window * inputs, window * outputs * self.positions, rows


def _rescaled(y, scales, dtype):
    y = y * scales[0] * scales[1]
    return y if standardize_dtype(y.dtype) == dtype else ops.cast(y, dtype)
