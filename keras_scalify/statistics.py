"""The health of a quantized operand: a table of statistics, each a pure function.

Every statistic is measured as a number that is not negative and grows with trouble, so
that the worst of several calls, micro-batches or steps is the maximum; `show` turns the
number into the statistic.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_scalify.formats import FORMATS, Format
from keras_scalify.rounding import round_to_format
from keras_scalify.scaling import FLOAT32_MAX, amax_to_scale

SMALLEST = 2.0**-126  # below it, float32 is 0 on some backends and not on others


class Operand(NamedTuple):
    """A tensor and what quantizing makes of it.

    Attributes:
        value: float32, the tensor with 0 where it is not finite.
        data: float32, `value / scale` clipped and rounded to the format.
        finite: bool, where the tensor is finite.
        amax: float32 scalar, the largest finite magnitude.
        unit: float32 scalar, a power of two near amax, to square without overflow.
        scale: float32 scalar, a power of two.
        format: the row of FORMATS.
    """

    value: Any
    data: Any
    finite: Any
    amax: Any
    unit: Any
    scale: Any
    format: Format


def operand(x, scale, format: Format) -> Operand:
    """The record that every statistic is measured on.

    Args:
        x: float tensor, any shape, also empty.
        scale: float32 scalar, a power of two.
        format: a row of FORMATS.
    """
    wide = ops.cast(x, "float32")
    finite = ops.abs(wide) <= FLOAT32_MAX
    value = ops.where(finite, wide, 0.0)
    amax = ops.max(ops.abs(value), initial=0.0)
    data = round_to_format(value, scale, format)
    unit = amax_to_scale(amax, FORMATS["float16"])
    return Operand(value, data, finite, amax, unit, scale, format)


def fill(amax, scale, format: Format):
    """`amax / (scale * max)`: how much of the format's range is used; above 1 what lies
    beyond is clipped. 0 for a format with the range of float32, where nothing is.
    """
    if not format.is_scaled:
        return ops.zeros_like(amax)
    return ops.minimum(amax * (1.0 / scale) * (1.0 / format.max), FLOAT32_MAX)


def _count(condition):
    return ops.cast(ops.sum(ops.cast(condition, "int32")), "float32")


def _rate(condition, among):
    return _count(condition) / ops.maximum(_count(among), 1.0)


def _underflow(t: Operand):
    nonzero = ops.abs(t.value) >= SMALLEST
    return _rate(ops.logical_and(nonzero, ops.equal(t.data, 0.0)), nonzero)


def _saturation(t: Operand):
    return _rate(ops.abs(t.value) * (1.0 / t.scale) > t.format.max, t.finite)


def _sum_of_squares(x):
    return ops.sum(ops.square(x))


def _rms(t: Operand):
    size = ops.maximum(_count(t.finite), 1.0)
    return t.unit * ops.sqrt(_sum_of_squares(t.value * (1.0 / t.unit)) / size)


def _noise(t: Operand):
    value = t.value * (1.0 / t.unit)
    ratio = ops.minimum(t.scale * (1.0 / t.unit), FLOAT32_MAX)
    signal = _sum_of_squares(value)
    noise = _sum_of_squares(t.data * ratio - value)
    return ops.where(signal > 0, noise / ops.where(signal > 0, signal, 1.0), 0.0)


def _bits(fill: float) -> float:
    return -math.log2(fill) if fill > 0 else math.inf


def _decibels(noise: float) -> float:
    return -10.0 * math.log10(noise) if noise > 0 else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistic:
    """One row of STATISTICS.

    Attributes:
        definition: a formula, with x the finite entries of the tensor, s the scale, max
            the format's largest value, and q(x) = s * round(clip(x / s)).
        unit: "" where it has none, or where it is that of the tensor.
        measure: function of an Operand to a float32 scalar that is not negative.
        show: function of that number to the statistic.
        worst: max or min, of several values of the statistic.
    """

    definition: str
    unit: str = ""
    measure: Callable[[Operand], Any]
    show: Callable[[float], float] = float
    worst: Callable = max


STATISTICS: dict[str, Statistic] = {
    "amax": Statistic(definition="max |x|", measure=lambda t: t.amax),
    "rms": Statistic(definition="sqrt(mean(x^2))", measure=_rms),
    "scale": Statistic(definition="s", measure=lambda t: t.scale),
    "headroom_bits": Statistic(
        definition="log2(max * s / amax); negative: what lies beyond is clipped. "
        "Infinite for x = 0 and for a format with the range of float32",
        unit="bits",
        measure=lambda t: fill(t.amax, t.scale, t.format),
        show=_bits,
        worst=min,
    ),
    "underflow_rate": Statistic(
        definition="share of the non-zero x (+-0 is zero) with q(x) = 0",
        measure=_underflow,
    ),
    "saturation_rate": Statistic(
        definition="share of the x with |x / s| > max", measure=_saturation
    ),
    "nonfinite_count": Statistic(
        definition="number of NaN and infinite entries",
        unit="entries",
        measure=lambda t: _count(ops.logical_not(t.finite)),
    ),
    "sqnr_db": Statistic(
        definition="10 log10(sum(x^2) / sum((q(x) - x)^2)); infinite without error",
        unit="dB",
        measure=_noise,
        show=_decibels,
        worst=min,
    ),
}


def measured(x, scale, format: Format):
    """Every statistic of STATISTICS, as measured: float32, (len(STATISTICS),)."""
    t = operand(x, scale, format)
    return ops.stack([row.measure(t) for row in STATISTICS.values()])


def shown(numbers) -> dict[str, float]:
    """The statistics of a sequence of measured numbers."""
    rows = zip(STATISTICS.items(), numbers, strict=True)
    return {name: row.show(float(number)) for (name, row), number in rows}
