"""Operands on Torch: rounded by real casts, whose result is widened on a CPU."""

import torch

from keras_scalify import config
from keras_scalify.backend.torch_measures import is_eager, is_finite
from keras_scalify.formats import Format
from keras_scalify.rounding import round_to_format

# Elements of which the intermediate results stay in the cache. The memory of larger
# ones also goes back to the system, and each new page of it costs more than its bytes.
PART = 1 << 18


def is_native() -> bool:
    """Real float8 arrays: as set by config, by default on a GPU that has float8."""
    form = config.matmul()
    if form != "auto":
        return form == "native"
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def quantize(x, scale, format: Format):
    """x / scale on the format's grid: a real array of it if native, else float32."""
    x = x.float()
    if not is_native():
        fast = is_eager(x) and x.numel() and not format.is_identity
        return (_cast_and_back if fast else round_to_format)(x, scale, format)
    clipped = (x * (1.0 / scale)).clamp(-format.max, format.max)
    return _visible(x, clipped, format).to(getattr(torch, format.name))


def _cast_and_back(x, scale, format: Format):
    """round_to_format by Torch's own cast, in a third of the passes over memory."""
    inverse, narrow = (1.0 / scale).item(), getattr(torch, format.name)
    rounded = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for part, out in zip(_parts(x), _parts(rounded), strict=True):
        scaled = (part * inverse).clamp_(-format.max, format.max)
        _widen(scaled.to(narrow), out)
    return rounded if is_finite(x) else _visible(x, rounded, format)


def _parts(x):
    return [x] if x.numel() <= PART else x.reshape(-1).split(PART)


def _visible(x, rounded, format: Format):
    """Torch saturates an infinity in e4m3, which has none: it must stay visible."""
    return torch.where(x.isfinite(), rounded, x if format.has_inf else float("nan"))


def _widen(narrow, out):
    """Any narrow float into float32; float8 by float16, whose bits it shares."""
    if narrow.dtype == torch.float8_e5m2:  # the upper byte of a float16
        half = narrow.view(torch.int8).to(torch.int16).mul_(1 << 8)
        out.copy_(half.view(torch.float16))
    elif narrow.dtype == torch.float8_e4m3fn:  # exponents 8 lower: the second bit is 0
        half = narrow.view(torch.int8).to(torch.int16).mul_(1 << 7)
        half.bitwise_and_(~(1 << 14))
        out.copy_(half.view(torch.float16)).mul_(2.0**8)
    else:
        out.copy_(narrow)
