"""Updates of variables in parts that stay in the cache: eager Torch fuses nothing."""

import functools
import math

import torch

from keras_scalify.backend.torch_measures import is_eager

# An operation on 2**16 elements takes 4 us, of which 1 us is the call.
PART = 1 << 16


@torch.no_grad()
def update(function, variables, tensor, assign):
    """See parts.py. On a CPU, PART elements at a time if there are more."""
    values = [v.value for v in variables]
    count = tensor.numel()
    if count <= PART or not is_eager(tensor) or not _are_flat(values):
        new, more = function(0, values, tensor)
        _copy(values, new)
        return more
    values = [v.view(-1) for v in values]
    tensor, more = tensor.reshape(-1), []
    for start in range(0, count, PART):
        part = slice(start, start + PART)
        parts = [v[part] for v in values]
        new, rest = function(start, parts, tensor[part])
        _copy(parts, new)
        more.append(rest)
    return None if more[0] is None else torch.cat(more)


def _are_flat(values) -> bool:
    return all(v.is_contiguous() for v in values)


def _copy(targets, values):
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def indices(shape, like):
    """See parts.py. Not to be changed in place: one tensor serves many calls."""
    count = math.prod(shape)
    if count > PART or not is_eager(like):
        index = torch.arange(count, dtype=torch.int32, device=like.device)
    else:
        index = _first_indices()[:count]
    return index.view(shape)


@functools.cache
def _first_indices():
    return torch.arange(PART, dtype=torch.int32)
