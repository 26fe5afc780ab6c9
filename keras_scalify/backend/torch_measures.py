"""What is measured on Torch tensors: exact, in one pass where all is finite."""

import torch

from keras_scalify.scaling import FLOAT32_MAX, clip_mean_square
from keras_scalify.scaling import mean_square as masked_mean_square


def amax(x, axis=None):
    """Largest finite magnitude, float32, along an axis or of all; 0 where none is."""
    x = x.detach()
    if axis is not None:
        largest = torch.amax(x.abs(), axis).float()
    elif x.numel() == 0:
        return torch.zeros((), device=x.device)
    else:
        low, high = torch.aminmax(x)
        largest = torch.maximum(-low, high).float()
    # Reading one number is free on a CPU and a wait elsewhere: both branches run there.
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return largest if largest.isfinite().all() else _masked_amax(x, axis)
    return torch.where(largest.isfinite(), largest, _masked_amax(x, axis))


def _masked_amax(x, axis):
    """finite_amax in functions that torch.compile knows; Keras's max it does not."""
    magnitude = x.abs().float()
    magnitude = torch.where(magnitude <= FLOAT32_MAX, magnitude, 0.0)
    return torch.amax(magnitude, () if axis is None else axis)


def mean_square(x):
    """mean(x**2), a float32 scalar, positive and finite. See scaling.py."""
    x = x.detach()
    if x.device.type == "cpu" and x.numel() and not torch.compiler.is_compiling():
        flat = x.float().reshape(-1)
        total = torch.dot(flat, flat)  # exact where the norm squared gives 15.999998
        if total.isfinite():
            return clip_mean_square(total / x.numel())
    return masked_mean_square(x)
