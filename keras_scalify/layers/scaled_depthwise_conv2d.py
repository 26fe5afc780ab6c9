"""ScaledDepthwiseConv2D."""

import keras
from keras import ops

from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_conv import QuantizedConv
from keras_scalify.ops.products import ConvProduct


@replaces_keras_layer
class ScaledDepthwiseConv2D(QuantizedConv, keras.layers.DepthwiseConv2D):
    """`y = activation(depthwise_conv(q(x), q(kernel)) + bias)`. See ScaledConv2D.

    A keras.layers.DepthwiseConv2D with its operands on a recipe's grid.

    Args:
        *args, **kwargs: those of keras.layers.DepthwiseConv2D.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.

    Raises:
        ValueError: an unknown recipe; what DepthwiseConv2D raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledDepthwiseConv2D(3, padding="same")
    >>> tuple(layer(np.ones((2, 8, 8, 3), "float32")).shape)
    (2, 8, 8, 3)
    """

    @property
    def kernel(self):
        return self._kernel if self.weight_scales is None else self.adapted_kernel()

    @kernel.setter
    def kernel(self, variable):  # by Keras, which has no other name for it here
        self._kernel = variable

    def product(self, x):
        window, positions = tuple(self.kernel_size), self.positions(x)
        return ConvProduct(self._convolve, window, positions, groups=None)

    def _convolve(self, x, kernel):
        return ops.depthwise_conv(
            x,
            kernel,
            strides=self.strides,
            padding=self.padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )
