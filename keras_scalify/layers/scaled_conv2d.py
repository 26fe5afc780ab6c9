"""ScaledConv2D."""

import keras

from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_conv import QuantizedConv


@replaces_keras_layer
class ScaledConv2D(QuantizedConv, keras.layers.Conv2D):
    """`y = activation(conv(q(x), q(kernel)) + bias)`. See ScaledDense.

    A keras.layers.Conv2D with its operands on a recipe's grid. The convolution itself
    runs
    in a wider dtype, which holds them exactly: no backend has a float8 one.

    Args:
        *args, **kwargs: those of keras.layers.Conv2D.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.

    Raises:
        ValueError: an unknown recipe; what Conv2D raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledConv2D(4, 3, padding="same")
    >>> tuple(layer(np.ones((2, 8, 8, 3), "float32")).shape)
    (2, 8, 8, 4)
    """
