"""ScaledRMSNormalization."""

import keras

from keras_scalify import backend
from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.entry import rescale_gradient
from keras_scalify.ops.normalization import affine_square
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


@replaces_keras_layer
class ScaledRMSNormalization(ScaledLayer, keras.layers.RMSNormalization):
    """`scale x / rms(x)`, of a plain tensor or a ScaledTensor.

    A keras.layers.RMSNormalization. See ScaledLayerNormalization.

    Args:
        **kwargs: those of keras.layers.RMSNormalization.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.arange(8.0, dtype="float32").reshape(2, 4))
    >>> float(ks.layers.ScaledRMSNormalization()(x).mean_square)
    1.0
    """

    def call(self, x):
        cast = self.cast_inputs(x, floats_only=True)
        stock = super().call
        if not is_scaled(x):
            return backend.recomputed(stock, (cast,), apart=False)
        value = backend.recomputed(stock, (rescale_gradient(cast).value,), apart=False)
        return ScaledTensor(value, affine_square(self.scale, None))
