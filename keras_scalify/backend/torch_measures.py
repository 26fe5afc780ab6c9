"""What is measured on Torch tensors: exact, in few passes where all is finite."""

import math

import torch

from keras_scalify.backend import torch_arrays as arrays
from keras_scalify.scaling import FLOAT32_MAX, clip_mean_square
from keras_scalify.scaling import mean_square as masked_mean_square


def is_eager(x) -> bool:
    """Whether nothing is compiled, on a CPU, where reading one number is free."""
    return x.is_cpu and not torch.compiler.is_compiling()


def is_finite(x) -> bool:
    """Whether the sum is finite: then every entry is. (Large ones may overflow.)"""
    return math.isfinite(x.sum().item())


def amax(x, axis=None):
    """Largest finite magnitude, float32, along an axis or of all; 0 where none is."""
    x = x.detach()
    if axis is not None:
        largest = torch.amax(x.abs(), axis).float()
    elif x.numel() == 0:
        return torch.zeros((), device=x.device)
    else:
        largest = _largest(x).float()
    # Elsewhere than on a CPU both branches run.
    if is_eager(x):
        return largest if is_finite(largest) else _masked_amax(x, axis)
    return torch.where(largest.isfinite(), largest, _masked_amax(x, axis))


def _largest(x):
    # Two passes on a CPU are faster than aminmax (2.13), which is one.
    low, high = (x.amin(), x.amax()) if is_eager(x) else torch.aminmax(x)
    return torch.maximum(-low, high)


def _masked_amax(x, axis):
    """finite_amax in functions that torch.compile knows; Keras's max it does not."""
    magnitude = x.abs().float()
    magnitude = torch.where(magnitude <= FLOAT32_MAX, magnitude, 0.0)
    return torch.amax(magnitude, () if axis is None else axis)


def mean_square(x):
    """mean(x**2), a float32 scalar, positive and finite. See scaling.py."""
    x = x.detach()
    if is_eager(x) and x.numel():
        flat = x.float().reshape(-1)
        total = torch.dot(flat, flat)  # exact where the norm squared gives 15.999998
        if is_finite(total):
            return clip_mean_square(total / x.numel(), arrays)
    return masked_mean_square(x)
