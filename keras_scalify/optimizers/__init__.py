"""Keras optimizers whose state rests in narrow formats."""

from keras_scalify.optimizers.scaled_adam import ScaledAdam
from keras_scalify.optimizers.scaled_adamw import ScaledAdamW

__all__ = ["ScaledAdam", "ScaledAdamW"]
