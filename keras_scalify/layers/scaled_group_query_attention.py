"""ScaledGroupQueryAttention."""

import keras

from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_attention import QuantizedAttention
from keras_scalify.ops.shapes import repeat


@replaces_keras_layer
class ScaledGroupQueryAttention(QuantizedAttention, keras.layers.GroupQueryAttention):
    """Grouped-query attention with its projections in a recipe's formats.

    A keras.layers.GroupQueryAttention. See ScaledMultiHeadAttention.

    Args:
        *args, **kwargs: those of keras.layers.GroupQueryAttention.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.
        scaled_attention: whether the products with keys and values use the recipe too.
            Default False.

    Raises:
        ValueError: an unknown recipe; query, key and value not all plain or all scaled.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledGroupQueryAttention(4, 4, 2)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> tuple(layer(x, x).shape)
    (1, 5, 8)
    """

    def _projected(self, query, key, value):
        query, key, value = super()._projected(query, key, value)
        key, value = (repeat(t, self.num_repeats, axis=2) for t in (key, value))
        return query, key, value

    def score_operands(self, query, key):
        return query, key

    def inverse_root(self):
        return self._inverse_sqrt_head_dim

    def window(self):
        return self.sliding_window

    def attention_arguments(self, needs_weights):
        self._return_attention_scores = needs_weights
        return {}
