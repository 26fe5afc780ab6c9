"""Time of a training step on a CPU, against Keras's own layers and other libraries.

MLPs of three layers, and the GPT of examples/gpt.py; Adam. Steps of all variants in
turns in one process, medians, and ratios to Keras's own layers in float32, each to the
time of the same turn. JAX and TensorFlow compile the step, Torch does not.

    KERAS_BACKEND=torch ./dev bench cpu_step [--sizes 1024/256 gpt] [--rounds 41]
"""

import argparse
import functools
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import _models  # noqa: E402  (the backend is chosen above)
import _peers  # noqa: E402
import _report  # noqa: E402
import _steps  # noqa: E402
import _timing  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_scalify as ks  # noqa: E402

DEPTH = 3
VARIANTS = {  # name: (model's variant, optimizer)
    "dense": ("dense", keras.optimizers.Adam),
    "keras-float8": ("keras-float8", keras.optimizers.Adam),
    "float8": ("float8", keras.optimizers.Adam),
    "float8-propagated": ("float8-propagated", keras.optimizers.Adam),
    "float8_delayed": ("float8_delayed", keras.optimizers.Adam),
    "float16": ("float16", keras.optimizers.Adam),
    "bfloat16": ("bfloat16", keras.optimizers.Adam),
    "float32": ("float32", keras.optimizers.Adam),
    "float8, ScaledAdam": ("float8", ks.optimizers.ScaledAdam),
    "dense, ScaledAdam": ("dense", ks.optimizers.ScaledAdam),
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
SIZES = ["512/128", "1024/256", "2048/256", "gpt"]  # width/batch of an MLP
parser.add_argument("--sizes", nargs="+", default=SIZES)
parser.add_argument("--memory", choices=("kept", "returned"), default="kept")
parser.add_argument("--rounds", type=int, default=21)
parser.add_argument("--repeats", type=int, default=3)
parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))


def mlp_steps(size: str, variants):
    """The steps of every variant and peer at one size, "width/batch"."""
    width, batch = map(int, size.split("/"))
    x, y = np.random.default_rng(0).standard_normal((2, batch, width), dtype="float32")
    found = {}
    for name in variants:
        variant, optimizer = VARIANTS[name]
        model = _models.mlp(variant, "float32", width, "relu", DEPTH)
        loss = keras.losses.MeanSquaredError()
        found[name] = _steps.keras_step(model, optimizer(1e-3), loss, x, y)
    peers = _peers.PEERS.get(keras.backend.backend(), lambda *_: {})
    return {**found, **peers(x, y, width, DEPTH)}


def gpt_steps(variants):
    """The steps of every variant of the GPT."""
    found = {}
    for name in variants:
        variant, optimizer = VARIANTS[name]
        model, ids = _models.gpt_model(variant)
        found[name] = _models.gpt_step(model, ids, optimizer(1e-3))
    return found


def main(args):
    if args.memory == "kept":
        _timing.keep_freed_memory()
    backend, rows = keras.backend.backend(), []
    for size in args.sizes:
        build = gpt_steps if size == "gpt" else functools.partial(mlp_steps, size)
        times = _timing.repeated_times(
            lambda build=build: build(args.variants), args.rounds, args.repeats
        )
        for name, figures in _timing.figures(times, args.variants[0]).items():
            rows.append({"backend": backend, "size": size, "step": name, **figures})
            _report.row(rows)
    _report.save(f"cpu_step-{backend}", rows, ("size", "step"), "ratio")


if __name__ == "__main__":
    main(parser.parse_args())
