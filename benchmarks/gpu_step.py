"""Time of a training step on a GPU with float8 units (H100, H200).

The models of gpu_program.py in mixed_bfloat16, all variants in turns, on random batches
that rotate; medians, and ratios to Keras's bfloat16. JAX and TensorFlow compile the
step, Torch does not. First, one step of a small model is compared with the same on the
CPU, emulated. Takes less than five minutes.

    KERAS_BACKEND=torch ./dev bench gpu_step
    XLA_FLAGS=--xla_gpu_enable_triton_gemm=false ./dev bench gpu_step
    ./dev bench gpu_step --device cpu --scale 32 --rounds 2    # a trial of this script
"""

import argparse
import itertools
import os

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
parser.add_argument("--scale", type=int, default=1, help="divides every size")
parser.add_argument("--rounds", type=int, default=21)
parser.add_argument("--models", nargs="+", default=["mlp", "llama", "gpt"])
if __name__ == "__main__":
    args = parser.parse_args()
    # `./dev` asks JAX for the CPU where it sees no GPU.
    os.environ["JAX_PLATFORMS"] = "cpu" if args.device == "cpu" else "cuda,cpu"
    os.environ.setdefault("KERAS_BACKEND", "jax")

import _models  # noqa: E402  (the backend is chosen above)
import _report  # noqa: E402
import _steps  # noqa: E402
import _timing  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_scalify as ks  # noqa: E402

VARIANTS = ("dense", "keras-float8", "float8", "float8-propagated")
BATCHES = 4
CPU = "cpu"  # on "cpu:0" Keras gives Torch copies of variables (3.15)
SQNR_DB = 30.0  # float32 sums of the same operands, in another order


def gradients(form: str, device: str):
    """The gradients of a small MLP on random data, float32, on a device."""
    ks.config.set_matmul(form)
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).standard_normal((128, 64), dtype="float32")
    with keras.device(device):
        step = _steps.gradient_step(_models.mlp("float8", "float32", 64))
        grads = step(keras.ops.convert_to_tensor(x))[1]
        return [keras.ops.convert_to_numpy(g) for g in grads]


def check(device: str):
    """Raise a ValueError if the device's gradients are not those of the CPU."""
    native, emulated = gradients("native", device), gradients("emulated", CPU)
    for a, b in zip(native, emulated, strict=True):
        noise = np.sum((a.astype("float64") - b) ** 2) / np.sum(
            b.astype("float64") ** 2
        )
        if not noise < 10 ** (-SQNR_DB / 10):
            raise ValueError(f"gradients differ from the CPU's by {noise:.2e}")
    print("gradients equal the CPU's", flush=True)


def step_of(name: str, variant: str, scale: int):
    """A step without arguments, on the next of the batches."""
    model, shape = _models.sized(name, variant, "mixed_bfloat16", scale)
    rng = np.random.default_rng(0)
    batches = itertools.cycle(
        [
            keras.ops.convert_to_tensor(rng.standard_normal(shape), dtype="bfloat16")
            for _ in range(BATCHES)
        ]
    )
    step = _steps.gradient_step(model)
    return lambda: float(step(next(batches))[0])


def main(args):
    rows, backend = [], keras.backend.backend()
    print(backend, _report.machine(), os.environ.get("XLA_FLAGS", ""))
    check("gpu:0" if args.device == "gpu" else CPU)
    ks.config.set_matmul("native")
    for name in args.models:
        steps = {v: step_of(name, v, args.scale) for v in VARIANTS}
        times = _timing.times(steps, args.rounds)
        for variant, figures in _timing.figures(times, "dense").items():
            rows.append(
                {"backend": backend, "model": name, "variant": variant, **figures}
            )
            _report.row(rows)
    _report.save(f"gpu_step-{backend}", rows, ("model", "variant"), "ratio")


if __name__ == "__main__":
    main(args)
