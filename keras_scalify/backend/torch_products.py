"""Products of quantized operands on Torch, as products of matrices."""

import torch

from keras_scalify.backend.torch_measures import is_eager
from keras_scalify.equations import Equation

# If both scales and their product lie within, no order of multiplying rounds: what has
# a scale is float8 or float16, and sums of their products are multiples of 2**-48.
SAFE_SCALES = 2.0**-60, 2.0**60


def einsum(equation: Equation, a, b, scales, dtype):
    """The product of two quantized operands times both scales."""
    dtype = getattr(torch, dtype)
    if equation.batch or not a.numel() * b.numel():
        y = torch.einsum(str(equation), a.float(), b.float())
        return _rescaled(y, scales).to(dtype)
    left = _matrix(a, equation.x, equation.x_free, equation.contracted)
    right = _matrix(b, equation.w, equation.contracted, equation.w_free)
    native = a.itemsize == b.itemsize == 1
    y = (_scaled_mm if native else _mm)(left, right, scales, dtype)
    sizes = dict(zip(equation.x + equation.w, a.shape + b.shape, strict=True))
    y = y.reshape([sizes[c] for c in equation.product])
    return _permuted(y, equation.product, equation.y).to(dtype)


def _matrix(tensor, labels: str, rows: str, columns: str):
    """An operand as a matrix."""
    tensor = _permuted(tensor, labels, rows + columns)
    return tensor.reshape(tensor.shape[: len(rows)].numel(), -1)


def _permuted(tensor, labels: str, order: str):
    if labels == order:
        return tensor
    return tensor.permute([labels.index(c) for c in order])


def _mm(left, right, scales, dtype):
    """The float32 product; in one pass if the scales can be read and multiplied."""
    left, right = left.float(), right.float()
    if not is_eager(left):
        return _rescaled(left @ right, scales)
    first, second = (scale.item() for scale in scales)
    low, high = SAFE_SCALES
    if not all(low <= s <= high for s in (first, second, first * second)):
        return _rescaled(left @ right, scales)
    nothing = left.new_zeros(())
    return torch.addmm(nothing, left, right, beta=0, alpha=first * second)


def _rescaled(y, scales):
    """One scale after the other: their product may leave the range where y does not."""
    return y.mul_(scales[0]).mul_(scales[1])


def _scaled_mm(left, right, scales, dtype):
    """The float8 library call: row- times column-major, sizes in multiples of 16."""
    wide = dtype if dtype == torch.bfloat16 else torch.float32
    columns = _pad(right.t()).t()
    y = torch._scaled_mm(_pad(left), columns, *scales, out_dtype=wide)
    return y[: left.shape[0], : right.shape[1]]


def _pad(matrix):
    """Zeros up to multiples of 16, which add nothing to the product."""
    rows, columns = ((-size) % 16 for size in matrix.shape)
    codes = matrix.view(torch.uint8)  # padding has no float8 kernel; code 0 is zero
    padded = torch.nn.functional.pad(codes, (0, columns, 0, rows))
    return padded.contiguous().view(matrix.dtype)
