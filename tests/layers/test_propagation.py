"""Scales travel through whole models: what they are, and what is never measured."""

import collections
import re

import keras
import numpy as np
import pytest

import keras_scalify as ks
from keras_scalify import backend
from keras_scalify.ops import quantized_product
from tests.gradients import pull_back, pull_back_program
from tests.layers import gpt
from tests.layers.layer_cases import normal

BACKEND = keras.backend.backend()
E4M3, E5M2 = "f8E4M3FN", "f8E5M2"


@pytest.fixture
def scalars(monkeypatch):
    """The dtypes of all scalars that go into a rule or come back through one."""
    seen, original = [], backend.custom_vjp

    def note(tensors):
        shapes = [t for t in tensors if len(t.shape) == 0]
        seen.extend(keras.backend.standardize_dtype(t.dtype) for t in shapes)

    def spy(forward, pull):
        def noted(residuals, cotangents, needed):
            gradients = pull(residuals, cotangents, needed)
            note([*cotangents, *(g for g in gradients if g is not None)])
            return gradients

        def run(*tensors):
            note(tensors)
            return original(forward, noted)(*tensors)

        return run

    monkeypatch.setattr(backend, "custom_vjp", spy)
    return seen


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mean_squares_are_float32_on_every_edge_of_a_gpt_that_trains(policy, scalars):
    model = gpt.build(policy)
    edges = [
        t
        for layer in model.layers
        for t in keras.tree.flatten(layer.output)
        if t.shape == ()
    ]
    assert len(edges) >= 8 and {t.dtype for t in edges} == {"float32"}
    compute = policy.removeprefix("mixed_")
    assert {t.dtype for t in keras.tree.flatten(model.layers[-2].output)} >= {compute}
    scalars.clear()
    optimizer = ks.optimizers.ScaledAdam(0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    losses = gpt.train(model, 12, optimizer)
    assert len(scalars) > 50 and set(scalars) == {"float32"}
    # And it trains.
    assert np.isfinite(losses).all()
    assert losses[0] > 5 and np.mean(losses[-3:]) < 4.7


@pytest.mark.skipif(BACKEND != "jax", reason="one backend will do: 60 steps")
def test_a_gpt_trains_like_its_float32_twin():
    ends = []
    for precision in "float32", "float8-propagated":
        keras.utils.set_random_seed(1)
        losses = gpt.train(gpt.build(precision=precision), 30)
        ends.append(np.mean(losses[-5:]))
    assert ends[0] < 4.2 and abs(ends[1] / ends[0] - 1) < 0.05


@pytest.mark.skipif(BACKEND != "torch", reason="eager: every operand can be looked at")
def test_operands_of_a_trained_gpt_use_their_formats_well(monkeypatch):
    """After 40 steps: scale within 2**3 of the rms, few saturated, few flushed."""
    model = gpt.build(width=32, context=16)
    gpt.train(model, 40)
    found, original = [], backend.quantize

    def spy(x, scale, format):
        data = x.detach().float().abs() / scale
        rms = float(data.square().mean().sqrt())
        saturated = float((data > format.max).float().mean())
        half = 2.0 ** (format.quantum_exponent - 1)
        # Where the causal mask leaves one key the gradient of the scores is 0, or what
        # float32's rounding leaves of it.
        noise = 2.0**-23 * data.max()
        flushed = float(((data <= half) & (data > noise)).sum())
        found.append((format.name, rms, saturated, flushed / data.numel()))
        return original(x, scale, format)

    monkeypatch.setattr(backend, "quantize", spy)
    model.train_on_batch(*gpt.batch(model, seed=1000))
    assert len(found) == 3 * 6  # three operands of every product of the block
    for name, rms, saturated, flushed in found:
        natural = 1.0 if name == "float8_e4m3fn" else 2.0**4
        ratio = np.log2(rms / natural) - 0.5  # a scale is 2**0.5 below on average
        print(f"{name:14} 2**{ratio:+.2f}  {saturated:.1e}  {flushed:.1e}")
        assert abs(ratio) <= 3, (name, rms)
        assert saturated <= 1e-5 and flushed <= 0.01, (name, saturated, flushed)


def reductions(jaxpr, found=None):
    """How often each shape is reduced, by any reduction, in a program and its parts."""
    found = collections.Counter() if found is None else found
    for equation in jaxpr.eqns:
        if re.match("reduce|argm|cum", equation.primitive.name):
            found[equation.invars[0].aval.shape] += 1
        for value in keras.tree.flatten(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                reductions(inner, found)
    return found


def mlp(cls, propagated, depth=3, width=24, norm=None):
    inputs = keras.Input((width,))
    x = ks.layers.Scale()(inputs) if propagated else inputs
    for _ in range(depth):
        x = norm(x) if norm else x
        x = cls(width, activation="gelu")(x)
    return keras.Model(inputs, ks.layers.Unscale()(x) if propagated else x)


def gradient_reductions(model):
    import jax

    x, g = normal(17, 24), normal(17, 24, seed=1)
    groups = model.trainable_variables, model.non_trainable_variables
    values = ([v.value for v in group] for group in groups)
    program = jax.make_jaxpr(pull_back_program(model))(*values, x, g)
    return reductions(program.jaxpr)


@pytest.mark.skipif(BACKEND != "jax", reason="reads JAX's program")
def test_nothing_is_measured_but_at_the_edges_and_the_parameters():
    plain = gradient_reductions(mlp(keras.layers.Dense, False))
    scaled = gradient_reductions(mlp(ks.layers.ScaledDense, True))
    more = scaled - plain
    # Entry and exit, and the kernel and the bias of each of the three layers.
    assert more == {(17, 24): 2, (24, 24): 3, (24,): 3}
    current = gradient_reductions(mlp(ks.layers.ScaledDense, False)) - plain
    assert current[17, 24] == 2 * 3


@pytest.mark.skipif(BACKEND != "jax", reason="reads JAX's program")
def test_a_normalization_measures_one_gradient():
    norms = keras.layers.LayerNormalization, ks.layers.ScaledLayerNormalization
    plain, scaled = (
        gradient_reductions(mlp(cls, propagated, depth=1, norm=norm()))
        for (cls, propagated, norm) in (
            (keras.layers.Dense, False, norms[0]),
            (ks.layers.ScaledDense, True, norms[1]),
        )
    )
    assert (scaled - plain)[17, 24] == 2 + 1


def products(text):
    """The element types of the operands of each dot_general of a lowered program."""
    signature = re.compile(r"dot_general.*: \(tensor<.*?(\w+)>, tensor<.*?(\w+)>\)")
    pairs = [m.groups() for m in signature.finditer(text)]
    return collections.Counter(tuple(t.split("x")[-1] for t in pair) for pair in pairs)


@pytest.mark.skipif(BACKEND != "jax", reason="reads JAX's lowered program")
@pytest.mark.parametrize("precision", ["float8", "float8-propagated"])
def test_projections_of_a_block_are_float8_products_on_a_gpu(precision, monkeypatch):
    import jax

    monkeypatch.setattr(ks.config, "_matmul", "native")
    model = gpt.build(precision=precision)
    ids, g = gpt.batch(model)[0], normal(8, 12, 256)
    fixed = [v.value for v in model.non_trainable_variables]

    def loss(trainable):
        y = model.stateless_call(trainable, fixed, ids, training=True)[0]
        return keras.ops.sum(y * g)

    trainable = [v.value for v in model.trainable_variables]
    lowered = (
        jax.jit(jax.grad(loss)).trace(trainable).lower(lowering_platforms=("cuda",))
    )
    found = products(lowered.as_text())
    # Query, key, value, output, and two of the MLP.
    assert found[E4M3, E4M3] == found[E5M2, E4M3] == found[E4M3, E5M2] == 6
    # Scores and values, and the tied projection whose recipe is float32.
    assert sum(found.values()) - 3 * 6 <= 3 * 3


@pytest.mark.skipif(BACKEND == "tensorflow", reason="has no native float8 product")
@pytest.mark.parametrize("scaled_attention", [False, True])
def test_native_and_emulated_attention_agree(scaled_attention, monkeypatch):
    from tests.layers.scaled_cases import case

    attention = case(
        "MultiHeadAttention",
        (5, 16),
        apply=lambda f, x: f(x, x),
        num_heads=2,
        key_dim=8,
    )
    x, g = attention.data()
    results = []
    for form in "emulated", "native":
        monkeypatch.setattr(ks.config, "_matmul", form)
        model = attention.model(
            "propagated", "float8", scaled_attention=scaled_attention
        )
        results.append(pull_back(model, x, g))
    for a, b in zip(*((y, dx, *dws) for y, dx, dws in results), strict=True):
        # A last bit of float32 may tip an operand of the next product to its neighbor.
        assert np.linalg.norm(a - b) <= 0.02 * np.linalg.norm(b)


def test_the_product_measures_nothing_itself(monkeypatch):
    """Not even on backends whose programs are not read above."""
    calls = []
    for name in "amax", "mean_square":
        original = getattr(backend, name)
        monkeypatch.setattr(
            backend, name, lambda x, f=original, n=name: calls.append(n) or f(x)
        )
    assert quantized_product.backend is backend
    model = mlp(ks.layers.ScaledDense, True)
    calls.clear()
    pull_back(model, normal(17, 24), normal(17, 24, seed=1))
    counts = collections.Counter(calls)
    assert counts["amax"] == 0 and counts["mean_square"] == 2 + 3 + 3
