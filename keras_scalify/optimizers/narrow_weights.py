"""Model variables that rest in 16 bits, and their updates."""

from typing import Any

from keras import ops
from keras.backend import standardize_dtype

from keras_scalify import backend
from keras_scalify.formats import FORMATS
from keras_scalify.ops.narrow_weight import (
    SCALE,
    UNIT,
    NarrowWeight,
    next_scale,
    next_unit,
    updating,
    used_unit,
)
from keras_scalify.optimizers.random_bits import mix
from keras_scalify.optimizers.stochastic_rounding import stochastic_round


class NarrowWeights:
    """Mixin before a Keras optimizer: updates of 16-bit variables lose nothing.

    Steps and weight decay are computed in float32 and rounded stochastically, averages
    and accumulated gradients rest in float32. Of a layer with `weight_dtype`, gradients
    are divided by their unit first, and the scale of the weight follows its data.
    """

    weight_decay: Any
    use_ema: bool
    ema_momentum: float
    built: Any
    _trainable_variables: list
    _model_variables_moving_average: list

    def add_variable_from_reference(
        self, reference_variable, name=None, initializer="zeros"
    ):
        if narrow_format(reference_variable) is None:
            return super().add_variable_from_reference(
                reference_variable, name, initializer
            )
        path = reference_variable.path.replace("/", "_")
        return self.add_variable(
            shape=reference_variable.shape,
            initializer=initializer,
            dtype="float32",
            layout=getattr(reference_variable, "_layout", None),
            name=f"{path}_{name or 'var'}",
        )

    def add_optimizer_variables(self, trainable_variables, name, initializer="zeros"):
        """Keras's; averages of all variables.

        Keras (3.15) has none of those that are overwritten with their gradient, and on
        JAX reads it all the same.
        """
        made = super().add_optimizer_variables(trainable_variables, name, initializer)
        if name != "average":
            return made
        return [
            self.add_variable_from_reference(v, name) if average is None else average
            for v, average in zip(trainable_variables, made, strict=True)
        ]

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        grads = self._in_units_of_weights(
            list(grads), trainable_variables or self._trainable_variables
        )
        with updating():
            super().apply(grads, trainable_variables)

    def _in_units_of_weights(self, grads, variables):
        """Gradients of the weights from those of their data; 0 for the scales."""
        pairs = list(zip(grads, variables, strict=False))
        found = {id(v): g for g, v in pairs if is_scales(v) and g is not None}
        wide = [_of_weight(g, v, found) for g, v in pairs]
        for g, v in pairs:
            if is_scales(v) and g is not None:
                scale, unit = (ops.convert_to_tensor(v.value)[i] for i in (SCALE, UNIT))
                v.assign(ops.stack([scale, next_unit(unit, g)]))
        return wide + list(grads[len(pairs) :])

    def _apply_weight_decay(self, variables):
        # That of narrow variables is part of their step.
        wide = [v for v in variables if not (narrow_format(v) or is_scales(v))]
        if wide:
            super()._apply_weight_decay(wide)

    def _update_model_variables_moving_average(self, trainable_variables):
        """Keras's, in float32 (a momentum of 0.999 is 1 in bfloat16)."""
        momentum = ops.where(self.iterations == 0, 0.0, self.ema_momentum)
        averages = self._model_variables_moving_average
        for variable, average in zip(trainable_variables, averages, strict=True):
            value = ops.cast(ops.convert_to_tensor(variable), average.dtype)
            if not is_overwritten(variable):
                value = momentum * average + (1.0 - momentum) * value
            average.assign(value)

    def _overwrite_model_variables_with_average_value(self, trainable_variables):
        """Keras's, with the cast that TensorFlow does not make."""
        averages = self._model_variables_moving_average
        # As a list: nothing is assigned if the numbers differ.
        pairs = list(zip(trainable_variables, averages, strict=True))
        for variable, average in pairs:
            variable.assign(ops.cast(average.value, variable.dtype))

    def move(self, variable, step, bits) -> None:
        """Subtract the step; round stochastically where the variable is narrow."""
        known = self._trainable_variables[self._get_variable_index(variable)]
        row = narrow_format(known)
        if row is None:
            self.assign_sub(variable, ops.cast(step, standardize_dtype(variable.dtype)))
            return
        data = ops.cast(ops.convert_to_tensor(variable), "float32")
        scale = _scale_of(known)
        kept = data * scale * self._decay(known) - step
        new_scale, updates = self._next_scale(known, scale, kept)
        # An overflow must stay visible.
        limit = ops.where(ops.isfinite(kept), row.max, float("inf"))
        kept = ops.clip(kept / new_scale, -limit, limit)
        rounded = stochastic_round(kept, row, mix(bits))
        self.assign(variable, ops.cast(rounded, row.name))
        if self.use_ema and updates:  # the average is of data
            index = self._get_variable_index(variable)
            average = self._model_variables_moving_average[index]
            self.assign(average, average * (scale / new_scale))
        # Last: on Torch `scale` is a view of the variable, assigned in place.
        for scales, value in updates:
            scales.assign(value)

    def _next_scale(self, variable, scale, weight):
        """The scale for a variable's new value, and what to assign."""
        guard = variable.constraint
        if not isinstance(guard, NarrowWeight):
            return scale, ()
        new_scale = next_scale(scale, backend.amax(weight) / scale)
        unit = ops.convert_to_tensor(guard.scales.value)[UNIT]
        return new_scale, ((guard.scales, ops.stack([new_scale, unit])),)

    def _decay(self, variable):
        """What weight decay multiplies the variable by."""
        if self.weight_decay is None or not self._use_weight_decay(variable):
            return 1.0
        return 1.0 - ops.cast(self.learning_rate, "float32") * self.weight_decay


def _scale_of(variable):
    guard = variable.constraint
    if not isinstance(guard, NarrowWeight):
        return 1.0
    return ops.convert_to_tensor(guard.scales.value)[SCALE]


def narrow_format(variable):
    """The format of a 16-bit variable, or None."""
    row = FORMATS.get(standardize_dtype(variable.dtype))
    return None if row is None or row.is_identity else row


def is_scales(variable) -> bool:
    """Whether the variable holds the scales of another one."""
    guard = getattr(variable, "constraint", None)
    return isinstance(guard, NarrowWeight) and not guard.is_data


def is_overwritten(variable) -> bool:
    """Whether a variable holds what its gradient brings: no update or average of it."""
    return getattr(variable, "overwrite_with_gradient", False) or is_scales(variable)


def _of_weight(gradient, variable, found):
    """The gradient of the weight from that of its data, and those of all scales."""
    guard = getattr(variable, "constraint", None)
    if gradient is None or not isinstance(guard, NarrowWeight):
        return gradient
    if not guard.is_data:
        return ops.zeros_like(gradient)
    if id(guard.scales) not in found:
        raise ValueError(
            f"The gradient of {variable.path} must come with that of "
            f"{guard.scales.path}, to the same optimizer (in a MultiOptimizer too)."
        )
    unit = ops.convert_to_tensor(guard.scales.value)[UNIT]
    unit = used_unit(unit, found[id(guard.scales)])
    return ops.cast(ops.convert_to_tensor(gradient), "float32") * (1.0 / unit)
