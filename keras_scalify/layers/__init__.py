"""Keras layers whose products are computed in a recipe's formats."""

from keras_scalify.layers.scaled_dense import ScaledDense

__all__ = ["ScaledDense"]
