"""Statistics beyond their limits, as records, in order and in words."""

import dataclasses
import math
import warnings
from collections import Counter

from keras_scalify.callbacks.limits import NONFINITE, Limit
from keras_scalify.callbacks.reading import Reading
from keras_scalify.statistics import STATISTICS

REACTIONS = ("warn", "raise", "stop")


class ScaleBreach(RuntimeError):
    """A statistic went beyond its limit, and `on_breach` is "raise"."""


AT_ONCE = 5  # breaches of one step that have a warning of their own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breach:
    """A statistic beyond its limit.

    Attributes:
        layer, role, statistic: where.
        value: of the statistic.
        step: in which it was read; for entries that are not finite, the step they
            appeared in.
        message: all of it and the advice, in words.
    """

    layer: str
    role: str
    statistic: str
    value: float
    step: int
    message: str

    @property
    def cause(self) -> tuple[str, str, str]:
        """What tells one breach from another."""
        return self.layer, self.role, self.statistic


def find_breaches(
    readings: list[Reading], limits: dict[str, Limit], trained: int
) -> list[Breach]:
    """The breaches of a list of readings, those nearest to the cause first.

    Entries that are not finite come first, by the step they appeared in; then in the
    order of the pass: forward by layer, then backward.

    Args:
        readings: of one moment.
        limits: by statistic.
        trained: steps of training so far.
    """
    found: list[tuple] = [
        ((name != NONFINITE, *reading.position(name)), reading, name, limit)
        for reading in readings
        for name, limit in limits.items()
        if trained > limit.after and not limit.holds(_value(reading, name))
    ]
    found.sort(key=lambda row: row[0])
    return [_breach(*row[1:]) for row in found]


def _value(reading: Reading, name: str) -> float:
    """Of a tensor of NaN nothing but their number is known."""
    unknown = name != NONFINITE and reading.onset is not None
    return math.nan if unknown else reading.statistics.get(name, math.nan)


def _breach(reading: Reading, name: str, limit: Limit) -> Breach:
    """The record, with its message."""
    value = reading.statistics[name]
    onset = reading.onset if name == NONFINITE else None
    step = reading.step if onset is None else onset
    advice = limit.delayed if reading.scaling == "delayed" else ""
    unit = STATISTICS[name].unit if name in STATISTICS else ""
    beyond = limit.most if limit.least is None or value >= limit.least else limit.least
    message = (
        f"{reading.role} of {reading.layer}: {name} is {value:.4g}"
        f"{' ' + unit if unit else ''} at step {step} (limit {beyond:.4g}): "
        f"{advice or limit.advice}"
    )
    return Breach(
        layer=reading.layer,
        role=reading.role,
        statistic=name,
        value=value,
        step=step,
        message=message,
    )


def loss_breach(ratio: float, step: int, found: list[Breach], limit: Limit) -> Breach:
    """The record of a loss beyond its limit, with the layer it came from.

    Args:
        ratio: loss / its median, infinite for a loss that is not finite.
        step: batches of training so far.
        found: the breaches of the moment, the nearest to the cause first.
        limit: on the ratio.
    """
    what = f"{ratio:.3g} times its median" if ratio < float("inf") else "not finite"
    first = found[0] if found else None
    where = first.message if first else f"no layer shows why; {limit.advice}"
    return Breach(
        layer=first.layer if first else "loss",
        role=first.role if first else "loss",
        statistic="loss_ratio",
        value=ratio,
        step=step,
        message=f"the loss is {what} at step {step}: {where}",
    )


def warn(breaches: list[Breach]) -> None:
    """A warning for each of the first few, and one for the rest."""
    for breach in breaches[:AT_ONCE]:
        warnings.warn(breach.message, stacklevel=2)
    if more := breaches[AT_ONCE:]:
        text = f"and as a consequence: {list_causes(more)}"
        warnings.warn(text, stacklevel=2)


def list_causes(breaches: list[Breach]) -> str:
    """The causes in words, the most frequent first."""
    counts = Counter(b.cause for b in breaches)
    rows = [
        f"{name} of the {role} of {layer}" + (f" ({n} times)" if n > 1 else "")
        for (layer, role, name), n in counts.most_common()
    ]
    return "; ".join(rows)


def check_arguments(every, on_breach) -> None:
    """Raise a ValueError unless both are what ScaleMonitor takes."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(
            f"`every` must be an integer of at least 1. Received: every={every!r}"
        )
    if on_breach not in REACTIONS and not callable(on_breach):
        raise ValueError(
            f"`on_breach` must be one of {', '.join(REACTIONS)}, or a function. "
            f"Received: on_breach={on_breach!r}"
        )


def react(found: list[Breach], known: set, on_breach) -> bool:
    """Do with breaches what `on_breach` says. Returns whether training is to stop.

    Args:
        found: the breaches of a step.
        known: causes of earlier ones, which are not told again.
        on_breach: see ScaleMonitor.
    """
    if callable(on_breach):
        for breach in found:
            on_breach(breach)
        return False
    if found and on_breach == "raise":
        raise ScaleBreach(found[0].message)
    warn([b for b in found if b.cause not in known])
    return bool(found) and on_breach == "stop"
