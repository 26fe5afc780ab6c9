"""Low-precision training for Keras with scales that travel with the data."""

from keras_scalify import analysis, callbacks, config, layers, ops, optimizers
from keras_scalify.conversion import (
    freeze_scales,
    scalify,
    scalify_report,
    unscalify,
)
from keras_scalify.formats import FORMATS, Format
from keras_scalify.recipes import RECIPES, Recipe
from keras_scalify.scaled_tensor import ScaledTensor

__all__ = [
    "FORMATS",
    "RECIPES",
    "Format",
    "Recipe",
    "ScaledTensor",
    "analysis",
    "callbacks",
    "config",
    "freeze_scales",
    "layers",
    "ops",
    "optimizers",
    "scalify",
    "scalify_report",
    "unscalify",
]

__version__ = "0.1.0"
