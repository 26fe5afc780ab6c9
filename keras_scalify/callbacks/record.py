"""Where readings go: a dict of lists, a CSV file, TensorBoard, a few numbers."""

import dataclasses
import math
import statistics
from collections import defaultdict, deque
from typing import Any

from keras_scalify.callbacks.event_file import EventFile
from keras_scalify.callbacks.limits import DRIFT
from keras_scalify.callbacks.reading import Reading
from keras_scalify.callbacks.table_file import TableFile
from keras_scalify.statistics import STATISTICS

SUMMARY = (
    "headroom_bits",
    "underflow_rate",
    "saturation_rate",
    "nonfinite_count",
    "sqnr_db",
)


class Record:
    """Keeps every reading.

    Args:
        log_dir: folder of a TensorBoard event file, or None.
        csv: path of a CSV file, or None.

    Attributes:
        history: column to list, a row for each reading, layer and role.
        summary: the worst of each statistic in SUMMARY, as last read; NaN before.
    """

    def __init__(self, log_dir=None, csv=None):
        self.history: dict[str, list] = {}
        self.summary = {f"worst_{name}": math.nan for name in SUMMARY}
        self._table = None if csv is None else TableFile(csv)
        self._log_dir, self._events = log_dir, None
        self._amaxes: dict = defaultdict(lambda: deque(maxlen=20))

    def open(self) -> None:
        """Begin an event file."""
        if self._log_dir is not None:
            self._events = EventFile(self._log_dir)

    def close(self) -> None:
        """End it."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def add(self, readings: list[Reading], step: int) -> list[Reading]:
        """Keep the readings of one moment; returned with their drift."""
        if not readings:
            return []
        readings = [self._with_drift(reading) for reading in readings]
        rows = [_row(reading) for reading in readings]
        for row in rows:
            for name, value in row.items():
                self.history.setdefault(name, []).append(value)
        if self._table is not None:
            self._table.append(rows)
        if self._events is not None:
            self._events.scalars(step, _tags(readings))
        for name in SUMMARY:
            values = [reading.statistics[name] for reading in readings]
            known = [value for value in values if not math.isnan(value)]
            if known:
                self.summary[f"worst_{name}"] = STATISTICS[name].worst(known)
        return readings

    def _with_drift(self, reading: Reading) -> Reading:
        """The reading with how far its amax is from its usual one, in bits."""
        amaxes = self._amaxes[reading.layer, reading.role]
        amax = reading.statistics["amax"]
        usual = statistics.median(amaxes) if amaxes else 0.0
        amaxes.append(amax)
        bits = math.log2(amax / usual) if amax > 0 and usual > 0 else math.nan
        return dataclasses.replace(
            reading, statistics={**reading.statistics, DRIFT: bits}
        )


def _row(reading: Reading) -> dict[str, Any]:
    names = ("step", "layer", "role", "format")
    return {**{n: getattr(reading, n) for n in names}, **reading.statistics}


def _tags(readings: list[Reading]) -> dict[str, float]:
    return {
        f"{name}/{reading.layer}/{reading.role}": value
        for reading in readings
        for name, value in reading.statistics.items()
        if math.isfinite(value)
    }
