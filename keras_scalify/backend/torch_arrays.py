"""Functions of keras.ops for Torch tensors alone.

One of keras.ops takes about 5 us of Python, as long as Torch needs for 50,000 elements.
The numerics of the optimizers are some 60 operations a variable: they call these.
"""

import torch

abs = torch.abs
add = torch.add
bitwise_and = torch.bitwise_and
expand_dims = torch.unsqueeze
left_shift = torch.bitwise_left_shift
ones_like = torch.ones_like
power = torch.pow
reshape = torch.reshape
right_shift = torch.bitwise_right_shift
sign = torch.sign
sqrt = torch.sqrt
square = torch.square
where = torch.where
zeros_like = torch.zeros_like


def cast(x, dtype: str):
    return x.to(getattr(torch, dtype))


def clip(x, low, high):
    return x.clamp(low, high)


def maximum(x, y):
    return torch.maximum(x, y) if isinstance(y, torch.Tensor) else x.clamp(min=y)


def minimum(x, y):
    return torch.minimum(x, y) if isinstance(y, torch.Tensor) else x.clamp(max=y)


def pad(x, widths):
    return torch.nn.functional.pad(x, [n for pair in reversed(widths) for n in pair])


def view(x, dtype: str):
    return x.view(getattr(torch, dtype))
