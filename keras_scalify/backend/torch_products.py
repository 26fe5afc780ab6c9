"""Products of quantized operands on Torch, as products of matrices."""

import torch

from keras_scalify.backend.torch_measures import is_eager
from keras_scalify.equations import Equation

# Where no order of two powers of two and a sum of products on narrow grids rounds.
SAFE_SCALES = 2.0**-60, 2.0**60


def einsum(equation: Equation, a, b, scales, dtype):
    """The product of two quantized operands times both scales."""
    dtype = getattr(torch, dtype)
    if equation.batch or not a.numel() * b.numel():
        y = torch.einsum(str(equation), a.float(), b.float())
        return _rescaled(y, scales).to(dtype)
    rows, columns = _matrix(a, equation.x, equation), _matrix(b, equation.w, equation)
    native = a.itemsize == b.itemsize == 1
    y = (_scaled_mm if native else _mm)(rows, columns, scales, dtype)
    sizes = dict(zip(equation.x + equation.w, a.shape + b.shape, strict=True))
    y = y.reshape([sizes[c] for c in equation.product])
    return y.permute([equation.product.index(c) for c in equation.y]).to(dtype)


def _mm(rows, columns, scales, dtype):
    """The float32 product; in one pass if the scales can be read and multiplied."""
    rows, columns = rows.float(), columns.float().t()
    if not is_eager(rows):
        return _rescaled(rows @ columns, scales)
    first, second = (scale.item() for scale in scales)
    low, high = SAFE_SCALES
    if not all(low <= s <= high for s in (first, second, first * second)):
        return _rescaled(rows @ columns, scales)
    nothing = rows.new_zeros(())
    return torch.addmm(nothing, rows, columns, beta=0, alpha=first * second)


def _rescaled(y, scales):
    """One scale after the other: their product may leave the range where y does not."""
    return y.mul_(scales[0]).mul_(scales[1])


def _scaled_mm(rows, columns, scales, dtype):
    """The float8 library call: row- times column-major, sizes in multiples of 16."""
    wide = dtype if dtype == torch.bfloat16 else torch.float32
    y = torch._scaled_mm(_pad(rows), _pad(columns).t(), *scales, out_dtype=wide)
    return y[: len(rows), : len(columns)]


def _matrix(tensor, term: str, equation: Equation):
    """An operand as a matrix, free labels by contracted labels."""
    free = [c for c in equation.product if c in term]
    permuted = tensor.permute([term.index(c) for c in [*free, *equation.contracted]])
    return permuted.reshape(permuted.shape[: len(free)].numel(), -1)


def _pad(matrix):
    """Zeros up to multiples of 16, which add nothing to the product."""
    rows, columns = ((-size) % 16 for size in matrix.shape)
    codes = matrix.view(torch.uint8)  # padding has no float8 kernel; code 0 is zero
    padded = torch.nn.functional.pad(codes, (0, columns, 0, rows))
    return padded.contiguous().view(matrix.dtype)
