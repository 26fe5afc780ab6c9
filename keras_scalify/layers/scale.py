"""Scale."""

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer, as_output
from keras_scalify.ops.entry import scale
from keras_scalify.scaled_tensor import is_scaled


@keras.saving.register_keras_serializable(package="keras_scalify")
class Scale(ScaledLayer, keras.layers.Layer):
    """A ScaledTensor of a tensor: its mean square is measured. See ks.ops.scale.

    Example:

    >>> import keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((8,)), ks.layers.Scale(),
    ...     ks.layers.ScaledDense(4), ks.layers.Unscale()])
    >>> model.output_shape
    (None, 4)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        return scale(self.cast_inputs(inputs))

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs):
        if is_scaled(inputs):
            return as_output(inputs[0])
        return as_output(keras.KerasTensor(inputs.shape, dtype=self.compute_dtype))
