"""How a layer's kernel rests: as Keras has it, or in 16 bits with a scale."""

from typing import Any

import keras
from keras import ops

from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.ops.narrow_weight import (
    SCALE,
    UNIT,
    NarrowWeight,
    OfWide,
    narrow,
    parse_weight_dtype,
    scale_of,
    wide,
)

KERNELS = "kernel", "embeddings"  # the names that Keras gives to kernels
KEY = "weight_scales"  # in files, beside the layer's own variables


class WeightScales(keras.layers.Layer):
    """The scales of a narrow kernel and of its gradient. The parent saves them.

    Args:
        initial: the kernel's initializer.
        shape: the kernel's shape.
    """

    def __init__(self, initial=None, shape=(), **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self._initial, self._shape = initial, shape

    def build(self, input_shape=None):
        self.scales = self.add_weight(
            name="scales", shape=(2,), initializer=self._first, autocast=False
        )
        self.scales.constraint = NarrowWeight(self.scales, is_data=False)
        self.built = True

    def _first(self, shape, dtype=None):
        scale = scale_of(self._initial(self._shape, dtype="float32"))
        return ops.stack([scale, ops.zeros((), "float32")])  # no unit yet

    @property
    def weights(self):
        """None: see ScaleState."""
        return []

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


class StoredKernel(ScaledLayer):
    """Mixin before a Keras layer: its kernel rests in `weight_dtype`.

    Attributes:
        weight_dtype: "float16", "bfloat16", or None: as the dtype policy says.
        weight_scales: the WeightScales, or None.
    """

    def __init__(self, *args, weight_dtype: str | None = None, **kwargs):
        self.weight_dtype = parse_weight_dtype(weight_dtype)
        self.weight_scales: Any = None
        super().__init__(*args, **kwargs)

    def add_weight(self, *args, **kwargs):
        if self.weight_dtype is None or kwargs.get("name") not in KERNELS:
            return super().add_weight(*args, **kwargs)
        shape = kwargs["shape"]
        initial = keras.initializers.get(kwargs.pop("initializer", "glorot_uniform"))
        regularizer, constraint = (
            kwargs.pop(name, None) for name in ("regularizer", "constraint")
        )

        def data(shape, dtype=None):
            value = initial(shape, dtype="float32")
            return narrow(value, scale_of(value), self.weight_dtype)

        self.weight_scales = WeightScales(initial, shape, name="weight_scales")
        self.weight_scales.build()
        self.weight_scales.trainable = self.trainable
        kwargs |= {"dtype": self.weight_dtype, "autocast": False, "initializer": data}
        variable = super().add_weight(*args, **kwargs)
        variable.constraint = NarrowWeight(self._scales, constraint)
        if regularizer is not None:
            variable.regularizer = OfWide(self._scales, regularizer)
        return variable

    @property
    def weights(self):
        """Keras's, and the scales."""
        held = self.weight_scales, getattr(self, "scales", None)
        inner = [v for state in held if state is not None for v in state.variables]
        return [*super().weights, *inner]

    @property
    def _scales(self):
        return self.weight_scales.scales

    @property
    def kernel_variable(self):
        """The variable of the kernel, or of its data."""
        return self._kernel

    def wide_kernel(self):
        """The kernel as it rests, without what LoRA adds, in its widest form."""
        data = ops.convert_to_tensor(self.kernel_variable.value)
        if self.weight_scales is None:
            return data
        return wide(data, ops.convert_to_tensor(self._scales.value))

    @property
    def kernel(self):
        """The kernel, with what LoRA adds. Assign to it with `assign_kernel`."""
        return super().kernel if self.weight_scales is None else self.adapted_kernel()

    def adapted_kernel(self):
        """The kernel that rests narrow, with what LoRA adds."""
        kernel = self.wide_kernel()
        if getattr(self, "lora_enabled", False):
            ratio = self.lora_alpha / self.lora_rank
            kernel = kernel + ratio * ops.matmul(*self._adapters())
        is_exact = self.recipe.is_identity
        return ops.cast(kernel, self.compute_dtype) if is_exact else kernel

    def assign_kernel(self, value):
        """Set the kernel, also one that rests narrow.

        Args:
            value: float tensor or array of the kernel's shape.
        """
        if self.weight_scales is None:
            self.kernel_variable.assign(value)
            return
        data, scales = self._narrowed(ops.convert_to_tensor(value, dtype="float32"))
        self.kernel_variable.assign(data)
        self._scales.assign(scales)

    def _narrowed(self, value):
        """Data and scales of another kernel."""
        scale, unit = scale_of(value), ops.convert_to_tensor(self._scales.value)[UNIT]
        return narrow(value, scale, self.weight_dtype), ops.stack([scale, unit])

    def enable_lora(self, *args, **kwargs):
        super().enable_lora(*args, **kwargs)
        if self.weight_scales is not None:  # of a kernel that is frozen now
            self.weight_scales.trainable = False

    def save_own_variables(self, store):
        values: dict[str, Any] = {}
        super().save_own_variables(values)
        if self.weight_scales is not None:
            # One entry more: Keras's own layer counts them, so it refuses the file.
            values["0"], values[KEY] = self._saved_kernel()
        for name, value in values.items():
            store[name] = value

    def _saved_kernel(self):
        """Data and scales, with what LoRA adds, as Keras merges it."""
        if not getattr(self, "lora_enabled", False):
            return self.kernel_variable, self._scales
        return self._narrowed(ops.cast(self.adapted_kernel(), "float32"))

    def load_own_variables(self, store):
        """Load a kernel that was saved narrow as it is, any other one rounded."""
        names = set(store.keys())
        values = {name: store[name] for name in names - {KEY}}
        if self.weight_scales is None:
            if KEY in names:
                values["0"] = store["0"][()] * store[KEY][()][SCALE].astype("float32")
            super().load_own_variables(values)
            return
        super().load_own_variables(values)
        if KEY in names:
            self._scales.assign(store[KEY][()])
        else:
            self.assign_kernel(store["0"][()])

    def get_config(self):
        config = super().get_config()
        given = {} if self.weight_dtype is None else {"weight_dtype": self.weight_dtype}
        return {**config, **given}
