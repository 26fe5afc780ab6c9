"""Quantization as functions of tensors."""

from keras_scalify.ops.quantization import dequantize, qdq, quantize

__all__ = ["dequantize", "qdq", "quantize"]
