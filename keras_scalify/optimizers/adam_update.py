"""Adam's update on moments in any storage."""

import keras
from keras import ops

from keras_scalify.backend import arrays
from keras_scalify.optimizers.random_bits import high_bits, mix
from keras_scalify.optimizers.scaled_state import ScaledState
from keras_scalify.optimizers.storages import ratio_storage
from keras_scalify.optimizers.variable_step import update_variable

ROOTS = "holds_roots"
_LEAST = 2.0**-126  # the smallest normal float32


class AdamUpdate(ScaledState):
    """Mixin before keras.optimizers.Adam or a subclass. With g the gradient, in
    float32:

        m = m + (1 - beta_1) (g - m)
        v = r**2 + (1 - beta_2) (g**2 - r**2),  r = sqrt(v)
        variable = variable - lr sqrt(1 - beta_2**t) / (1 - beta_1**t) m / (r + epsilon)

    m and r (not v, which spans twice the exponents) are stored, rounded stochastically:
    one step moves v by about 1 - beta_2 of itself, less than half a unit in the last
    place, so rounding to nearest would lose the decay.
    """

    stock = keras.optimizers.Adam
    moments = {"momentum": "ratio", "velocity": "root"}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._storages["momentum"].is_relative:
            self._storages["momentum"] = ratio_storage(self.beta_1, self.beta_2)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        if not self.is_stock:
            # One variable more: Keras counts them, so neither loads the other's state,
            # which would take second moments for their roots.
            self.add_variable((), initializer="ones", dtype="uint8", name=ROOTS)

    def slot_names(self):
        hats = ["velocity_hat_root"] if self.amsgrad else []
        return ["momentum", "velocity_root", *hats]

    def scaled_step(self, gradient, variable, learning_rate):
        rate = self._rate(learning_rate)

        def formula(part):
            return self._direction(part) * rate

        update_variable(self, gradient, variable, formula)

    def _rate(self, learning_rate):
        """`lr sqrt(1 - beta_2**t) / (1 - beta_1**t)`, float32."""
        t = ops.cast(self.iterations + 1, "float32")
        first, second = (arrays.power(beta, t) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32")
        return rate * arrays.sqrt(1.0 - second) / (1.0 - first)

    def bound(self, name, old, amax, new):
        """What no |moment| exceeds.

        Args:
            name: of the moment.
            old: its bound before the step.
            amax: of the gradient.
            new: bounds of the moments before this one.
        """
        bounds = {
            "momentum": lambda b, _: b * old + (1.0 - b) * amax,
            "velocity_root": lambda _, b: arrays.sqrt(
                b * old * old + (1.0 - b) * amax * amax
            ),
            "velocity_hat_root": lambda *_: arrays.maximum(old, new["velocity_root"]),
        }
        return bounds[name](self.beta_1, self.beta_2)

    def _direction(self, part):
        """m / (r + epsilon), the moments updated."""
        g = part.g
        old_root = part.read("velocity_root")
        v = arrays.square(old_root)
        r = arrays.sqrt(v + (arrays.square(g) - v) * (1.0 - self.beta_2))
        m = part.read("momentum")
        if part.is_relative("momentum"):
            m = m * old_root
        m = m + (g - m) * (1.0 - self.beta_1)
        others = high_bits(part.bits)
        part.write("velocity_root", r, others, keep_positive=True)
        if part.is_relative("momentum"):
            stored = part.read("velocity_root")
            part.write("momentum", m / arrays.maximum(stored, _LEAST), part.bits)
        else:
            part.write("momentum", m, part.bits)
        if self.amsgrad:
            r = arrays.maximum(part.read("velocity_hat_root"), r)
            part.write("velocity_hat_root", r, mix(others), keep_positive=True)
        denominator = r + self.epsilon
        if self.epsilon < _LEAST:
            # A coordinate without any gradient yet must not become 0 / 0.
            denominator = arrays.where(denominator == 0, 1.0, denominator)
        return m / denominator
