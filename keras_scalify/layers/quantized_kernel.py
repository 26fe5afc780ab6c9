"""What every scaled layer with a kernel shares."""

from typing import Any

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify.layers.scale_state import ScaleState
from keras_scalify.ops.quantized_einsum import quantized_einsum
from keras_scalify.recipes import ROLES, get_recipe, recipe_config


class QuantizedKernel:
    """Mixin before a Keras layer: the recipe, the scales, and the quantized product.

    With an identity recipe ("float32") it changes nothing: the layer is Keras's own, bit for bit.

    Attributes:
        recipe: the Recipe.
        scales: the ScaleState, or None with an identity recipe.
        input_scale, kernel_scale, gradient_scale: float32 scalar variables, powers of two, changed
            by training steps only: what the last one used (current), what the next will use
            (delayed), what every step uses (static). None with an identity recipe; the gradient's
            also where it is measured inside the step (current): it never leaves the backward pass.
    """

    def __init__(self, *args, recipe: Any = "float8", **kwargs):
        recipe = get_recipe(recipe)
        if not recipe.is_identity:
            # The layer casts what it needs: the kernel is quantized from its widest copy.
            kwargs.setdefault("autocast", False)
        super().__init__(*args, **kwargs)
        mode = self.dtype_policy.quantization_mode
        if mode is not None:
            raise ValueError(
                f"`dtype` of {type(self).__name__} must be a policy without quantization, such as "
                f"'float32' or 'mixed_bfloat16': the formats come from `recipe`. "
                f"Received: dtype={self.dtype_policy.name!r}"
            )
        self.recipe = recipe
        self.scales = None

    def add_weight(self, *args, **kwargs):
        if not self.recipe.is_identity:
            kwargs.setdefault("autocast", False)
        return super().add_weight(*args, **kwargs)

    def build(self, input_shape):
        if self.recipe.is_identity:
            super().build(input_shape)
            return
        # LoRA locks the layer, so it comes after the scales.
        rank, self.lora_rank = self.lora_rank, None
        super().build(input_shape)
        self.scales = ScaleState(self.recipe, name="scales")
        self.scales.build()
        self.lora_rank = rank
        if rank:
            self.enable_lora(rank, lora_alpha=self.lora_alpha)

    def quantized_product(self, equation: str, x, training):
        """The product of x and the kernel in the recipe's formats, and what a LoRA adds."""
        # Every scale is read before any is assigned: Torch assigns in place.
        kernel = ops.convert_to_tensor(self._kernel.value)
        x_scale, x_updates = self.scales.operand_scale("input", x)
        w_scale, w_updates = self.scales.operand_scale("kernel", kernel)
        g_scale, g_amax, g_updates = self.scales.gradient_operand()
        y = quantized_einsum(
            equation, x, kernel, x_scale, w_scale, g_scale, g_amax, self.recipe
        )
        if training is True:
            self.scales.record((*x_updates, *w_updates, *g_updates))
        return y

    def get_config(self):
        return {**super().get_config(), "recipe": recipe_config(self.recipe)}


def _scale_property(role: str):
    def scale(self):
        return None if self.scales is None else getattr(self.scales, f"{role}_scale")

    return property(scale, doc=f"The {role}'s scale. See the class.")


for _role in ROLES:
    setattr(QuantizedKernel, f"{_role}_scale", _scale_property(_role))


def cast_inputs(inputs, dtype: str):
    """Inputs of any dtype as a dense tensor of the compute dtype."""
    inputs = ops.convert_to_tensor(inputs, sparse=False)
    same = standardize_dtype(inputs.dtype) == dtype
    return inputs if same else ops.cast(inputs, dtype)
