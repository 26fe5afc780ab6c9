"""ScaleReport: the result of scale_report, as rows, table and picture."""

import dataclasses
import math
from typing import Any

from keras_scalify.analysis.report_plot import plot_report

SIZES = {"amax": "amax", "rms": "rms", "predicted_rms": "predicted"}
COMPARED = {  # statistic: (heading, format)
    "underflow_rate": ("underflow", "{:9.2%}"),
    "saturation_rate": ("saturated", "{:9.2%}"),
    "sqnr_db": ("SQNR dB", "{:7.1f}"),
}


@dataclasses.dataclass(frozen=True)
class ScaleReport:
    """What scale_report found; printed, a table.

    Attributes:
        rows: dict of lists of the same length, one entry for each layer, role and
            recipe: `pandas.DataFrame(report.rows)`. recipe is "own" for the layer's.
            predicted_rms is the root of the propagated mean square, NaN where none was.
    """

    rows: dict[str, list]

    def records(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        columns = zip(*self.rows.values(), strict=True)
        return [dict(zip(self.rows, row, strict=True)) for row in columns]

    def __str__(self) -> str:
        if not self.rows:
            return "no layer has a product"
        lines: dict[tuple, dict] = {}
        for row in self.records():
            lines.setdefault((row["layer"], row["role"]), {})[row["recipe"]] = row
        recipes = [*dict.fromkeys(self.rows["recipe"])]
        wide = max([5, *(len(layer) for layer, _ in lines)])
        headings = " ".join(heading for heading, _ in COMPARED.values())
        first = f"{'':{wide + 9}} {'log2':>29}"
        second = f"{'layer':{wide}} {'role':8} " + " ".join(
            f"{name:>9}" for name in SIZES.values()
        )
        table = [
            first + "".join(f" | {name:{len(headings)}}" for name in recipes),
            second + f" | {headings}" * len(recipes),
        ]
        for (layer, role), found in lines.items():
            sizes = " ".join(_log2(next(iter(found.values()))[n]) for n in SIZES)
            cells = (_cells(found.get(name)) for name in recipes)
            table.append(f"{layer:{wide}} {role:8} {sizes} | {' | '.join(cells)}")
        return "\n".join(table)

    def plot(self, path) -> None:
        """Save a picture: every operand on a log2 axis, against what its format holds.

        Args:
            path: of the file; its suffix gives the format. Needs matplotlib.
        """
        plot_report(self.records(), path)


def _log2(value: float) -> str:
    return f"{math.log2(value):9.1f}" if value > 0 else f"{'-':>9}"


def _cells(row: dict[str, Any] | None) -> str:
    pairs = ((heading, text, name) for name, (heading, text) in COMPARED.items())
    return " ".join(
        (text.format(row[name]) if row else "-").rjust(len(heading))
        for heading, text, name in pairs
    )
