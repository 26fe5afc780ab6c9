"""ScaledDropout."""

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.normalization import dropout_factor
from keras_scalify.ops.propagation import times
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledDropout(ScaledLayer, keras.layers.Dropout):
    """Dropout of a plain tensor or a ScaledTensor: its mean square grows by 1 / (1 -
    rate).

    A keras.layers.Dropout.

    Args:
        *args, **kwargs: those of keras.layers.Dropout.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((2, 4), 3.0, "float32"))
    >>> float(ks.layers.ScaledDropout(0.5)(x, training=True).mean_square)
    18.0
    """

    def call(self, inputs, training=False):
        x = self.cast_inputs(inputs, floats_only=True)
        if not is_scaled(inputs):
            return super().call(x, training=training)
        value = super().call(x.value, training=training)
        factor = dropout_factor(self.rate) if training is True else 1.0
        return ScaledTensor(value, times(x.mean_square, factor))
