"""Training steps as XLA would run them on an H100, without a GPU: kernels and bytes.

Compiles the loss and the gradients of each model in mixed_bfloat16 and tabulates what
_h100.py reads from the program, and each ratio to Keras's bfloat16. `--triton` lets
XLA fuse matmuls into Triton's kernels, its default, in place of library calls.

    ./dev bench gpu_program [--models mlp llama gpt] [--triton]
"""

import argparse
import importlib.util
import os

MODELS = ("mlp", "llama", "gpt")
VARIANTS = ("dense", "keras-float8", "float8", "float8-propagated")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
parser.add_argument("--triton", action="store_true")
parser.add_argument("--scale", type=int, default=1, help="divides every size")
if __name__ == "__main__":
    args = parser.parse_args()
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    if not args.triton:
        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_triton_gemm=false"

import _h100  # noqa: E402  (the backend is chosen above)
import _models  # noqa: E402
import _peers  # noqa: E402
import _report  # noqa: E402
import _steps  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import keras_scalify as ks  # noqa: E402


def program(name: str, variant: str, triton: bool = False, scale: int = 1):
    """The program of a model's step."""
    ks.config.set_matmul("native")
    model, shape = _models.sized(name, variant, "mixed_bfloat16", scale)
    weights = jax.tree.map(
        lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), _steps.weights(model)
    )
    x = jax.ShapeDtypeStruct(shape, "bfloat16")
    step = _steps.loss_and_gradients(model)
    return _h100.compile_step(step, *weights, x, triton=triton)


def flax_program(product: str, triton: bool = False, scale: int = 1):
    """The same for flax's layers, of which the MLP is made."""
    width = 4096 // scale
    model = _peers.flax_mlp(product, width, 2, "gelu", "bfloat16")
    x = jax.ShapeDtypeStruct((8192 // scale, width), "bfloat16")
    state = jax.eval_shape(model.init, jax.random.key(0), x)

    def loss(state, x):
        return jnp.mean(jnp.square(model.apply(state, x).astype("float32")))

    return _h100.compile_step(jax.value_and_grad(loss), state, x, triton=triton)


def programs(name: str, triton: bool, scale: int):
    """The program of every variant of a model, by name, one after the other."""
    for variant in VARIANTS:
        yield variant, program(name, variant, triton, scale)
    if name == "mlp" and importlib.util.find_spec("flax"):
        for product in _peers.FLAX_PRODUCTS[1:]:
            yield f"flax-{product}", flax_program(product, triton, scale)


def main(args):
    rows = []
    for name in args.models:
        base = None
        for variant, compiled in programs(name, args.triton, args.scale):
            figures = compiled.figures()
            base = base or figures
            ratios = {
                f"{key} / dense": figures[key] / base[key]
                for key in ("MiB moved", "MiB temporary", "modelled ms")
            }
            rows.append({"model": name, "variant": variant, **figures, **ratios})
            _report.row(rows)
    _report.save("gpu_program", rows, ("model", "variant"), "modelled ms / dense")


if __name__ == "__main__":
    main(args)
