"""What the scaled attention layers share."""

from typing import Any

from keras import ops
from keras.layers import EinsumDense

from keras_scalify import backend
from keras_scalify.layers import scaled_einsum_dense as projections
from keras_scalify.layers.scaled_layer import ScaledLayer, as_output, value_shapes
from keras_scalify.ops.arithmetic import multiply
from keras_scalify.ops.attention import attention_square, effective_size, weights_square
from keras_scalify.ops.entry import scale, unscale
from keras_scalify.ops.linear import einsum
from keras_scalify.ops.narrow_weight import parse_weight_dtype
from keras_scalify.ops.propagation import times
from keras_scalify.recipes import Recipe, get_recipe, recipe_config
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled

GIVEN = "recipe", "weight_dtype", "monitor"  # to the projections
# Where Keras's layers keep their projections.
PROJECTIONS = tuple(f"_{n}_dense" for n in ("query", "key", "value", "gate", "output"))


class QuantizedAttention(ScaledLayer):
    """Mixin before a Keras attention layer: projections in a recipe's formats.

    Scores and values stay in the compute dtype, where there is fused attention, unless
    `scaled_attention=True`.
    """

    compute_dtype: Any

    def __init__(
        self,
        *args,
        recipe: Any = "float8",
        scaled_attention: bool = False,
        weight_dtype: str | None = None,
        monitor: bool = False,
        **kwargs,
    ):
        recipe, weight_dtype = get_recipe(recipe), parse_weight_dtype(weight_dtype)
        super().__init__(*args, **kwargs)
        self.recipe: Recipe = recipe
        self.scaled_attention = scaled_attention
        self.weight_dtype = weight_dtype
        self.monitor = monitor

    def build(self, query_shape, value_shape, key_shape=None):
        shapes = (value_shapes(s) for s in (query_shape, value_shape, key_shape))
        super(ScaledLayer, self).build(*shapes)

    def add_state(self):  # of a layer that Keras has built
        for projection in (getattr(self, name, None) for name in PROJECTIONS):
            if type(projection) is EinsumDense:
                projections.adopt_projection(projection, **self._given())

    def _given(self):
        return {name: getattr(self, name) for name in GIVEN}

    def __setattr__(self, name, value):
        # Keras makes a projection, keeps it and builds it: here it becomes ours.
        if name in PROJECTIONS and type(value) is EinsumDense:
            value = projections.scaled_projection(value, **self._given())
        super().__setattr__(name, value)

    def compute_output_spec(self, query, value, key=None, **kwargs):
        scaled = self.takes_scaled(query, value, key)
        values = (t[0] if is_scaled(t) else t for t in (query, value, key))
        output = super(ScaledLayer, self).compute_output_spec(*values, **kwargs)
        if not scaled:
            return output
        if isinstance(output, tuple):
            return as_output(output[0]), output[1]
        return as_output(output)

    # Keras reads this signature to decide which masks to pass, and whether to train.
    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        masks = {
            "query_mask": _first(query_mask),
            "value_mask": _first(value_mask),
            "key_mask": _first(key_mask),
            "attention_mask": attention_mask,
            "use_causal_mask": use_causal_mask,
        }
        how = {"return_attention_scores": return_attention_scores, "training": training}
        scaled = self.takes_scaled(query, value, key)
        narrow = backend.attention_dtype(self.compute_dtype) == self.compute_dtype
        if not scaled and not self.scaled_attention and narrow:
            return super().call(query, value, key, **masks, **how)
        key = value if key is None else key
        inputs = (self.cast_inputs(t) for t in (query, value, key))
        output, weights = self._attended(*inputs, masks, *how.values())
        return (output, weights) if return_attention_scores else output

    def _attended(self, query, value, key, masks, needs_weights, training):
        """Projections, attention and the projection of its output."""
        mask, causal = self._mask(query, value, **masks)
        gate_dense = getattr(self, "_gate_dense", None)
        gate = None if gate_dense is None else gate_dense(query)
        scaled = is_scaled(query)
        query, key, value = self._projected(query, key, value)
        if not scaled:  # measured here, and not needed by Keras's attention
            query, key, value = (scale(t) for t in (query, key, value))
        attend = self._quantized if self.scaled_attention else self._fused
        how = mask, causal, training, needs_weights
        output, weights = attend(query, key, value, *how)
        output = output if scaled else unscale(output)
        if gate is not None:
            output = multiply(output, gate)
        return self._output_dense(output), weights

    def _fused(self, query, key, value, mask, causal, training, needs_weights):
        """Keras's attention for the value, the rule for the mean square."""
        kwargs = self.attention_arguments(needs_weights)
        dtype = backend.attention_dtype(self.compute_dtype)
        output, weights = self._compute_attention(
            *(ops.cast(t.value, dtype) for t in (query, key, value)),
            attention_mask=mask,
            training=training,
            use_causal_mask=causal and mask is None,
            **kwargs,
        )
        size = effective_size(ops.shape(key.value)[1], causal)
        squares = (t.mean_square for t in (query, key, value))
        square = times(attention_square(*squares, size), self._dropped(training))
        return ScaledTensor(ops.cast(output, self.compute_dtype), square), weights

    def _quantized(self, query, key, value, mask, causal, training, needs_weights):
        """Scores and values in the recipe's formats, softmax in the compute dtype."""
        query = multiply(query, self.inverse_root())
        operands = self.score_operands(query, key)
        scores = einsum(self._dot_product_equation, *operands, self.recipe)
        size = effective_size(ops.shape(key.value)[1], causal)
        if causal and mask is None:
            mask = self._compute_causal_mask(query.value, value.value)
        weights = self._masked_softmax(scores.value, mask)
        dropped = self._dropout_layer(weights, training=training)
        square = weights_square(scores.mean_square, size)
        square = times(square, self._dropped(training))
        p = ScaledTensor(dropped, square)
        output = einsum(self._combine_equation, p, value, self.recipe)
        return output, weights

    def _dropped(self, training) -> float:
        """What dropout multiplies the mean square of the attention weights by."""
        return 1.0 / (1.0 - self._dropout_layer.rate) if training is True else 1.0

    def _mask(self, query, value, use_causal_mask, **masks):
        """The mask of all masks (None: at most the causal one), and if causal."""
        query, value = (t.value if is_scaled(t) else t for t in (query, value))
        if all(m is None for m in masks.values()) and self.window() is None:
            return None, use_causal_mask
        mask = self._compute_attention_mask(
            query, value, **masks, use_causal_mask=use_causal_mask
        )
        return mask, use_causal_mask

    def _projected(self, query, key, value):
        dense = self._query_dense, self._key_dense, self._value_dense
        return tuple(d(t) for d, t in zip(dense, (query, key, value), strict=True))

    def score_operands(self, query, key):
        """Query and key in the order of the layer's equation of the scores."""
        raise NotImplementedError

    def inverse_root(self) -> float:
        """1 / sqrt(size of a head)."""
        raise NotImplementedError

    def window(self):
        """The sliding window, or None."""
        raise NotImplementedError

    def attention_arguments(self, needs_weights: bool) -> dict:
        """What `_compute_attention` takes of whether its weights are returned."""
        raise NotImplementedError

    def get_config(self):
        own = {n: getattr(self, n) for n in ("scaled_attention", *GIVEN)}
        own["recipe"] = recipe_config(self.recipe)
        return {**super().get_config(), **own}


def _first(mask):
    """The mask of a ScaledTensor's value."""
    return mask[0] if isinstance(mask, (tuple, list)) else mask
