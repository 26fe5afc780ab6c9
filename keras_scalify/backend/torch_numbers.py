"""Functions of one number on Torch: Python takes a fifth of the time of tensors."""

import operator
import struct

from keras_scalify.backend import torch_arrays
from keras_scalify.backend.torch_measures import is_eager


def scalar(function, x, *arguments):
    """See parts.py. On a CPU the number is read, which is free there."""
    if not is_eager(x):
        return function(x, *arguments, ops=torch_arrays)
    return x.new_full((), function(x.item(), *arguments, ops=_Numbers))


class _Numbers:
    """Functions of keras.ops for Python's numbers, as far as scaling.py needs them."""

    bitwise_and = operator.and_
    left_shift, right_shift = operator.lshift, operator.rshift

    @staticmethod
    def clip(x, low, high):
        return min(max(x, low), high)

    @staticmethod
    def ones_like(x):
        return 1.0

    @staticmethod
    def view(x, dtype: str):
        codes = "fi" if dtype == "int32" else "if"
        return struct.unpack(codes[1], struct.pack(codes[0], x))[0]

    @staticmethod
    def where(condition, x, y):
        return x if condition else y
