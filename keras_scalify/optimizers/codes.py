"""8-bit codes: small floating-point numbers as unsigned bytes.

Keras cannot save float8 variables, and integers escape autocast: what rests in 8 bits
rests as uint8, coded and decoded by integer arithmetic, the same on every backend.
"""

import dataclasses

from keras import ops

from keras_scalify.formats import FORMATS, Format
from keras_scalify.scaling import BIAS, MANTISSA_BITS

_SIGN_BIT = 1 << 7


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
    def _offset(self) -> int:
        """What a normal float32's upper bits exceed its code by."""
        exponent_bias = 1 - self.format.min_exponent
        return (BIAS - exponent_bias) << self.format.mantissa_bits

    def encode(self, x):
        """The codes of float32 numbers on the format's grid, uint8 of their shape."""
        shift = MANTISSA_BITS - self.format.mantissa_bits
        smallest = 2.0**self.format.min_exponent
        magnitude = ops.abs(x)
        # A subnormal is raised into the first normal binade, which has its spacing.
        subnormal = magnitude < smallest
        raised = magnitude + ops.where(subnormal, smallest, 0.0)
        code = ops.right_shift(ops.view(raised, "int32"), shift) - self._offset
        code = code - ops.where(subnormal, 1 << self.format.mantissa_bits, 0)
        if self.signed:
            sign = ops.right_shift(ops.view(x, "int32"), 24)
            code = code + ops.bitwise_and(sign, _SIGN_BIT)
        return ops.cast(code, "uint8")

    def decode(self, code):
        """The numbers of uint8 codes, float32 of the same shape."""
        shift = MANTISSA_BITS - self.format.mantissa_bits
        first = 1 << self.format.mantissa_bits
        code = ops.cast(code, "int32")
        magnitude = ops.bitwise_and(code, _SIGN_BIT - 1) if self.signed else code
        subnormal = magnitude < first
        raised = magnitude + ops.where(subnormal, first, 0) + self._offset
        x = ops.view(ops.left_shift(raised, shift), "float32")
        x = x - ops.where(subnormal, 2.0**self.format.min_exponent, 0.0)
        return ops.where(code >= _SIGN_BIT, -x, x) if self.signed else x


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
