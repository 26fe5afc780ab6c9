"""ScaledEmbedding."""

from typing import Any

import keras
from keras import ops

from keras_scalify.equations import parse
from keras_scalify.layers.quantized_kernel import QuantizedKernel
from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_layer import as_output
from keras_scalify.ops.normalization import parameter_square
from keras_scalify.ops.products import EinsumProduct
from keras_scalify.scaled_tensor import ScaledTensor, is_scaled


@replaces_keras_layer
class ScaledEmbedding(QuantizedKernel, keras.layers.Embedding):
    """`table[ids]`; with `reverse=True`, `q(x) @ q(table).T`: a tied output projection.

    A keras.layers.Embedding. Indices have no scale, so an argument says what comes out.

    Args:
        *args, **kwargs: those of keras.layers.Embedding.
        recipe: of the product with `reverse=True`. Default "float8".
        weight_dtype: what the table rests in. See ScaledDense. Default None.
        scaled: whether looking up returns a ScaledTensor, with the mean square of the
            table, which is measured. Default False.

    Call: `layer(ids)`, int tensor (...) to (..., output_dim);
        `layer(x, reverse=True)`, (..., output_dim), plain or scaled, to (...,
        input_dim).

    Raises:
        ValueError: an unknown recipe; what Embedding raises.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledEmbedding(100, 8, scaled=True)
    >>> x = layer(np.array([[1, 2, 3]]))
    >>> tuple(layer(x, reverse=True).shape)
    (1, 3, 100)
    """

    activation = None
    bias = None

    def __init__(self, *args, recipe: Any = "float8", scaled: bool = False, **kwargs):
        weights = kwargs.pop("weights", None)
        super().__init__(*args, recipe=recipe, **kwargs)
        self.scaled, self.is_reversed = scaled, False
        if weights is not None:  # the table alone: Keras's would want the scales too
            self.build()
            single = isinstance(weights, list) and len(weights) == 1
            self.assign_kernel(weights[0] if single else weights)

    @property
    def stock_class(self):
        """Keras's ReversibleEmbedding, if this layer was called with reverse=True."""
        layers = keras.layers
        return layers.ReversibleEmbedding if self.is_reversed else layers.Embedding

    def _note_reverse(self):
        if not self.is_reversed:  # Keras takes time to set an attribute
            self.is_reversed = True

    def add_state(self):
        # What was converted may be a ReversibleEmbedding, which has this attribute.
        self.is_reversed = self.is_reversed or hasattr(self, "tie_weights")
        super().add_state()

    @property
    def kernel_variable(self):
        return self._embeddings

    @property
    def kernel(self):
        """The table, with what LoRA adds."""
        return self.embeddings

    @property
    def embeddings(self):
        """The table, with what LoRA adds."""
        is_narrow = self.weight_scales is not None
        return self.adapted_kernel() if is_narrow else super().embeddings

    def call(self, inputs, reverse=False, training=None):
        if reverse:
            self._note_reverse()
            return super().call(inputs, training=training)
        value = keras.layers.Embedding.call(self, inputs)
        if not self.scaled:
            return value
        return ScaledTensor(value, parameter_square(self.embeddings))

    def stock_call(self, x):
        return ops.matmul(x, ops.cast(ops.transpose(self.embeddings), x.dtype))

    def product(self, x):
        leading = "ABCDEFGH"[: len(x.shape) - 1]
        return EinsumProduct(parse(f"{leading}k,nk->{leading}n"))

    def adapt(self, x, a, b):
        return ops.matmul(ops.matmul(x, ops.transpose(b)), ops.transpose(a))

    def _adapters(self):
        return self.lora_embeddings_a, self.lora_embeddings_b

    def compute_mask(self, inputs, mask=None):
        return keras.layers.Embedding.compute_mask(self, inputs, mask)

    def compute_output_spec(self, inputs, reverse=False, training=None):
        if not reverse:
            spec = keras.layers.Embedding.compute_output_spec(self, inputs)
            return as_output(spec) if self.scaled else spec
        self._note_reverse()
        value = inputs[0] if is_scaled(inputs) else inputs
        shape = (*value.shape[:-1], self.input_dim)
        spec = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return as_output(spec) if is_scaled(inputs) else spec

    def get_config(self):
        return {**super().get_config(), "scaled": self.scaled}
