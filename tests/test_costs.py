"""Costs that do not depend on the machine: bytes kept, and an H100's programs.

The programs need the extra gpu-compile; CI installs it.
"""

import importlib.util
import math
import sys
from pathlib import Path

import keras
import pytest

import keras_scalify as ks
from tests.layers import gpt

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
BACKEND = keras.backend.backend()
LIBRARY_CALLS = "--xla_gpu_enable_triton_gemm=false"
compiles_for_h100 = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None, reason="needs gpu-compile"
)


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setattr(ks.config, "_matmul", "native")
    monkeypatch.setenv("XLA_FLAGS", LIBRARY_CALLS)


def kept_bytes(precision):
    """What the backward pass of a GPT of two blocks keeps, arguments aside."""
    from jax._src.ad_checkpoint import saved_residuals  # prints in its public form

    model = gpt.build("mixed_bfloat16", precision, width=64, depth=2, context=32)
    ids = gpt.batch(model, 4)[0]
    fixed = [v.value for v in model.non_trainable_variables]

    def loss(trainable):
        y = model.stateless_call(trainable, fixed, ids, training=True)[0]
        return keras.ops.mean(keras.ops.square(y))

    kept = saved_residuals(loss, [v.value for v in model.trainable_variables])
    return sum(
        math.prod(array.shape) * array.dtype.itemsize
        for array, source in kept
        if "argument" not in source
    )


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's list of residuals")
@pytest.mark.parametrize("precision", ["float8", "float8-propagated"])
def test_bytes_kept_for_the_backward_pass(precision, native, monkeypatch):
    kept = kept_bytes(precision)
    monkeypatch.setattr(ks.config, "_matmul", "emulated")  # Keras's layers exactly
    assert kept <= 0.6 * kept_bytes("bfloat16")


@pytest.mark.skipif(BACKEND != "jax", reason="compiles JAX's program")
def test_length_of_a_compiled_step():
    """What scales need is not copied into every fusion: that is what compiles long."""
    import _models

    def lines(variant):
        sizes = "--depth=2", "--width=64", "--context=32"
        model, ids = _models.gpt_model(variant, *sizes)
        step = _models.gpt_step(model, ids, keras.optimizers.SGD())
        return len(step.compiled.as_text().splitlines())

    assert lines("float8-propagated") < 2.5 * lines("dense")


@compiles_for_h100
@pytest.mark.skipif(BACKEND != "jax", reason="compiles JAX's program")
def test_program_of_an_mlp_on_an_h100(native):
    import gpu_program

    variants = "dense", "keras-float8", "float8", "float8-propagated"
    dense, stock, current, travels = (
        gpu_program.program("mlp", variant).figures() for variant in variants
    )
    for figures in current, travels:
        assert (figures["float8 matmuls"], figures["other matmuls"]) == (5, 0)
    limits = {  # relative to Keras's float8, and to its bfloat16
        "modelled ms": ((0.95, 0.64), (0.89, 0.60)),
        "MiB temporary": ((0.88, 1.0), (0.65, 1.0)),
        "MiB moved": ((1.0, 1.08), (1.0, 0.97)),
    }
    for name, pairs in limits.items():
        for figures, (to_stock, to_dense) in zip(
            (current, travels), pairs, strict=True
        ):
            # Ratios are stated in two digits.
            assert round(figures[name] / stock[name], 2) <= to_stock, name
            assert round(figures[name] / dense[name], 2) <= to_dense, name


@compiles_for_h100
@pytest.mark.skipif(BACKEND != "jax", reason="compiles JAX's program")
def test_projections_of_a_block_are_float8_on_an_h100(native):
    import gpu_program

    figures = gpu_program.program("gpt", "float8-propagated", scale=4).figures()
    # Six projections, three products each; scores and values are in bfloat16.
    assert (figures["float8 matmuls"], figures["other matmuls"]) == (18, 6)


@compiles_for_h100
@pytest.mark.skipif(BACKEND != "jax", reason="compiles JAX's program")
def test_float8_reaches_the_products_of_triton(native, monkeypatch):
    import gpu_program

    monkeypatch.setenv("XLA_FLAGS", "")
    program = gpu_program.program("mlp", "float8-propagated", triton=True, scale=4)
    assert program.figures()["float8 matmuls"] == 5


@compiles_for_h100
@pytest.mark.skipif(BACKEND != "tensorflow", reason="compiles TensorFlow's program")
@pytest.mark.parametrize(("name", "float8"), [("mlp", 5), ("gpt", 18)])
def test_tensorflow_products_are_float8_on_an_h100(name, float8, native):
    import _h100
    import _models
    import _steps
    import tensorflow as tf

    model, shape = _models.sized(name, "float8-propagated", "mixed_bfloat16", scale=16)
    step, x = _steps.gradient_step(model), tf.zeros(shape, tf.bfloat16)
    text = step.experimental_get_compiler_ir(x)(stage="hlo")
    assert _h100.compile_hlo(text).figures()["float8 matmuls"] == float8
