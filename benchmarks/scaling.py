"""How step time and memory grow with width, depth and batch, scaled layers and Keras's.

Doubles one size at a time and fits the slope of log(time) and of log(memory) over log
(size). Memory is XLA's own figure of the compiled step: arguments, results and scratch.

    ./dev bench scaling [--rounds 21]
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import _models  # noqa: E402  (the backend is chosen above)
import _report  # noqa: E402
import _steps  # noqa: E402
import _timing  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

VARIANTS = ("dense", "float8", "float8-propagated")
BASE = {"width": 512, "depth": 3, "batch": 256}
SIZES = {
    "width": (512, 1024, 2048),
    "depth": (4, 8, 16, 32),
    "batch": (256, 512, 1024, 2048),
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--memory", choices=("kept", "returned"), default="kept")
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--repeats", type=int, default=3)


def step_of(variant: str, width: int, depth: int, batch: int):
    """A step of an MLP with plain gradient descent."""
    x, y = np.random.default_rng(0).standard_normal((2, batch, width), dtype="float32")
    model = _models.mlp(variant, "float32", width, "relu", depth)
    loss = keras.losses.MeanSquaredError()
    return _steps.keras_step(model, keras.optimizers.SGD(1e-3), loss, x, y)


def memory(step) -> int:
    """Bytes that the compiled step needs."""
    used = step.compiled.memory_analysis()
    return (
        used.argument_size_in_bytes
        + used.output_size_in_bytes
        - used.alias_size_in_bytes
        + used.temp_size_in_bytes
    )


def slope(sizes, figures) -> float:
    """The exponent p of figures that grow as size**p, by least squares of the logs."""
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def measure(sizes: dict, args):
    """At one size: milliseconds of Dense, and each variant's ratio to it and bytes."""
    steps = {}

    def build():
        steps.update({v: step_of(v, **sizes) for v in VARIANTS})
        return steps

    times = _timing.repeated_times(build, args.rounds, args.repeats)
    found = _timing.figures(times, VARIANTS[0])
    ratios = {v: found[v]["ratio"] for v in VARIANTS}
    return found[VARIANTS[0]]["ms"], ratios, {v: memory(steps[v]) for v in VARIANTS}


def main(args):
    if args.memory == "kept":
        _timing.keep_freed_memory()
    rows = []
    for name, sizes in SIZES.items():
        measured = [measure({**BASE, name: size}, args) for size in sizes]
        dense, ratios, used = zip(*measured, strict=True)
        for v in VARIANTS:
            of_dense, bytes_ = [r[v] for r in ratios], [u[v] for u in used]
            figures = {
                "slope of time": slope(sizes, np.multiply(dense, of_dense)),
                "slope of memory": slope(sizes, bytes_),
                "time / dense": of_dense[-1],
                "memory / dense": bytes_[-1] / used[-1][VARIANTS[0]],
            }
            rows.append({"size": f"{name} {sizes[0]} to {sizes[-1]}", "step": v})
            rows[-1] |= figures
            _report.row(rows)
    _report.save("scaling", rows, ("size", "step"), "slope of time")


if __name__ == "__main__":
    main(parser.parse_args())
