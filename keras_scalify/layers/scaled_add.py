"""ScaledAdd."""

import functools

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer, same_rank
from keras_scalify.ops.arithmetic import add


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledAdd(ScaledLayer, keras.layers.Add):
    """The sum of a list of plain tensors or of ScaledTensors.

    A keras.layers.Add. The mean squares of independent tensors add too.

    Args:
        **kwargs: those of keras.layers.Add.

    Raises:
        ValueError: some inputs are scaled and some are not; says which.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((2, 4), 2.0, "float32"))
    >>> float(ks.layers.ScaledAdd()([x, x]).mean_square)
    8.0
    """

    def call(self, inputs):
        inputs = [self.cast_inputs(x, floats_only=True) for x in inputs]
        if not self.takes_scaled(*inputs):
            return super().call(inputs)
        return functools.reduce(add, same_rank(inputs))
