"""The pictures have the rows, axes and labels that they should have."""

import math

import matplotlib.figure
import pytest

import keras_scalify as ks
from tests.callbacks.monitored import data, net, train


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is saved."""
    kept, save = [], matplotlib.figure.Figure.savefig

    def savefig(self, path, **kwargs):
        kept.append(self)
        save(self, path, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", savefig)
    return kept


def maps_of(figure):
    """The axes with a heat map, by title."""
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def test_history(figures, tmp_path):
    monitor, path = ks.callbacks.ScaleMonitor(every=2), tmp_path / "a" / "scales.png"
    train(net(3), monitor, steps=7)
    monitor.plot(path)
    assert path.stat().st_size > 20_000
    axes = maps_of(figures[0])
    maps = [t for t in axes if "float8" not in t]
    assert len(maps) == 6 and any("SQNR" in title for title in maps)
    first = axes["rms, log2"]
    labels = [t.get_text() for t in first.get_yticklabels()]
    assert labels[:2] == ["layer_0 · input", "layer_0 · kernel"] and len(labels) == 9
    assert [t.get_text() for t in first.get_xticklabels()] == ["1", "3", "5", "7"]
    for title in maps:
        (mesh,) = axes[title].collections
        assert mesh.get_array().size == 9 * 4 and axes[title].get_xlabel() == "step"
    values = first.collections[0].get_array().reshape(9, 4)
    assert values[0, 0] == pytest.approx(math.log2(monitor.history["rms"][0]))
    scales = axes["input: float8_e4m3fn"]
    assert scales.get_yscale() == "log" and scales.get_xlabel() == "step"
    # Scale, rms and amax of three layers, and the three lines of the legend.
    assert len([line for line in scales.lines if len(line.get_xdata()) == 4]) == 9
    assert {t.get_text() for t in scales.get_legend().texts} >= {"scale", "rms", "amax"}


@pytest.mark.parametrize("propagate", [False, True])
def test_report(figures, tmp_path, propagate):
    model, path = net(3, propagate=propagate), tmp_path / "report.png"
    report = ks.analysis.scale_report(model, data(1)[0], path=path, verbose=False)
    assert path.stat().st_size > 10_000
    forward, backward = figures[0].axes
    assert forward.get_title() == "forward: float8_e4m3fn"
    assert backward.get_title() == "backward: float8_e5m2"
    names = [f"layer_{i}" for i in range(3)]
    assert [t.get_text() for t in forward.get_yticklabels()] == names
    assert all("log2" in axes.get_xlabel() for axes in (forward, backward))
    marks = [line for line in backward.lines if line.get_marker() == "o"]
    sizes = [line.get_xdata()[0] for line in marks]
    truth = [r["rms"] for r in report.records() if r["role"] == "gradient"]
    assert sizes == pytest.approx([math.log2(v) for v in truth])
    predicted = [line for line in forward.lines if line.get_marker() == "D"]
    assert len(predicted) == (6 if propagate else 0)
    # Subnormal and normal numbers of each of six operands.
    assert len(forward.patches) == 12
    legend = {t.get_text() for t in figures[0].legends[0].texts}
    assert "overflow" in legend and ("rms as propagated" in legend) == propagate
