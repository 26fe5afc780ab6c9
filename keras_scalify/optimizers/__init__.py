"""Keras optimizers whose state rests in narrow formats."""

from keras_scalify.optimizers.copy_state import copy_state
from keras_scalify.optimizers.scaled_adam import ScaledAdam
from keras_scalify.optimizers.scaled_adamw import ScaledAdamW
from keras_scalify.optimizers.scaled_lion import ScaledLion
from keras_scalify.optimizers.scaled_sgd import ScaledSGD
from keras_scalify.optimizers.state_bytes import state_bytes

__all__ = [
    "ScaledAdam",
    "ScaledAdamW",
    "ScaledLion",
    "ScaledSGD",
    "copy_state",
    "state_bytes",
]
