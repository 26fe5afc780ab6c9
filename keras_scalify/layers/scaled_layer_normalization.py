"""ScaledLayerNormalization."""

import keras

from keras_scalify import backend
from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.entry import rescale_gradient
from keras_scalify.ops.normalization import affine_square
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


@replaces_keras_layer
class ScaledLayerNormalization(ScaledLayer, keras.layers.LayerNormalization):
    """`gamma (x - mean) / std + beta`, of a plain tensor or a ScaledTensor.

    A keras.layers.LayerNormalization. The mean square of the result is gamma's and
    beta's; the gradient of x is measured on its way back, so that the drift of the
    predicted mean squares stays within one block.

    Args:
        **kwargs: those of keras.layers.LayerNormalization.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.arange(8.0, dtype="float32").reshape(2, 4))
    >>> float(ks.layers.ScaledLayerNormalization()(x).mean_square)
    1.0
    """

    def call(self, inputs):
        # Keras's layer takes inputs of any dtype, and casts its result.
        stock = super().call
        if not is_scaled(inputs):
            return backend.recomputed(stock, (inputs,), apart=False)
        x = rescale_gradient(ScaledTensor(*inputs)).value
        value = backend.recomputed(stock, (x,), apart=False)
        return ScaledTensor(value, affine_square(self.gamma, self.beta))
