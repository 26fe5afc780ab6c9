"""What each benchmark leaves: a printed table, a JSON file and a picture."""

import json
import pathlib
import platform
import shutil
import subprocess

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

OUTPUTS = pathlib.Path("outputs")


def text(value) -> str:
    """A cell: counts whole, other numbers in four digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def row(rows: list[dict]) -> None:
    """Print the last row, under a header if it is the first."""
    keys = list(rows[-1])
    if len(rows) == 1:
        print("|", " | ".join(keys), "|")
        print("|", " | ".join("---" for _ in keys), "|")
    print("|", " | ".join(text(rows[-1][k]) for k in keys), "|", flush=True)


def machine() -> str:
    """The processors and GPUs that this runs on, as far as the system says."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    found = [f"{len(names)} x {names[0]}" if names else platform.processor()]
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, check=False)
        found += gpus.stdout.split("\n")[:-1]
    return ", ".join(found)


def save(name: str, rows: list[dict], labels: tuple[str, ...], figure: str) -> None:
    """Write rows as outputs/bench-NAME.json, and a bar for each row's figure as PNG."""
    OUTPUTS.mkdir(exist_ok=True)
    path = OUTPUTS / f"bench-{name}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    picture, axes = plt.subplots(
        figsize=(7, 1 + 0.25 * len(rows)), layout="constrained"
    )
    names = [" ".join(str(r[label]) for label in labels) for r in rows]
    axes.barh(range(len(rows)), [r[figure] for r in rows], tick_label=names)
    axes.invert_yaxis()
    axes.set(xlabel=figure, title=name)
    picture.savefig(path.with_suffix(".png"), dpi=150)
    print(f"saved {path} and {path.with_suffix('.png')}")
