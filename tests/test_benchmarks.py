"""Benchmarks run from end to end, at small sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras

ROOT = Path(__file__).parents[1]
BACKEND = keras.backend.backend()


def run(name, arguments, folder):
    """The rows that a benchmark saves."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *arguments.split()]
    subprocess.run(command, cwd=folder, env=env, check=True)
    (saved,) = (folder / "outputs").glob(f"bench-{name}*.json")
    assert saved.with_suffix(".png").exists()
    return json.loads(saved.read_text())["rows"]


def test_cpu_step(tmp_path):
    arguments = "--sizes 32/16 --rounds 1 --variants dense float8-propagated"
    rows = run("cpu_step", arguments, tmp_path)
    assert [row["step"] for row in rows][:2] == ["dense", "float8-propagated"]
    assert rows[0]["ratio"] == 1 and all(row["ms"] > 0 for row in rows)


def test_gpu_step_on_a_cpu(tmp_path):
    arguments = "--device cpu --scale 32 --rounds 1 --models mlp"
    rows = run("gpu_step", arguments, tmp_path)
    assert [row["variant"] for row in rows] == [
        "dense",
        "keras-float8",
        "float8",
        "float8-propagated",
    ]
