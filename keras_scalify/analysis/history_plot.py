"""The picture of ScaleMonitor.history."""

import math
import pathlib
from typing import Any

import numpy as np

from keras_scalify.formats import FORMATS
from keras_scalify.recipes import ROLES

# Statistic: (title, colour map, limits of the colours; None: those of the data).
MAPS: dict[str, tuple[str, str, tuple]] = {
    "rms": ("rms, log2", "viridis", (None, None)),
    "headroom_bits": ("headroom, bits", "RdYlGn", (-4, 4)),
    "underflow_rate": ("underflow rate", "magma_r", (0, 0.2)),
    "saturation_rate": ("saturation rate", "magma_r", (0, 0.01)),
    "nonfinite_count": ("non-finite entries, log10(1 + n)", "magma_r", (0, 4)),
    "sqnr_db": ("SQNR, dB", "RdYlGn", (10, 40)),
}
TRANSFORMS: dict[str, Any] = {
    "rms": lambda v: math.log2(v) if v > 0 else math.nan,
    "nonfinite_count": lambda v: math.log10(1 + v),
    "sqnr_db": lambda v: min(v, 60.0),
    "headroom_bits": lambda v: min(v, 60.0),
}


def plot_history(history: dict[str, list], path) -> None:
    """Save the picture. See ScaleMonitor.plot."""
    import matplotlib.figure

    if not history:
        raise ValueError("there is no reading to plot: train the model first")
    rows = len({*zip(history["layer"], history["role"], strict=True)})
    height = max(2.2, 0.14 * rows + 1.0)
    figure = matplotlib.figure.Figure(
        figsize=(15, 2 * height + 3.5), layout="constrained"
    )
    grid = figure.add_gridspec(3, 3, height_ratios=[height, height, 3.5])
    for i, name in enumerate(MAPS):
        axes = figure.add_subplot(grid[divmod(i, 3)])
        _heat_map(axes, history, name, with_labels=i % 3 == 0)
    for i, role in enumerate(ROLES):
        _bands(figure.add_subplot(grid[2, i]), history, role)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def series(history: dict[str, list], name: str) -> tuple[list, list, Any]:
    """A statistic as a table.

    Returns:
        (rows, steps, values): rows are (layer, role), input and kernel of each layer in
        order and then the gradients; values is (len(rows), len(steps)), NaN where there
        is no reading.
    """
    keys = [*dict.fromkeys(zip(history["layer"], history["role"], strict=True))]
    rows = sorted(keys, key=lambda key: key[1] == "gradient")
    steps = sorted(set(history["step"]))
    values = np.full((len(rows), len(steps)), np.nan)
    columns = (history[n] for n in ("layer", "role", "step", name))
    for layer, role, step, value in zip(*columns, strict=True):
        values[rows.index((layer, role)), steps.index(step)] = value
    return rows, steps, values


def _heat_map(axes, history, name, with_labels):
    title, colors, (low, high) = MAPS[name]
    rows, steps, values = series(history, name)
    values = np.vectorize(TRANSFORMS.get(name, float))(values)
    edges = np.arange(len(steps) + 1) - 0.5
    image = axes.pcolormesh(
        edges,
        np.arange(len(rows) + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colors,
        vmin=low,
        vmax=high,
    )
    axes.figure.colorbar(image, ax=axes, extend="both", pad=0.01)
    axes.set_facecolor("lightgray")
    ticks = [*range(0, len(steps), max(1, len(steps) // 6))]
    axes.set_xticks(ticks, [steps[t] for t in ticks])
    axes.set(title=title, xlabel="step")
    labels = [f"{layer} · {role}" for layer, role in rows] if with_labels else []
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()


def _bands(axes, history, role):
    """Scales of one role over the steps, rms and amax, and what the formats hold."""
    rows, steps, scales = series(history, "scale")
    amax, rms = (series(history, name)[2] for name in ("amax", "rms"))
    names = dict(zip(history["role"], history["format"], strict=True))
    kept = [i for i, (_, r) in enumerate(rows) if r == role]
    axes.set(title=f"{role}: {names.get(role, 'not seen')}", xlabel="step")
    if not kept:
        return
    format = FORMATS[names[role]]
    colors = _colors(len(kept))
    for color, i in zip(colors, kept, strict=True):
        low = scales[i] * 2.0**format.min_exponent
        axes.fill_between(steps, low, scales[i] * format.max, color=color, alpha=0.04)
        axes.plot(steps, scales[i], color=color, linewidth=1.2)
        axes.plot(steps, rms[i], color=color, linewidth=0.8, linestyle=":")
        axes.plot(steps, amax[i], color=color, linewidth=0.8, linestyle="--")
    axes.set_yscale("log", base=2)
    styles = (("scale", "-"), ("rms", ":"), ("amax", "--"))
    for label, style in styles:
        axes.plot([], [], color="black", linestyle=style, label=label)
    axes.fill_between([], [], [], color="gray", alpha=0.3, label="normal numbers")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    axes.set_ylabel("magnitude")


def _colors(count: int) -> Any:
    """So many colours along one map, from the first layer to the last."""
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
