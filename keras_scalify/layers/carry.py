"""Carry: a scale through the Keras layers that keep it."""

import math

import keras
from keras import layers

from keras_scalify.layers.scaled_layer import ScaledLayer, as_output, value_masks
from keras_scalify.ops.gaussian import maximum_mean_square
from keras_scalify.ops.propagation import times
from keras_scalify.ops.shapes import entries
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled

# A rule gives (forward, backward): what the mean square and that of the gradient are
# multiplied by, for a layer, the shapes of its input and output, and whether it trains.


def _keep(layer, x, y, training):
    return 1.0, 1.0


def _resize(layer, x, y, training):
    """Cropped entries get no gradient; entries padded with zeros count in the mean."""
    ratio = entries(y[1:]) / entries(x[1:])
    return min(1.0, 1.0 / ratio), min(1.0, ratio)


def _repeat(layer, x, y, training):
    return 1.0, entries(y[1:]) / entries(x[1:])


def _max_pool(layer, x, y, training):
    window = math.prod(layer.pool_size)
    return maximum_mean_square(window), entries(y[1:]) / entries(x[1:])


def _average_pool(layer, x, y, training):
    window = math.prod(layer.pool_size)
    return 1.0 / window, entries(y[1:]) / entries(x[1:]) / window


def _global_max(layer, x, y, training):
    count = round(entries(x[1:]) / entries(y[1:]))
    return maximum_mean_square(min(count, 65536)), 1.0 / count


def _global_average(layer, x, y, training):
    count = entries(x[1:]) / entries(y[1:])
    return 1.0 / count, 1.0 / count**2


def _dropout(layer, x, y, training):
    factor = 1.0 / (1.0 - layer.rate) if training is True else 1.0
    return factor, factor


CARRIED = {
    "AveragePooling1D": _average_pool,
    "AveragePooling2D": _average_pool,
    "AveragePooling3D": _average_pool,
    "Cropping1D": _resize,
    "Cropping2D": _resize,
    "Cropping3D": _resize,
    "Dropout": _dropout,
    "Flatten": _keep,
    "GlobalAveragePooling1D": _global_average,
    "GlobalAveragePooling2D": _global_average,
    "GlobalAveragePooling3D": _global_average,
    "GlobalMaxPooling1D": _global_max,
    "GlobalMaxPooling2D": _global_max,
    "GlobalMaxPooling3D": _global_max,
    "Identity": _keep,
    "MaxPooling1D": _max_pool,
    "MaxPooling2D": _max_pool,
    "MaxPooling3D": _max_pool,
    "Permute": _keep,
    "RepeatVector": _repeat,
    "Reshape": _keep,
    "SpatialDropout1D": _dropout,
    "SpatialDropout2D": _dropout,
    "SpatialDropout3D": _dropout,
    "UpSampling1D": _repeat,
    "UpSampling2D": _repeat,
    "UpSampling3D": _repeat,
    "ZeroPadding1D": _resize,
    "ZeroPadding2D": _resize,
    "ZeroPadding3D": _resize,
}


@keras.saving.register_keras_serializable(package="keras_scalify")
class Carry(ScaledLayer, layers.Wrapper):
    """A Keras layer that moves or pools entries, applied to the value of a
    ScaledTensor.

    Args:
        layer: a layer of one of the classes in CARRIED: reshaping, cropping, padding,
            pooling, dropout, upsampling, Identity.
        **kwargs: those of keras.layers.Wrapper.

    Raises:
        ValueError: a layer of another class; names it and what is allowed.

    Example:

    >>> import keras, numpy as np, keras_scalify as ks
    >>> flat = ks.layers.Carry(keras.layers.Flatten())
    >>> tuple(flat(ks.ops.scale(np.ones((2, 3, 4), "float32"))).shape)
    (2, 12)
    """

    def __init__(self, layer, **kwargs):
        super().__init__(layer, **kwargs)
        if type(layer).__name__ not in CARRIED:
            raise ValueError(
                f"`layer` must be one of {', '.join(CARRIED)}. "
                f"Received: layer={type(layer).__name__}. Use Unscale before it."
            )
        self.supports_masking = True

    def call(self, inputs, training=None):
        takes_training = isinstance(self.layer, layers.Dropout)
        kwargs = {"training": training} if takes_training else {}
        if not is_scaled(inputs):
            return self.layer(inputs, **kwargs)
        x = ScaledTensor(*inputs)
        value = self.layer(x.value, **kwargs)
        rule = CARRIED[type(self.layer).__name__]
        factors = rule(self.layer, tuple(x.shape), tuple(value.shape), training)
        return ScaledTensor(value, times(x.mean_square, *factors))

    def compute_mask(self, inputs, previous_mask):
        mask = value_masks(inputs, previous_mask)
        return self.layer.compute_mask(inputs[0] if is_scaled(inputs) else inputs, mask)

    def compute_output_shape(self, input_shape):
        return self.layer.compute_output_shape(input_shape)

    def compute_output_spec(self, inputs, training=None):
        value = inputs[0] if is_scaled(inputs) else inputs
        spec = self.layer.compute_output_spec(value)
        return as_output(spec) if is_scaled(inputs) else spec
