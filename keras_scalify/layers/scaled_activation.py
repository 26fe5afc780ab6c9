"""ScaledActivation."""

import keras

from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.activate import activate
from keras_scalify.scaled_tensor import is_scaled


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledActivation(ScaledLayer, keras.layers.Activation):
    """An activation of a plain tensor or a ScaledTensor.

    A keras.layers.Activation. The mean square of the result is its Gaussian
    expectation.

    Args:
        activation: a name or a function of keras.activations that has a rule in RULES.
        **kwargs: those of keras.layers.Activation.

    Raises:
        ValueError: called on a ScaledTensor with an activation that has no rule.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((2, 4), 3.0, "float32"))
    >>> float(ks.layers.ScaledActivation("relu")(x).mean_square)
    4.5
    """

    def call(self, inputs):
        x = self.cast_inputs(inputs, floats_only=True)
        return activate(self.activation, x) if is_scaled(inputs) else super().call(x)
