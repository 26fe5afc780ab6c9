"""Time to trace and to compile a training step of examples/gpt.py, JAX.

./dev bench compile_time [--depth 4]
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import _models  # noqa: E402  (the backend is chosen above)
import _report  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

VARIANTS = ("dense", "float8", "float8-propagated")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--rounds", type=int, default=5)


def compile_seconds(variant: str, depth: int) -> float:
    """Seconds from a built model to a compiled step."""
    model, ids = _models.gpt_model(variant, f"--depth={depth}")
    start = time.perf_counter()
    _models.gpt_step(model, ids, keras.optimizers.Adam())
    return time.perf_counter() - start


def main(args):
    times = {v: [] for v in VARIANTS}
    for _ in range(args.rounds):
        for variant in VARIANTS:
            times[variant].append(compile_seconds(variant, args.depth))
    rows = []
    for variant in VARIANTS:
        seconds = float(np.median(times[variant]))
        ratio = seconds / float(np.median(times[VARIANTS[0]]))
        rows.append({"variant": variant, "s": seconds, "ratio": ratio})
        _report.row(rows)
    _report.save("compile_time", rows, ("variant",), "ratio")


if __name__ == "__main__":
    main(parser.parse_args())
