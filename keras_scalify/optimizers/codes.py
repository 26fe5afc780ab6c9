"""8-bit codes: small floating-point numbers as unsigned bytes.

Keras cannot save float8 variables, and integers escape autocast: what rests in 8 bits
rests as uint8, coded and decoded by integer arithmetic, the same on every backend.
"""

import dataclasses

from keras_scalify.backend import arrays
from keras_scalify.formats import FORMATS, Format
from keras_scalify.optimizers.stochastic_rounding import (
    bits_of,
    lower_subnormals,
    raised_bits,
    rounded_bits,
)
from keras_scalify.scaling import BIAS, MANTISSA_BITS

_SIGN_BIT, _SIGN = 1 << 7, -(1 << 31)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """A byte for every number of a format.

    Attributes:
        format: the numbers.
        signed: whether the upper bit is the sign; else it is the exponent's.
    """

    format: Format
    signed: bool

    @property
    def _shift(self) -> int:
        return MANTISSA_BITS - self.format.mantissa_bits

    @property
    def _offset(self) -> int:
        """What the upper bits of a float32 with raised subnormals exceed its code by.

        The binade below the smallest normal number has the exponent field 0.
        """
        return (BIAS + self.format.min_exponent - 1) << self.format.mantissa_bits

    def encode(self, x):
        """The codes of float32 numbers on the format's grid, uint8 of their shape."""
        code = self._code(raised_bits(x, self.format), x)
        return arrays.cast(code, "uint8")

    def round(self, x, bits, keep_positive: bool = False):
        """The codes of float32 numbers, rounded stochastically. Large ones saturate.

        Returns:
            int32: a later cast to uint8 leaves more to share for a compiler that
            decodes them at once.
        """
        row = self.format
        code = self._code(rounded_bits(x, row, bits, largest=bits_of(row.max)), x)
        if not keep_positive:
            return code
        return arrays.maximum(code, arrays.minimum(arrays.view(x, "int32"), 1))

    def _code(self, raised, x):
        code = arrays.right_shift(raised, self._shift) - self._offset
        if not self.signed:
            return code
        sign = arrays.right_shift(arrays.view(x, "int32"), 24)
        return code + (sign & _SIGN_BIT)

    def decode(self, code):
        """The numbers of codes, int32 or uint8, as float32 of the same shape."""
        code = arrays.cast(code, "int32")
        magnitude = code & (_SIGN_BIT - 1) if self.signed else code
        raised = arrays.left_shift(magnitude + self._offset, self._shift)
        x = lower_subnormals(arrays.view(raised, "float32"), self.format)
        if not self.signed:
            return x
        sign = arrays.left_shift(code, 24) & _SIGN
        return arrays.view(arrays.view(x, "int32") | sign, "float32")


def _small(name: str, exponent_bits: int, mantissa_bits: int, signed: bool) -> Code:
    """A code without an infinity or a NaN: every byte is a number."""
    bias = (1 << (exponent_bits - 1)) - 1
    largest = (1 << exponent_bits) - 1 - bias
    row = Format(
        name=name,
        mantissa_bits=mantissa_bits,
        min_exponent=1 - bias,
        max=(2.0 - 2.0**-mantissa_bits) * 2.0**largest,
        bits=8,
        has_inf=False,
        is_scaled=True,
    )
    return Code(format=row, signed=signed)


CODES = {
    "float8_e3m4": _small("float8_e3m4", 3, 4, signed=True),
    "float8_e4m3fn": Code(format=FORMATS["float8_e4m3fn"], signed=True),
    "float8_e5m2": Code(format=FORMATS["float8_e5m2"], signed=True),
    "float8_ue4m4": _small("float8_ue4m4", 4, 4, signed=False),
    "float8_ue5m3": _small("float8_ue5m3", 5, 3, signed=False),
}
