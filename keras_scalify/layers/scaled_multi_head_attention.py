"""ScaledMultiHeadAttention."""

import keras

from keras_scalify.layers.registration import replaces_keras_layer
from keras_scalify.layers.scaled_attention import QuantizedAttention


@replaces_keras_layer
class ScaledMultiHeadAttention(QuantizedAttention, keras.layers.MultiHeadAttention):
    """Multi-head attention with its projections in a recipe's formats.

    A keras.layers.MultiHeadAttention, of plain tensors or ScaledTensors. Scores and
    values stay in the compute dtype, where fused attention is available.

    Args:
        *args, **kwargs: those of keras.layers.MultiHeadAttention.
        recipe: a name in RECIPES, a Recipe or its config dict. Default "float8".
        weight_dtype: what kernels rest in. See ScaledDense. Default None.
        scaled_attention: whether the products with keys and values use the recipe too.
            Default False.

    Raises:
        ValueError: an unknown recipe; query, key and value not all plain or all scaled.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledMultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> tuple(layer(x, x).shape)
    (1, 5, 8)
    """

    def score_operands(self, query, key):
        return key, query

    def inverse_root(self):
        return self._inverse_sqrt_key_dim

    def window(self):
        return self._sliding_window

    def attention_arguments(self, needs_weights):
        return {"return_attention_scores": needs_weights}
