"""Reading the statistics that a training step left in a model."""

import dataclasses
import math
from typing import Any

from keras import ops

from keras_scalify.layers.scale_statistics import OPERANDS
from keras_scalify.ops.observation import EVERY_CALL, FIRST_ONSET, HEADER
from keras_scalify.recipes import ROLES
from keras_scalify.statistics import shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """The statistics of one operand.

    Attributes:
        layer: its path in the model.
        role: "input", "kernel" or "gradient".
        format, scaling: of the role, from the layer's recipe.
        step: batches of training so far.
        onset: the step in which an entry was first not finite, or None.
        order: of the layer's call in the forward pass.
        statistics: by the names of STATISTICS.
    """

    layer: str
    role: str
    format: str
    scaling: str
    step: int
    onset: int | None
    order: int
    statistics: dict[str, float]

    def position(self, statistic: str) -> tuple[int, ...]:
        """Where the operand stands in a training step, from its beginning on."""
        backward = self.role == "gradient"
        onset = self.onset if statistic == "nonfinite_count" else None
        when = self.step if onset is None else onset
        order = -self.order if backward else self.order
        return when, int(backward), order, -ROLES.index(self.role)


def read(name: str, layer, window: int, first: int, step: int) -> list[Reading]:
    """The readings of a layer since the steps after `first`, up to `step`."""
    observer = layer.statistics
    rows = dict(zip(OPERANDS, _numbers(observer.operands), strict=True))
    if observer.gradient is not None:
        rows["gradient"] = _numbers(observer.gradient)
    calls = max(float(_numbers(observer.clock)[2]), 1.0)
    return [
        Reading(
            layer=name,
            role=role,
            format=observer.recipe.format(role).name,
            scaling=observer.recipe.scaling(role),
            step=step,
            onset=_onset(row[1], calls, first, step),
            order=observer.order,
            statistics=_known(shown(row[HEADER:])),
        )
        for role, row in rows.items()
        if row[0] == window
    ]


def _known(statistics: dict[str, float]) -> dict[str, float]:
    """NaN for what was not measured: no step was due, and there is no scale."""
    if statistics["scale"] > 0:
        return statistics
    known = EVERY_CALL if statistics["amax"] > 0 else EVERY_CALL[-1:]
    return {n: v if n in known else math.nan for n, v in statistics.items()}


def _onset(number: float, calls: float, first: int, step: int) -> int | None:
    """The step of a call; a layer may be called several times in each."""
    if number <= 0:
        return None
    return first + 1 + int((FIRST_ONSET - number) * (step - first) / calls)


def _numbers(variable) -> Any:
    return ops.convert_to_numpy(variable.value)


def set_clock(layer, window: int, due: bool) -> None:
    """Begin a window, or declare the next step of it due."""
    clock = layer.statistics.clock
    calls = _numbers(clock)[2] if due and _numbers(clock)[0] == window else 0.0
    clock.assign([float(window), float(due), calls])
