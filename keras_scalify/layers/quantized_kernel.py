"""What every scaled layer with a kernel shares."""

from typing import Any

from keras import ops

from keras_scalify import backend
from keras_scalify.layers.scale_state import ScaleState
from keras_scalify.layers.scaled_layer import dense_inputs, value_shapes
from keras_scalify.layers.stored_kernel import StoredKernel
from keras_scalify.layers.watched_kernel import WatchedKernel
from keras_scalify.ops.activate import activate, activate_sum
from keras_scalify.ops.arithmetic import add
from keras_scalify.ops.linear import product_square
from keras_scalify.ops.normalization import parameter_square
from keras_scalify.ops.quantized_product import (
    propagated_product,
    quantized_product,
)
from keras_scalify.recipes import ROLES, Recipe, get_recipe, recipe_config
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled
from keras_scalify.scaling import mean_square_to_scale


class QuantizedKernel(WatchedKernel, StoredKernel):
    """Mixin before a Keras layer: the recipe, the scales, and the quantized product.

    Given a plain tensor, the layer takes its scales from the recipe and returns a plain
    tensor. Given a ScaledTensor, it takes them from the mean squares that came along,
    both ways, measures the kernel alone and returns a ScaledTensor.

    With an identity recipe ("float32") the values are Keras's layer's, bit for bit.

    Attributes:
        recipe: the Recipe.
        scales: the ScaleState, or None with an identity recipe.
        input_scale, kernel_scale, gradient_scale: float32 scalar variables, powers of
            two, changed by training steps only: what the last one used (current), what
            the next will use (delayed), what every step uses (static). None with an
            identity recipe; the gradient's also where it is measured inside the step
            (current): it never leaves the backward pass.
    """

    activation: Any
    bias: Any

    def __init__(self, *args, recipe: Any = "float8", **kwargs):
        # Keras's embedding builds itself in its constructor if it is given weights.
        self.recipe: Recipe = get_recipe(recipe)
        self.scales: ScaleState | None = None
        super().__init__(*args, **kwargs)

    def add_weight(self, *args, **kwargs):
        # The kernel is quantized from its widest copy.
        if not self.recipe.is_identity:
            kwargs.setdefault("autocast", False)
        return super().add_weight(*args, **kwargs)

    def build(self, input_shape=None):
        input_shape = value_shapes(input_shape)
        if self.recipe.is_identity:
            super().build(input_shape)
            return
        # LoRA locks the layer, so it comes after the scales.
        rank, self.lora_rank = getattr(self, "lora_rank", None), None
        super().build(input_shape)
        self.add_state()
        self.lora_rank = rank
        if rank:
            self.enable_lora(rank, lora_alpha=self.lora_alpha)

    def add_state(self):
        """Create the state of the scales, if the recipe has any."""
        if self.recipe.is_identity:
            return
        self.scales = ScaleState(self.recipe, name="scales")
        self.scales.trainable = self.trainable
        self.scales.build()
        self.add_statistics()

    def call(self, inputs, training=None):
        scaled = is_scaled(inputs)
        if self.recipe.is_identity:
            x = self.cast_inputs(inputs, floats_only=True)
            return self._exact(x) if scaled else self.stock_call(x)
        x = self.cast_inputs(inputs if scaled else dense_inputs(inputs))
        y = self._propagated(x, training) if scaled else self._measured(x, training)
        if getattr(self, "lora_enabled", False):
            y = add(y, self._adapted(x))
        return self._finished(y)

    def _measured(self, x, training):
        """The product of plain tensors, with scales from the recipe."""
        # Every scale is read before any is assigned: Torch assigns in place.
        kernel = self.wide_kernel()
        x_scale, x_updates = self.scales.operand_scale("input", x)
        w_scale, w_updates = self.scales.operand_scale("kernel", kernel)
        g_scale, g_amax, g_updates = self.scales.gradient_operand()
        scales = x_scale, w_scale
        y = quantized_product(
            self.product(x), x, kernel, scales, g_scale, g_amax, self.recipe
        )
        if training is True:
            self.scales.record((*x_updates, *w_updates, *g_updates))
        operands = (x, x_scale), (kernel, w_scale)
        return self.watch(y, operands, training, g_scale)

    def _propagated(self, x: ScaledTensor, training) -> ScaledTensor:
        """The product of a ScaledTensor, with scales from the mean squares."""
        kernel = self.wide_kernel()
        w = ScaledTensor(kernel, parameter_square(kernel))
        if training is True:
            self.scales.record(
                (getattr(self.scales, f"{role}_scale"), self._scale_of(role, t))
                for role, t in (("input", x), ("kernel", w))
                if self.recipe.scaling(role) == "current"
            )
        y = propagated_product(self.product(x.value), x, w, self.recipe)
        y = self.watch(y, (x, w), training)
        return ScaledTensor(y.value, self.scales.without_amax(y.mean_square))

    def _scale_of(self, role, tensor: ScaledTensor):
        square = ops.stop_gradient(tensor.mean_square)
        return backend.scalar(mean_square_to_scale, square, self.recipe.format(role))

    def _exact(self, x: ScaledTensor) -> ScaledTensor:
        """Keras's own layer for the value, the rules for the mean square."""
        value = self.stock_call(x.value)
        kernel = ops.convert_to_tensor(self.kernel)
        fans = self.product(x.value).fans(x.value, kernel)
        square = product_square(fans, x.mean_square, parameter_square(kernel))
        if self.bias is not None:
            square = square + parameter_square(self.bias)
        # The rule is of the activation's argument: its value is not needed.
        square = activate(self.activation, ScaledTensor(value, square)).mean_square
        return ScaledTensor(value, square)

    def _finished(self, y):
        """Bias and activation, in the compute dtype."""
        bias = None
        if self.bias is not None:
            bias = self.broadcast_bias(ops.cast(self.bias, self.compute_dtype))
            if is_scaled(y):
                square = y.mean_square + parameter_square(self.bias)
                y = ScaledTensor(y.value, square)
        return activate_sum(self.activation, y, bias)

    def _adapted(self, x):
        """What LoRA adds, in the compute dtype: its kernel is `alpha / rank A B`."""
        a, b = (ops.cast(v, self.compute_dtype) for v in self._adapters())
        ratio = self.lora_alpha / self.lora_rank
        if not is_scaled(x):
            return self.adapt(x, a, b) * ratio
        kernel = ops.matmul(a, b) * ratio
        fans = self.product(x.value).fans(x.value, kernel)
        square = product_square(fans, x.mean_square, parameter_square(kernel))
        return ScaledTensor(self.adapt(x.value, a, b) * ratio, square)

    def stock_call(self, x):
        """What Keras's layer computes of a plain tensor."""
        return super().call(x)

    def _adapters(self):
        return self.lora_kernel_a, self.lora_kernel_b

    def product(self, x):
        """The layer's product of a tensor like x and a kernel."""
        raise NotImplementedError

    def adapt(self, x, a, b):
        """x times the kernel a b."""
        raise NotImplementedError

    def broadcast_bias(self, bias):
        """The bias in a shape that broadcasts with the output."""
        return bias

    def get_config(self):
        return {**super().get_config(), "recipe": recipe_config(self.recipe)}


def _scale_property(role: str):
    def scale(self):
        return None if self.scales is None else getattr(self.scales, f"{role}_scale")

    return property(scale, doc=f"The {role}'s scale. See the class.")


for _role in ROLES:
    setattr(QuantizedKernel, f"{_role}_scale", _scale_property(_role))
