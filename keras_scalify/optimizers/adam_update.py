"""Adam's update on moments in any storage."""

import keras
from keras import ops

from keras_scalify.optimizers.random_bits import high_half, mix
from keras_scalify.optimizers.scaled_state import ScaledState
from keras_scalify.optimizers.storages import ratio_storage


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

    def slot_names(self):
        hats = ["velocity_hat_root"] if self.amsgrad else []
        return ["momentum", "velocity_root", *hats]

    def scaled_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        g = self.widen(gradient, variable)
        bits = self.random_bits(variable, index)
        r, roots = self._update_root(index, g, high_half(bits))
        m = self._update_momentum(index, g, roots, bits)
        denominator = r + self.epsilon
        # A coordinate without any gradient yet must not become 0 / 0 with epsilon = 0.
        step = m / ops.where(denominator == 0, 1.0, denominator)
        self.move(variable, step * self._rate(learning_rate), bits)

    def _rate(self, learning_rate):
        """`lr sqrt(1 - beta_2**t) / (1 - beta_1**t)`, float32."""
        t = ops.cast(self.iterations + 1, "float32")
        first, second = (
            ops.power(ops.cast(beta, "float32"), t)
            for beta in (self.beta_1, self.beta_2)
        )
        rate = ops.cast(learning_rate, "float32")
        return rate * ops.sqrt(1.0 - second) / (1.0 - first)

    def _update_root(self, index, g, bits):
        """The new root (amsgrad: of the largest v), and the stored ones: old, new."""
        beta, slot = self.beta_2, self._slots["velocity_root"][index]
        storage = self.storage("velocity", g.shape)
        amax = storage.amax(g)
        old_root = storage.read(slot)
        v = ops.square(old_root)
        r = ops.sqrt(v + (ops.square(g) - v) * (1.0 - beta))

        def bound(old):
            return ops.sqrt(beta * old * old + (1.0 - beta) * amax * amax)

        stored = storage.write(self, slot, r, bound, bits, keep_positive=True)
        if not self.amsgrad:
            return r, (old_root, stored)
        hat = self._slots["velocity_hat_root"][index]
        r = ops.maximum(storage.read(hat), r)

        def hat_bound(old):
            return ops.maximum(old, slot.amax.value)

        storage.write(self, hat, r, hat_bound, mix(bits), keep_positive=True)
        return r, (old_root, stored)

    def _update_momentum(self, index, g, roots, bits):
        """The new first moment, also stored: itself or its ratio to the root."""
        beta, slot = self.beta_1, self._slots["momentum"][index]
        storage = self.storage("momentum", g.shape)
        amax, m = storage.amax(g), storage.read(slot)
        if storage.is_relative:
            m = m * roots[0]
        m = m + (g - m) * (1.0 - beta)

        def bound(old):
            return beta * old + (1.0 - beta) * amax

        kept = m / ops.where(roots[1] == 0, 1.0, roots[1]) if storage.is_relative else m
        storage.write(self, slot, kept, bound, bits)
        return m
