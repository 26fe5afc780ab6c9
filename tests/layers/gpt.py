"""A tiny model of examples/gpt.py, on text that repeats."""

import argparse
import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np

import keras_scalify as ks

PATH = Path(__file__).parents[2] / "examples" / "gpt.py"


def example():
    """The example's module."""
    if "gpt_example" not in sys.modules:
        spec = importlib.util.spec_from_file_location("gpt_example", PATH)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["gpt_example"] = module
    return sys.modules["gpt_example"]


def build(policy="float32", precision="float8-propagated", **sizes):
    """The model, not compiled, under a dtype policy."""
    sizes = {"width": 16, "depth": 1, "heads": 2, "context": 12, **sizes}
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        args = argparse.Namespace(precision=precision, weight_dtype=None, **sizes)
        return example().build(args)
    finally:
        keras.config.set_dtype_policy(before)


def batch(model, count=8, seed=0):
    """Stretches of the example's own source, and the bytes that follow."""
    data = np.frombuffer(PATH.read_bytes(), np.uint8)
    context = model.input_shape[1]
    rng = np.random.default_rng(seed)
    return example().windows(data, count, context, rng)


def train(model, steps, optimizer=None, count=8):
    """The losses of so many steps."""
    jit = keras.backend.backend() == "jax"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer or ks.optimizers.ScaledAdam(0.01)
    model.compile(optimizer, loss, jit_compile=jit)
    return [
        float(model.train_on_batch(*batch(model, count, seed=i))) for i in range(steps)
    ]
