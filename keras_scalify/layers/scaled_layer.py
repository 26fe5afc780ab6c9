"""What every layer that takes ScaledTensors shares: type in, type out."""

from typing import Any

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_scalify.layers.registration import keras_class
from keras_scalify.ops.propagation import all_scaled
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


class ScaledLayer:
    """Mixin before a Keras layer: what Keras asks about inputs is answered for the
    values.

    The layer is given plain tensors, or ScaledTensors (or plain pairs, after a reload),
    or lists of either; Keras's shape inference, checks and building see the values
    alone.
    """

    compute_dtype: Any
    dtype_policy: Any

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._refuse_quantization()
        # Keras would cast every float tensor it finds, the mean squares too: each layer
        # casts the values it computes with.
        self._convert_input_args = False

    def __call__(self, *args, **kwargs):
        args = tuple([_as_tensors(x) for x in args])
        kwargs = {name: _as_tensors(x) for name, x in kwargs.items()}
        return super().__call__(*args, **kwargs)

    def _assert_input_compatibility(self, first):
        # Keras would count a ScaledTensor as two inputs.
        super()._assert_input_compatibility(_values(first))

    def _refuse_quantization(self):
        if self.quantization_mode is not None:
            raise ValueError(
                f"`dtype` of {type(self).__qualname__} must be a policy without "
                "quantization, such as 'float32' or 'mixed_bfloat16': the formats come "
                f"from `recipe`. Received: dtype={self.dtype_policy.name!r}"
            )

    def build(self, input_shape):
        # Again: a map of policies goes by the path, known from here on.
        self._refuse_quantization()
        super().build(value_shapes(input_shape))

    def compute_output_spec(self, inputs, *args, **kwargs):
        spec = super().compute_output_spec
        output = spec(_values(inputs), *args, **kwargs)
        return as_output(output) if self.takes_scaled(inputs) else output

    def compute_mask(self, inputs, previous_mask):
        masks = value_masks(inputs, previous_mask)
        return super().compute_mask(_values(inputs), masks)

    # As far as `supports_masking` goes, which Keras derives from it, no compute_mask of
    # its own (3.15).
    compute_mask._is_default = True

    @property
    def stock_class(self):
        """The class of Keras that computes the same without scales."""
        return keras_class(type(self))

    def add_state(self):
        """Create what a built layer of Keras lacks. Most layers lack nothing."""

    def takes_scaled(self, *inputs) -> bool:
        """Whether the inputs are scaled (or plain).

        Raises:
            ValueError: some are scaled and some are not; says which.
        """
        named = {f"inputs[{i}]": x for i, x in enumerate(inputs)}
        return all_scaled(type(self).__qualname__, named)

    def cast_inputs(self, inputs, floats_only=False):
        """A tensor in the compute dtype; of a ScaledTensor the value."""
        if is_scaled(inputs):
            return ScaledTensor(self.cast_inputs(inputs[0], floats_only), inputs[1])
        if not hasattr(inputs, "dtype"):
            raise ValueError(
                f"{type(self).__qualname__} takes a tensor or a ScaledTensor. "
                f"Received: {type(inputs).__name__}"
            )
        dtype = standardize_dtype(inputs.dtype)
        if dtype == self.compute_dtype or (floats_only and "float" not in dtype):
            return inputs
        return ops.cast(inputs, self.compute_dtype)


def _as_tensors(x):
    """The arrays in a structure as tensors. Keras takes 10 us to walk one."""
    if x is None or isinstance(x, bool) or ops.is_tensor(x):
        return x
    if isinstance(x, ScaledTensor):
        return ScaledTensor(*map(_as_tensor, x))
    return keras.tree.map_structure(_as_tensor, x)


def _as_tensor(x):
    return x if ops.is_tensor(x) or not hasattr(x, "__array__") else _converted(x)


def _converted(x):
    return x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)


def _values(inputs):
    """The inputs with every ScaledTensor replaced by its value."""
    if is_scaled(inputs):
        return inputs[0]
    several = isinstance(inputs, (list, tuple))
    return [_values(x) for x in inputs] if several else inputs


def value_masks(inputs, masks):
    """The masks of the values, from masks in the structure of the inputs."""
    if not isinstance(masks, (list, tuple)):
        return masks
    if is_scaled(inputs):
        return masks[0]
    return [value_masks(x, m) for x, m in zip(inputs, masks, strict=True)]


def value_shapes(shape):
    """The shape, or shapes, of the values behind the shapes that Keras gives."""
    if not isinstance(shape, (list, tuple)) or not shape:
        return shape
    nested = [isinstance(s, (list, tuple)) for s in shape]
    if len(shape) == 2 and all(nested) and len(shape[1]) == 0 and len(shape[0]) > 0:
        return tuple(shape[0])
    return [value_shapes(s) for s in shape] if all(nested) else tuple(shape)


def as_output(spec) -> ScaledTensor:
    """The symbolic ScaledTensor whose value has this spec."""
    return ScaledTensor(spec, keras.KerasTensor((), dtype="float32"))


def dense_inputs(inputs):
    """Inputs that may be sparse as dense ones."""
    sparse = getattr(inputs, "sparse", False) or not hasattr(inputs, "shape")
    return ops.convert_to_tensor(inputs, sparse=False) if sparse else inputs


def same_rank(inputs):
    """ScaledTensors of the highest rank among them, as Keras's merging layers do it:
    with new axes behind the batch."""
    rank = max(len(x.shape) for x in inputs)
    axes = [tuple(range(1, 1 + rank - len(x.shape))) for x in inputs]
    return [
        ScaledTensor(ops.expand_dims(x.value, a), x.mean_square) if a else x
        for x, a in zip(inputs, axes, strict=True)
    ]
