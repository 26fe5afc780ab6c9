"""Keras callbacks."""

from keras_scalify.callbacks.breach import Breach, ScaleBreach
from keras_scalify.callbacks.limits import LIMITS, Limit
from keras_scalify.callbacks.scale_monitor import ScaleMonitor

__all__ = ["LIMITS", "Breach", "Limit", "ScaleBreach", "ScaleMonitor"]
