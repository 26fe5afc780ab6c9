"""The scales a layer carries from step to step."""

import keras
from keras import ops

from keras_scalify import backend
from keras_scalify.ops.propagation import propagate
from keras_scalify.recipes import ROLES, Recipe, get_recipe, recipe_config
from keras_scalify.scaling import amax_to_scale


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaleState(keras.layers.Layer):
    """The scales of a layer's three operands, by role.

    A layer of its own, so that its weights lie beside the parent's in a file and not
    among them: files of the plain and the scaled layer read each other.

    What it holds, each a float32 scalar unless said otherwise:

    | variable | when | what |
    |---|---|---|
    | {role}_scale | all, but a current gradient | used last (current), next (else) |
    | {role}_window | delayed | (window,): amax of the last training steps |
    | gradient_amax | delayed gradient | its "gradient" is amax(g): the way out |

    An empty window (all 0) measures the tensor at hand: so it is in the first step, and
    wherever a backend cannot carry state out of a loop.
    """

    def __init__(self, recipe, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.recipe: Recipe = get_recipe(recipe)
        for role in ROLES:
            setattr(self, f"{role}_scale", None)
            setattr(self, f"{role}_window", None)
        self.gradient_amax = None

    def build(self, input_shape=None):
        for role in ROLES:
            self._add_role(role, self.recipe.scaling(role))
        if self.gradient_window is not None:
            self.gradient_amax = self.add_weight(
                name="gradient_amax",
                shape=(),
                initializer="zeros",
                autocast=False,
                overwrite_with_gradient=True,
            )
        self.built = True

    def _add_role(self, role: str, scaling: str):
        # A current scale of the gradient is born and used inside the backward pass.
        if role != "gradient" or scaling != "current":
            setattr(self, f"{role}_scale", self._add(f"{role}_scale", (), "ones"))
        if scaling == "delayed":
            shape = (self.recipe.window,)
            setattr(self, f"{role}_window", self._add(f"{role}_window", shape, "zeros"))

    def _add(self, name, shape, initializer):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            trainable=False,
            autocast=False,
        )

    def operand_scale(self, role: str, tensor):
        """The scale to use now, and what to record if this is a training step.

        Returns:
            (scale, updates): a float32 scalar and a tuple of (variable, new value).
        """
        scaling, row = self.recipe.scaling(role), self.recipe.format(role)
        variable = getattr(self, f"{role}_scale")
        if not row.is_scaled:
            return ops.ones((), "float32"), ()
        if scaling == "static":
            return ops.convert_to_tensor(variable.value), ()
        amax = backend.amax(ops.stop_gradient(tensor))
        measured = backend.scalar(amax_to_scale, amax, row)
        if scaling == "current":
            return measured, ((variable, measured),)
        window = getattr(self, f"{role}_window")
        scale = self._from_window(role, window)
        return ops.where(scale > 0, scale, measured), self._roll(role, window, amax)

    def gradient_operand(self):
        """The gradient's scale (0: measure), the channel for its amax, the updates."""
        scaling = self.recipe.gradient_scaling
        if scaling == "current":
            return ops.zeros((), "float32"), None, ()
        if scaling == "static":
            return ops.convert_to_tensor(self.gradient_scale.value), None, ()
        latest = ops.stop_gradient(self.gradient_amax.value)
        window = ops.concatenate([self.gradient_window[1:], latest[None]])
        updates = self._roll("gradient", self.gradient_window, latest)
        scale = self._from_window("gradient", window)
        return scale, self.gradient_amax.value, updates

    def without_amax(self, mean_square):
        """The same, for a step whose gradient is not measured: its amax becomes 0."""
        if self.gradient_amax is None:
            return mean_square
        return propagate(
            lambda square, amax: square,
            lambda h, square, amax: (h, ops.zeros_like(amax)),
            mean_square,
            self.gradient_amax.value,
        )

    def _from_window(self, role, window):
        """The scale of the largest amax in a window; 0 if the window is empty."""
        amax = ops.max(window)
        row, margin = self.recipe.format(role), self.recipe.margin
        scale = backend.scalar(amax_to_scale, amax, row, margin)
        return ops.where(amax > 0, scale, 0.0)

    def _roll(self, role, window, amax):
        rolled = ops.concatenate([window[1:], amax[None]])
        scale = self._from_window(role, rolled)
        scale = ops.where(scale > 0, scale, 1.0)
        return ((window, rolled), (getattr(self, f"{role}_scale"), scale))

    @staticmethod
    def record(updates):
        """Assign every new value that may leave the program it was computed in."""
        for variable, value in updates:
            if backend.can_assign(variable, value):
                variable.assign(value)

    @property
    def weights(self):
        """None, the parent has them: KerasHub numbers the layers with weights in files
        of adapters, and plain and scaled models should read each other's."""
        return []

    def save_own_variables(self, store):
        for variable in self.variables:
            store[variable.name] = variable

    def load_own_variables(self, store):
        """Load what the file has; of a longer window its end."""
        saved = set(store.keys())
        for variable in self.variables:
            if variable.name not in saved:
                continue
            value = store[variable.name][()]
            if value.ndim:
                value = [0.0] * variable.shape[0] + list(value)
                value = value[-variable.shape[0] :]
            variable.assign(value)

    def get_config(self):
        return {**super().get_config(), "recipe": recipe_config(self.recipe)}
