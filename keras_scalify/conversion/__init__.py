"""Converting whole models: scaled layers in the place of Keras's, and back."""

from keras_scalify.conversion.convert import scalify, unscalify
from keras_scalify.conversion.freeze import freeze_scales
from keras_scalify.conversion.report import ConversionReport, scalify_report

__all__ = [
    "ConversionReport",
    "freeze_scales",
    "scalify",
    "scalify_report",
    "unscalify",
]
