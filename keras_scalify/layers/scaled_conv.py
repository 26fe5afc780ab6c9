"""What the scaled convolutions share."""

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
            tuple(self.strides),
            self.groups,
        )

    def adapt(self, x, a, b):
        return self.convolution_op(x, ops.matmul(a, b))

    def broadcast_bias(self, bias):
        if self.data_format == "channels_last":
            return bias
        return ops.reshape(bias, (1, -1, *(1,) * self.rank))
