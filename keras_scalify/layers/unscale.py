"""Unscale."""

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.entry import unscale
from keras_scalify.scaled_tensor import is_scaled


@keras.saving.register_keras_serializable(package="keras_scalify")
class Unscale(ScaledLayer, keras.layers.Layer):
    """The value of a ScaledTensor. Backward, its gradient is measured. See
    ks.ops.unscale.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((2, 4), 3.0, "float32"))
    >>> float(ks.layers.Unscale()(x)[0, 0])
    3.0
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        return self.cast_inputs(unscale(inputs), floats_only=True)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs):
        value = inputs[0] if is_scaled(inputs) else inputs
        return keras.KerasTensor(value.shape, dtype=self.compute_dtype)
