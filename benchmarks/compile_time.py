"""Time to trace and to compile a training step of examples/gpt.py, JAX.

./dev bench compile_time [--depth 4]
"""

import argparse
import os
import pathlib
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import _report  # noqa: E402  (the backend is chosen above)
import _steps  # noqa: E402
import gpt  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

PRECISIONS = ("float32", "float8", "float8-propagated")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--rounds", type=int, default=3)


def compile_seconds(precision: str, depth: int) -> float:
    """Seconds from a built model to a compiled step."""
    args = gpt.parser.parse_args(["--precision", precision, "--depth", str(depth)])
    model = gpt.build(args)
    ids = np.zeros((args.batch, args.context), "int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    start = time.perf_counter()
    _steps.keras_step(model, keras.optimizers.Adam(), loss, ids, ids)
    return time.perf_counter() - start


def main(args):
    times = {p: [] for p in PRECISIONS}
    for _ in range(args.rounds):
        for precision in PRECISIONS:
            times[precision].append(compile_seconds(precision, args.depth))
    rows = []
    for precision in PRECISIONS:
        seconds = float(np.median(times[precision]))
        ratio = seconds / float(np.median(times[PRECISIONS[0]]))
        rows.append({"precision": precision, "s": seconds, "ratio": ratio})
        _report.row(rows)
    _report.save("compile_time", rows, ("precision",), "ratio")


if __name__ == "__main__":
    main(parser.parse_args())
