"""What is no longer healthy, and what to do about it: data."""

import dataclasses
import numbers
from typing import Any

from keras_scalify.statistics import SMALLEST, STATISTICS

DRIFT, NONFINITE = "drift_bits", "nonfinite_count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """One row of LIMITS.

    Attributes:
        least, most: what the statistic may be; None: anything.
        advice: what to do, in words.
        delayed: what to do instead where the role's scaling is delayed.
        after: steps of training that do not count.
    """

    least: float | None = None
    most: float | None = None
    advice: str
    delayed: str = ""
    after: int = 0

    def __post_init__(self):
        for name in ("least", "most"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise ValueError(
                    f"`{name}` must be a number or None. Received: {name}={value!r}"
                )

    def holds(self, value: float) -> bool:
        """Whether the value lies within the limit. NaN does: it was not measured."""
        low = self.least is not None and value < self.least
        return not (low or (self.most is not None and value > self.most))


def _is_number(value) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


_EXCLUDE = "a wider format for this role, or exclude the layer"

LIMITS: dict[str, Limit] = {
    NONFINITE: Limit(
        most=0,
        advice="look at what comes before it: the data, a division, the learning rate",
    ),
    "rms": Limit(
        least=SMALLEST,
        after=1,
        advice="all zero: the layer learns nothing; look for a dead activation or a "
        "branch that is multiplied by zero",
    ),
    "saturation_rate": Limit(
        most=1e-3,
        advice=f"use recipe float8, which measures in the step, or {_EXCLUDE}",
        delayed="use a recipe with margin 1 or more, or float8, which measures in the "
        "step",
    ),
    "headroom_bits": Limit(
        least=-0.25,
        advice=f"use recipe float8, which measures in the step, or {_EXCLUDE}",
        delayed="the tensor grows faster than its scale follows: use a recipe with "
        "margin 1 or more, or float8, which measures in the step",
    ),
    "underflow_rate": Limit(
        most=0.1,
        advice=f"outliers take the format's range: use {_EXCLUDE}",
        delayed=f"use a recipe with margin 0 and a shorter window, {_EXCLUDE}",
    ),
    "sqnr_db": Limit(
        least=15.0, advice=f"too little is left of the tensor: {_EXCLUDE}"
    ),
    DRIFT: Limit(
        most=10.0,
        advice="a thousand times what it was: look at the learning rate and the "
        "gradient's norm, or at who assigned it",
    ),
    "loss_ratio": Limit(
        most=3.0, advice="lower the learning rate, or clip the gradient's norm"
    ),
}


# What may explain a loss that jumps where nothing is beyond its limit.
GROWN = {DRIFT: Limit(most=1.0, advice="the first that grew; look at the data")}


def merge_limits(limits: dict[str, Any]) -> dict[str, Limit]:
    """The limits with numbers replaced by rows of LIMITS with that threshold.

    Raises:
        ValueError: an unknown statistic, or a number where LIMITS has no row.
    """
    if not isinstance(limits, dict):
        raise ValueError(
            "`limits` must be a dict of limits by statistic. Received: "
            f"limits={limits!r}"
        )
    known = {*STATISTICS, *LIMITS}
    rows = {}
    for name, limit in limits.items():
        number = _is_number(limit)
        if name not in known or not (isinstance(limit, Limit) or number):
            raise ValueError(
                f"`limits` maps each of {', '.join(sorted(known))} to a Limit, or to a "
                f"number if LIMITS has it. Received: {name!r}: {limit!r}"
            )
        rows[name] = _with_threshold(name, limit) if number else limit
    return rows


def _with_threshold(name: str, value: float) -> Limit:
    if name not in LIMITS:
        raise ValueError(f"`limits[{name!r}]` must be a Limit. Received: {value!r}")
    if LIMITS[name].most is None:
        return dataclasses.replace(LIMITS[name], least=value)
    return dataclasses.replace(LIMITS[name], most=value)
