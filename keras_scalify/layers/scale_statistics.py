"""The statistics a layer carries while it is watched."""

import itertools

import keras
from keras import ops

from keras_scalify import backend
from keras_scalify.ops.observation import (
    ROW_SIZE,
    merge,
    observe_gradient,
    row,
    suspects,
)
from keras_scalify.recipes import Recipe, get_recipe, recipe_config
from keras_scalify.scaled_tensor import ScaledTensor
from keras_scalify.scaling import mean_square_to_scale

OPERANDS = ("input", "kernel")

_calls = itertools.count()


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaleStatistics(keras.layers.Layer):
    """A layer's statistics since they were last read, by role. See ops/observation.py.

    Nothing of it is saved: it starts anew with every fit.

    | variable | shape | what |
    |---|---|---|
    | clock | (3,) | window, whether this step is due, calls since the reading |
    | operands | (2, ROW_SIZE) | the rows of input and kernel |
    | gradient | (ROW_SIZE,) | the gradient's row |

    Args:
        recipe: the layer's.
        with_gradient: whether there is a gradient variable. Where a backward pass
            cannot assign one, its row arrives as its gradient: the variable counts as
            trainable, and must exist before the optimizer is built.

    Attributes:
        order: of the layer's last call among those of all layers.
    """

    def __init__(self, recipe, with_gradient: bool = True, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.recipe: Recipe = get_recipe(recipe)
        self.with_gradient = with_gradient
        self.clock = self.operands = self.gradient = None
        self.order = 0

    def build(self, input_shape=None):
        self.clock = self._add("clock", (3,))
        self.operands = self._add("operands", (len(OPERANDS), ROW_SIZE))
        if self.with_gradient:
            channel = not backend.ASSIGNS_IN_BACKWARD
            self.gradient = self._add("gradient", (ROW_SIZE,), channel)
        self.built = True

    def _add(self, name, shape, channel=False):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer="zeros",
            trainable=channel,
            autocast=False,
            overwrite_with_gradient=channel,
        )

    def watch(
        self, y, operands, training, gradient_scale=None, equation=None, bias_rank=0
    ):
        """Record the operands of a product, and its gradient when it comes back.

        Args:
            y: the product, tensor or ScaledTensor.
            operands: input and kernel, each a tensor and its scale or a ScaledTensor.
            training: only with True anything is recorded.
            gradient_scale: float32 scalar; 0: measured. None for a ScaledTensor.
            equation: of the product; None if it is no einsum.
            bias_rank: axes of the bias that is added to y; 0: none is.

        Returns:
            y, to be used in its place.
        """
        if training is not True:
            return y
        self.order = next(_calls)
        clock = ops.convert_to_tensor(self.clock.value) * 1.0  # it is assigned below
        operands = tuple(operands)
        value = y.value if isinstance(y, ScaledTensor) else y
        bad = suspects(value, equation, [pair[0] for pair in operands])
        rows = [
            self._row(role, pair, clock, suspect)
            for role, pair, suspect in zip(OPERANDS, operands, bad, strict=True)
        ]
        self._assign(self.operands, merge(self.operands.value, ops.stack(rows)))
        self._assign(self.clock, clock + ops.array([0.0, 0.0, 1.0]))
        if self.gradient is None:
            return y
        return self._observed(y, clock, gradient_scale, bias_rank)

    def _row(self, role, pair, clock, suspect):
        (x, scale), format = pair, self.recipe.format(role)
        if isinstance(pair, ScaledTensor):
            scale = mean_square_to_scale(ops.stop_gradient(scale), format)
            return row(x, scale, format, clock, suspect)
        x = ops.stop_gradient(x)
        is_measured = self.recipe.scaling(role) != "static" and format.is_scaled
        amax = backend.amax(x) if is_measured else None
        return row(x, scale, format, clock, suspect, amax)

    def _observed(self, y, clock, scale, bias_rank):
        scale = ops.zeros((), "float32") if scale is None else scale
        write = self.gradient.assign if backend.ASSIGNS_IN_BACKWARD else None
        y, channel = observe_gradient(
            y,
            lambda: self.gradient.value,
            write,
            clock,
            scale,
            self.recipe.format("gradient"),
            bias_rank,
        )
        if channel is not None:  # another call in this step reads on from here
            self._assign(self.gradient, channel)
        return y

    @staticmethod
    def _assign(variable, value):
        if backend.can_assign(variable, value):
            variable.assign(value)

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass

    def get_config(self):
        config = {"recipe": recipe_config(self.recipe)}
        return {**super().get_config(), **config, "with_gradient": self.with_gradient}
