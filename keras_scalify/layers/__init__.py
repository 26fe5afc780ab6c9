"""Keras layers that compute in a recipe's formats and pass scales on."""

from keras_scalify.layers.carry import Carry
from keras_scalify.layers.scale import Scale
from keras_scalify.layers.scaled_activation import ScaledActivation
from keras_scalify.layers.scaled_add import ScaledAdd
from keras_scalify.layers.scaled_conv1d import ScaledConv1D
from keras_scalify.layers.scaled_conv2d import ScaledConv2D
from keras_scalify.layers.scaled_dense import ScaledDense
from keras_scalify.layers.scaled_depthwise_conv2d import ScaledDepthwiseConv2D
from keras_scalify.layers.scaled_dropout import ScaledDropout
from keras_scalify.layers.scaled_einsum_dense import ScaledEinsumDense
from keras_scalify.layers.scaled_embedding import ScaledEmbedding
from keras_scalify.layers.scaled_group_query_attention import (
    ScaledGroupQueryAttention,
)
from keras_scalify.layers.scaled_layer import ScaledLayer
from keras_scalify.layers.scaled_layer_normalization import ScaledLayerNormalization
from keras_scalify.layers.scaled_multi_head_attention import ScaledMultiHeadAttention
from keras_scalify.layers.scaled_multiply import ScaledMultiply
from keras_scalify.layers.scaled_rms_normalization import ScaledRMSNormalization
from keras_scalify.layers.unscale import Unscale

__all__ = [
    "Carry",
    "Scale",
    "ScaledActivation",
    "ScaledAdd",
    "ScaledConv1D",
    "ScaledConv2D",
    "ScaledDense",
    "ScaledDepthwiseConv2D",
    "ScaledDropout",
    "ScaledEinsumDense",
    "ScaledEmbedding",
    "ScaledGroupQueryAttention",
    "ScaledLayer",
    "ScaledLayerNormalization",
    "ScaledMultiHeadAttention",
    "ScaledMultiply",
    "ScaledRMSNormalization",
    "Unscale",
]
