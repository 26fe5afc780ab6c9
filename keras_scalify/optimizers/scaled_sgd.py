"""ScaledSGD."""

import keras
from keras import ops

from keras_scalify.optimizers.scaled_state import ScaledState
from keras_scalify.optimizers.variable_step import update_variable


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledSGD(ScaledState, keras.optimizers.SGD):
    """SGD whose momentum rests in 16 or 8 bits. With g the gradient, in float32:

        m = momentum m - lr g
        variable = variable + m            (nesterov: + momentum m - lr g)

    A keras.optimizers.SGD; without momentum there is no state. See ScaledAdam for how
    state rests.

    Args:
        *args, **kwargs: those of keras.optimizers.SGD, all of them.
        state_dtype: "float16" (default), "bfloat16", "float8" or "float32" (SGD
            exactly).
        seed: int, of the stochastic rounding. Default 0.
        min_size: variables with fewer elements keep float32 where others have 8 bits.
            Default 4096.

    Raises:
        ValueError: an unknown state_dtype, a seed or min_size that is no int.

    Example:

    >>> import keras_scalify as ks
    >>> optimizer = ks.optimizers.ScaledSGD(0.1, momentum=0.9)
    """

    stock = keras.optimizers.SGD
    moments = {"momentum": "signed"}

    @property
    def is_stock(self) -> bool:
        return super().is_stock or (self.momentum == 0 and self._is_wide)

    def slot_names(self):
        return super().slot_names() if self.momentum else []

    def bound(self, name, old, amax, new):
        """What no |momentum| exceeds."""
        return self.momentum * old + amax

    def scaled_step(self, gradient, variable, learning_rate):
        beta = self.momentum
        g = self.widen(gradient, variable) * ops.cast(learning_rate, "float32")

        def formula(part):
            if not beta:
                return part.g
            m = part.read("momentum") * beta - part.g
            part.write("momentum", m, part.bits)
            return part.g - m * beta if self.nesterov else -m

        update_variable(self, g, variable, formula)
