"""ScaledConv1D."""

import keras
from keras import ops

from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_conv import QuantizedConv


@replaces_keras_layer
class ScaledConv1D(QuantizedConv, keras.layers.Conv1D):
    """`y = activation(conv(q(x), q(kernel)) + bias)`. See ScaledDense.

    A keras.layers.Conv1D with its operands on a recipe's grid. The convolution itself
    runs
    in a wider dtype, which holds them exactly: no backend has a float8 one.

    Args:
        *args, **kwargs: those of keras.layers.Conv1D.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.

    Raises:
        ValueError: an unknown recipe; what Conv1D raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledConv1D(4, 3, padding="same")
    >>> tuple(layer(np.ones((2, 8, 3), "float32")).shape)
    (2, 8, 4)
    """

    def convolution_op(self, inputs, kernel):
        """Keras pads for "causal" apart from this."""
        if self.padding != "causal":
            return super().convolution_op(inputs, kernel)
        left = [self.dilation_rate[0] * (self.kernel_size[0] - 1), 0]
        last = self.data_format == "channels_last"
        padding = [[0, 0], left, [0, 0]] if last else [[0, 0], [0, 0], left]
        return ops.conv(
            ops.pad(inputs, padding),
            kernel,
            strides=list(self.strides),
            padding="valid",
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )
