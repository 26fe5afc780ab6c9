"""The picture of a ScaleReport."""

import math
import pathlib
from typing import Any

from keras_scalify.formats import FORMATS

PANELS = {"forward": ("input", "kernel"), "backward": ("gradient",)}
NORMAL = "#d9efd9"
COLORS = {"input": "tab:blue", "kernel": "tab:purple", "gradient": "tab:orange"}


def plot_report(records: list[dict[str, Any]], path) -> None:
    """Save the picture. See ScaleReport.plot."""
    import matplotlib.figure

    if not records:
        raise ValueError("there is no operand to plot: no layer has a product")
    recipe = records[0]["recipe"]
    kept = [row for row in records if row["recipe"] == recipe]
    names = [*dict.fromkeys(row["layer"] for row in kept)]
    height = max(3.0, 0.3 * len(names) + 2.2)
    figure = matplotlib.figure.Figure(figsize=(13, height), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (title, roles) in zip(panels, PANELS.items(), strict=True):
        rows = [row for row in kept if row["role"] in roles]
        _panel(axes, rows, names)
        formats = " and ".join(dict.fromkeys(row["format"] for row in rows))
        axes.set(title=f"{title}: {formats}", xlabel="log2 of the magnitude")
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    _legend(figure, kept)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _panel(axes, rows, names):
    shift = {"input": -0.17, "kernel": 0.17, "gradient": 0.0}
    for row in rows:
        y = names.index(row["layer"]) + shift[row["role"]]
        _limits(axes, row, y)
        color = COLORS[row["role"]]
        if row["amax"] > 0:
            low, high = _log2(row["rms"]), _log2(row["amax"])
            axes.plot([low, high], [y, y], color=color, linewidth=1.5)
            axes.plot(high, y, "|", color=color, markersize=9, markeredgewidth=2)
            axes.plot(low, y, "o", color=color, markersize=6)
        if row["predicted_rms"] > 0:
            predicted = _log2(row["predicted_rms"])
            axes.plot(predicted, y, "D", mfc="none", mec="black", markersize=7)
    axes.grid(axis="x", linewidth=0.3)
    axes.use_sticky_edges = False
    axes.margins(x=0.03)
    axes.set_ylim(-0.6, len(names) - 0.4)


def _limits(axes, row, y):
    """What the format holds at this scale: subnormal and normal numbers, then no more.

    A format as wide as float32 has no limit within sight.
    """
    format = FORMATS[row["format"]]
    if not format.is_scaled:
        return
    scale = _log2(row["scale"])
    low, normal = scale + format.quantum_exponent, scale + format.min_exponent
    high = scale + _log2(format.max)
    axes.barh(y, normal - low, 0.3, low, color="khaki", linewidth=0)
    axes.barh(y, high - normal, 0.3, normal, color=NORMAL, linewidth=0)
    axes.plot([high, high], [y - 0.15, y + 0.15], color="firebrick", linewidth=2)


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else math.nan


def _legend(figure, rows):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [
        Line2D([], [], color=COLORS[role], marker="o", label=f"{role}: rms to amax |")
        for role in COLORS
    ]
    if any(row["predicted_rms"] > 0 for row in rows):
        style = {"marker": "D", "linestyle": "", "mfc": "none", "mec": "black"}
        marks.append(Line2D([], [], label="rms as propagated", **style))
    marks.append(Patch(color=NORMAL, label="normal numbers"))
    marks.append(Patch(color="khaki", label="subnormal: fewer bits"))
    marks.append(Line2D([], [], color="firebrick", linewidth=2, label="overflow"))
    figure.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=8)
