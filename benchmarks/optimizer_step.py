"""Time and memory of one optimizer step on a kernel, by how its moments rest.

Keras's Adam and ScaledAdam take turns in one process; the ratios are of medians. The
step is compiled on JAX and TensorFlow (XLA) and eager on Torch. Temporary memory is
XLA's own figure (JAX only).

    KERAS_BACKEND=torch ./dev bench optimizer_step --size 2048
"""

import argparse
import statistics
import time

import keras
import numpy as np

import keras_scalify as ks

OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(1e-3),
    **{
        f"ScaledAdam {name}": lambda name=name: ks.optimizers.ScaledAdam(
            1e-3, state_dtype=name
        )
        for name in ("float32", "float16", "bfloat16", "float8")
    },
}


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args()


def jax_step(optimizer, variable, gradient):
    """A function that runs one step, and the temporary bytes of its program."""
    import jax

    step = jax.jit(optimizer.stateless_apply, donate_argnums=(0, 2))
    state = [v.value for v in optimizer.variables], [variable.value]
    gradient = jax.numpy.asarray(gradient)
    program = step.lower(state[0], [gradient], state[1]).compile()

    def run():
        nonlocal state
        weights, slots = program(state[0], [gradient], state[1])
        state = jax.block_until_ready((slots, weights))

    return run, program.memory_analysis().temp_size_in_bytes


def tensorflow_step(optimizer, variable, gradient):
    import tensorflow as tf

    gradient = tf.convert_to_tensor(gradient)

    @tf.function(jit_compile=True)
    def step():
        optimizer.apply([gradient], [variable])
        return tf.reduce_sum(optimizer.iterations)

    return lambda: step().numpy(), None


def torch_step(optimizer, variable, gradient):
    import torch

    gradient = torch.as_tensor(gradient)

    def step():
        with torch.no_grad():
            optimizer.apply([gradient], [variable])

    return step, None


STEPS = {"jax": jax_step, "tensorflow": tensorflow_step, "torch": torch_step}


def prepared(optimizer, size):
    rng = np.random.default_rng(0)
    variable = keras.Variable(rng.normal(size=(size, size)).astype("float32"))
    optimizer.build([variable])
    gradient = rng.normal(size=(size, size)).astype("float32") * 1e-3
    return STEPS[keras.backend.backend()](optimizer, variable, gradient)


def main():
    args = options()
    steps = {name: prepared(make(), args.size) for name, make in OPTIMIZERS.items()}
    times = {name: [] for name in steps}
    for repeat in range(args.repeats + 2):
        for name, (run, _) in steps.items():
            start = time.perf_counter()
            run()
            if repeat >= 2:
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times["Adam"])
    base_bytes = steps["Adam"][1]
    print(f"{keras.backend.backend()}, {args.size} x {args.size}")
    print(f"{'':22}{'ms':>8}{'ratio':>8}{'temporary MiB':>15}")
    for name, (_, temporary) in steps.items():
        median = statistics.median(times[name])
        memory = "" if base_bytes is None else f"{temporary / 2**20:15.1f}"
        print(f"{name:22}{median * 1e3:8.1f}{median / base:8.2f}{memory}")


if __name__ == "__main__":
    main()
