"""ScaledLion."""

import keras
from keras import ops

from keras_scalify.backend import arrays
from keras_scalify.optimizers.scaled_state import ScaledState
from keras_scalify.optimizers.variable_step import update_variable


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledLion(ScaledState, keras.optimizers.Lion):
    """Lion whose momentum rests in 16 or 8 bits. With g the gradient, in float32:

        variable = variable - lr sign(beta_1 m + (1 - beta_1) g)
        m = beta_2 m + (1 - beta_2) g

    A keras.optimizers.Lion. See ScaledAdam for how state rests.

    Args:
        *args, **kwargs: those of keras.optimizers.Lion, all of them.
        state_dtype: "float16" (default), "bfloat16", "float8" or "float32" (Lion
            exactly).
        seed: int, of the stochastic rounding. Default 0.
        min_size: variables with fewer elements keep float32 where others have 8 bits.
            Default 4096.

    Raises:
        ValueError: an unknown state_dtype, a seed or min_size that is no int.

    Example:

    >>> import keras_scalify as ks
    >>> optimizer = ks.optimizers.ScaledLion(1e-4, state_dtype="float8")

    Reference: Chen et al., "Symbolic discovery of optimization algorithms" (2023).
    """

    stock = keras.optimizers.Lion
    moments = {"momentum": "signed"}

    def bound(self, name, old, amax, new):
        """What no |momentum| exceeds."""
        return self.beta_2 * old + (1.0 - self.beta_2) * amax

    def scaled_step(self, gradient, variable, learning_rate):
        rate = ops.cast(learning_rate, "float32")

        def formula(part):
            g, m = part.g, part.read("momentum")
            kept = m * self.beta_2 + g * (1.0 - self.beta_2)
            part.write("momentum", kept, part.bits)
            return arrays.sign(m * self.beta_1 + g * (1.0 - self.beta_1)) * rate

        update_variable(self, gradient, variable, formula)
