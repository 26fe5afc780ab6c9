"""What the scaled convolutions share."""

import math

from keras import ops

from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.ops.products import ConvProduct


class QuantizedConv(QuantizedKernel):
    """Mixin before a Keras convolution: its product and its bias."""

    data_format: str
    filters: int
    groups: int
    kernel_size: tuple
    strides: tuple
    rank: int

    def product(self, x):
        return ConvProduct(
            self.convolution_op,
            tuple(self.kernel_size),
            self.positions(x),
            self.groups,
        )

    def positions(self, x) -> float:
        """Positions of the output for one of the input."""
        shape = tuple(x.shape)
        sizes = self._spatial(shape), self._spatial(self.compute_output_shape(shape))
        if None in sizes[0]:
            strides = self.strides
            return 1.0 / math.prod((strides,) if isinstance(strides, int) else strides)
        return math.prod(sizes[1]) / math.prod(sizes[0])

    def _spatial(self, shape):
        return shape[1:-1] if self.data_format == "channels_last" else shape[2:]

    def adapt(self, x, a, b):
        return self.convolution_op(x, ops.matmul(a, b))

    def broadcast_bias(self, bias):
        if self.data_format == "channels_last":
            return bias
        return ops.reshape(bias, (1, -1, *(1,) * self.rank))
