"""ScaledMultiply."""

import functools

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer, same_rank
from keras_scalify.ops.arithmetic import multiply


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledMultiply(ScaledLayer, keras.layers.Multiply):
    """The product of a list of plain tensors or of ScaledTensors.

    A keras.layers.Multiply. The mean squares of independent tensors multiply too.

    Args:
        **kwargs: those of keras.layers.Multiply.

    Raises:
        ValueError: some inputs are scaled and some are not; says which.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((2, 4), 2.0, "float32"))
    >>> float(ks.layers.ScaledMultiply()([x, x]).mean_square)
    16.0
    """

    def call(self, inputs):
        inputs = [self.cast_inputs(x, floats_only=True) for x in inputs]
        if not self.takes_scaled(*inputs):
            return super().call(inputs)
        return functools.reduce(multiply, same_rank(inputs))
