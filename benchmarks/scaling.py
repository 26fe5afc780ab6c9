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


def main(args):
    if args.memory == "kept":
        _steps.keep_freed_memory()
    rows = []
    for name, sizes in SIZES.items():
        ratios, bytes_, dense = {v: [] for v in VARIANTS}, {v: [] for v in VARIANTS}, []
        for size in sizes:
            given, steps = {**BASE, name: size}, {}

            def build(given=given, steps=steps):
                steps.update({v: step_of(v, **given) for v in VARIANTS})
                return steps

            times = _steps.repeated_times(build, args.rounds, args.repeats)
            found = _steps.figures(times, "dense")
            dense.append(found["dense"]["ms"])
            for v in VARIANTS:
                ratios[v].append(found[v]["ratio"])
                bytes_[v].append(memory(steps[v]))
        for v in VARIANTS:
            figures = {
                "slope of time": slope(sizes, np.multiply(dense, ratios[v])),
                "slope of memory": slope(sizes, bytes_[v]),
                "time / dense": ratios[v][-1],
                "memory / dense": bytes_[v][-1] / bytes_["dense"][-1],
            }
            rows.append({"size": f"{name} {sizes[0]} to {sizes[-1]}", "step": v})
            rows[-1] |= figures
            _report.row(rows)
    _report.save("scaling", rows, ("size", "step"), "slope of time")


if __name__ == "__main__":
    main(parser.parse_args())
