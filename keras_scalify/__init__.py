"""Low-precision training for Keras with scales that travel with the data."""

from keras_scalify import config, layers, ops, optimizers
from keras_scalify.formats import FORMATS, Format
from keras_scalify.recipes import RECIPES, Recipe

__all__ = [
    "FORMATS",
    "RECIPES",
    "Format",
    "Recipe",
    "config",
    "layers",
    "ops",
    "optimizers",
]

__version__ = "0.1.0"
