"""The number formats that operands are quantized to."""

import dataclasses

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One number format, with the limits that rounding to it needs.

    A value `x = m * 2**e` with `1 <= m < 2` and `e >= min_exponent` keeps
    `mantissa_bits` bits behind the point; below `2**min_exponent` values are multiples
    of `2**quantum_exponent`.

    Attributes:
        name: the dtype's name in Keras and ml_dtypes.
        mantissa_bits: bits behind the point of a normal number.
        min_exponent: exponent of the smallest normal number.
        max: largest finite value.
        bits: bits an element.
        has_inf: whether the format has an infinity (else an infinity becomes NaN).
        is_scaled: whether operands in this format carry a scale. A format with the
            exponent range of float32 needs none: its scale is always 1.
    """

    name: str
    mantissa_bits: int
    min_exponent: int
    max: float
    bits: int
    has_inf: bool
    is_scaled: bool

    @property
    def is_identity(self) -> bool:
        """Whether rounding to this format changes no float32 value."""
        return self.mantissa_bits >= 23

    @property
    def quantum_exponent(self) -> int:
        """Exponent of the smallest subnormal number."""
        return self.min_exponent - self.mantissa_bits


def _format(name: str) -> Format:
    info = ml_dtypes.finfo(name)
    return Format(
        name=name,
        mantissa_bits=info.nmant,
        min_exponent=int(info.minexp),
        max=float(info.max),
        bits=info.bits,
        has_inf=bool(np.isinf(np.array(np.inf).astype(info.dtype).astype(np.float32))),
        is_scaled=int(info.minexp) > ml_dtypes.finfo("float32").minexp,
    )


_NAMES = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")

FORMATS: dict[str, Format] = {name: _format(name) for name in _NAMES}


def get_format(name: str, argument: str = "format") -> Format:
    """The row of FORMATS called `name`.

    Raises:
        ValueError: names `argument`, what came and what is allowed.
    """
    if not isinstance(name, str) or name not in FORMATS:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(FORMATS)}. "
            f"Received: {argument}={name!r}"
        )
    return FORMATS[name]
