"""The program of the gradient: what it multiplies, what it keeps, and its exactness."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from keras_scalify import backend
from tests.gradients import pull_back, pull_back_program
from tests.helpers import assert_same, oracle_quantize, relative_error, to_numpy
from tests.layers.layer_cases import RECIPES, built, mlp, normal

BACKEND = keras.backend.backend()
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
MLIR = {"f8E4M3FN": E4M3, "f8E5M2": E5M2}


def oracle_scale(x, name):
    """Smallest power of two that brings the largest magnitude into the format."""
    limit = ks.FORMATS[name].max
    return 2.0 ** np.ceil(np.log2(np.abs(x).max().astype("float64") / limit))


def oracle_operand(x, name):
    scale = oracle_scale(x, name)
    return oracle_quantize(x, name, scale).astype("float64") * scale


@pytest.mark.parametrize("form", ["native", "emulated"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recipe", ["float8", "float16"])
def test_all_three_products_are_of_rounded_operands(
    recipe, compiled, form, monkeypatch
):
    """y, dx and dw are those of the oracle's operands, up to float32's rounding."""
    monkeypatch.setattr(ks.config, "_matmul", form)
    x, g = normal(8, 24), normal(8, 6, seed=1, scale=1e-3)
    layer = built(24, 6, recipe=recipe, use_bias=False)
    names = layer.recipe.input, layer.recipe.kernel, layer.recipe.gradient
    tensors = x, to_numpy(layer.kernel), g
    qx, qw, qg = (oracle_operand(t, n) for t, n in zip(tensors, names, strict=True))
    y, dx, (dw,) = pull_back(layer, x, g, compiled=compiled)
    for result, truth in ((y, qx @ qw), (dx, qg @ qw.T), (dw, qx.T @ qg)):
        assert relative_error(result, truth) <= 1e-6
    unrounded = g.astype("float64") @ to_numpy(layer.kernel).T
    assert relative_error(dx, unrounded) > (0.005 if "float8" in recipe else 1e-5)


@pytest.fixture
def products(monkeypatch):
    """The dtypes of the operands of every quantized product, as they are computed."""
    seen, einsum = [], backend.einsum

    def spy(equation, a, b, *args):
        dtypes = [keras.backend.standardize_dtype(t.dtype) for t in (a, b)]
        seen.append(tuple(dtypes))
        return einsum(equation, a, b, *args)

    monkeypatch.setattr(backend, "einsum", spy)
    return seen


def test_native_products_are_of_float8_tensors(products, monkeypatch):
    monkeypatch.setattr(ks.config, "_matmul", "native")
    pull_back(built(16, 16), normal(16, 16), normal(16, 16, seed=1), compiled=False)
    assert products[0] == (E4M3, E4M3)
    assert sorted(products[1:]) == [(E4M3, E5M2), (E5M2, E4M3)]


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere the compiler drops dead code")
def test_torch_computes_no_gradient_that_nobody_asked_for(products):
    import torch

    model = mlp()
    x = torch.from_numpy(normal(4, 6))
    model(x).sum().backward()
    assert len(products) == 2 + 3  # the first layer's input needs no gradient
    products.clear()
    model.layers[1].trainable = False
    model(x).sum().backward()
    assert len(products) == 2 + 1  # only the last kernel moves
    products.clear()
    model.trainable = False
    model(x.requires_grad_()).sum().backward()
    assert len(products) == 2 + 2


@pytest.mark.skipif(BACKEND != "torch", reason="Torch's own list of saved tensors")
@pytest.mark.parametrize(("form", "size"), [("native", 1), ("emulated", 4)])
def test_torch_keeps_only_the_quantized_operands(form, size, monkeypatch):
    import torch

    monkeypatch.setattr(ks.config, "_matmul", form)
    layer, kept = built(16, 8, use_bias=False), []
    x = torch.from_numpy(normal(4, 16)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        layer(x)
    sizes = sorted(t.numel() * t.element_size() for t in kept if t.numel() > 1)
    assert sizes == [4 * 16 * size, 16 * 8 * size]


def jax_program(model, x, *, wrt, platform=None):
    """JAX: the lowered gradient of a loss of the model, with respect to wrt."""
    import jax

    fixed = [v.value for v in model.non_trainable_variables]

    def loss(trainable, x):
        return ops.sum(model.stateless_call(trainable, fixed, x, training=True)[0] ** 2)

    traced = jax.jit(jax.grad(loss, argnums=wrt)).trace(
        [v.value for v in model.trainable_variables], x
    )
    return traced.lower(lowering_platforms=(platform,) if platform else None)


def jax_products(lowered):
    """The element types of the operands of each dot_general."""
    signature = re.compile(r"dot_general.*: \(tensor<.*?(\w+)>, tensor<.*?(\w+)>\)")
    types = [line.groups() for line in signature.finditer(lowered.as_text())]
    strip = [tuple(t.split("x")[-1] for t in pair) for pair in types]
    return [tuple(MLIR.get(t, t) for t in pair) for pair in strip]


@pytest.mark.skipif(BACKEND != "jax", reason="reads JAX's lowered program")
@pytest.mark.parametrize("platform", [None, "cuda"])
def test_jax_native_gradient_has_three_float8_products_a_layer(platform, monkeypatch):
    monkeypatch.setattr(ks.config, "_matmul", "native")
    forward, dx, dw = (E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)
    x = ops.array(normal(8, 6))
    found = jax_products(jax_program(mlp(), x, wrt=0, platform=platform))
    # The first layer's input needs no gradient: two products there.
    assert sorted(found) == sorted([forward] * 2 + [dw] * 2 + [dx])
    found = jax_products(jax_program(mlp(), x, wrt=(0, 1), platform=platform))
    assert sorted(found) == sorted([forward] * 2 + [dw] * 2 + [dx] * 2)


# What is added to an exponent to get the number beside which x is rounded.
LARGE = [(dropped << 23) | (1 << 22) for dropped in (20, 21)]


@pytest.mark.skipif(BACKEND != "jax", reason="reads JAX's programs")
def test_jax_emulated_rounding_is_in_the_gradient_and_stays_there(monkeypatch):
    """The large numbers that round away 20 (e4m3) and 21 (e5m2) bits survive."""
    monkeypatch.setattr(ks.config, "_matmul", "emulated")
    lowered = jax_program(mlp(), ops.array(normal(8, 6)), wrt=0)
    compiled = lowered.compile().as_text()
    for large in LARGE:
        assert re.search(rf"dense<{large}> : tensor<i32>", lowered.as_text())
        assert re.search(rf"constant\({large}\)", compiled)
    assert len(jax_products(lowered)) == 5
    assert len(re.findall(r"= \S+ dot\(", compiled)) == 5


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads XLA's program of TensorFlow")
def test_tensorflow_emulated_rounding_is_in_the_compiled_gradient():
    import tensorflow as tf

    model = mlp()
    variables = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = ops.sum(model(x, training=True) ** 2)
        return tape.gradient(loss, variables)

    compiled = gradient.experimental_get_compiler_ir(tf.constant(normal(8, 6)))(
        stage="optimized_hlo"
    )
    for large in LARGE:
        assert re.search(rf"constant\({large}\)", compiled)
    # XLA drops the first layer's unused input gradient.
    assert len(re.findall(r"= \S+ (?:dot|custom-call)\(", compiled)) == 5


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's residuals are leaves of a pytree")
@pytest.mark.parametrize(("form", "size"), [("native", 1), ("emulated", 4)])
def test_jax_keeps_only_the_quantized_operands(form, size, monkeypatch):
    import jax

    monkeypatch.setattr(ks.config, "_matmul", form)
    layer = built(16, 8, use_bias=False)
    fixed = [v.value for v in layer.non_trainable_variables]

    def run(trainable, x):
        return layer.stateless_call(trainable, fixed, x)[0]

    trainable = [v.value for v in layer.trainable_variables]
    _, pull = jax.vjp(run, trainable, ops.array(normal(4, 16)))
    sizes = sorted(leaf.nbytes for leaf in jax.tree.leaves(pull) if leaf.size > 1)
    assert sizes == [4 * 16 * size, 16 * 8 * size]


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's transformations")
def test_jax_vmap_agrees_with_one_at_a_time():
    import jax

    layer = built(8, 4)
    program = jax.jit(pull_back_program(layer))
    trainable = [v.value for v in layer.trainable_variables]
    x, g = (ops.array(normal(3, *shape)) for shape in ((5, 8), (5, 4)))
    fixed = [v.value for v in layer.non_trainable_variables]
    mapped = jax.vmap(program, in_axes=(None, None, 0, 0))
    mapped = jax.jit(mapped)(trainable, fixed, x, g)
    for i in range(3):
        alone = program(trainable, fixed, x[i], g[i])
        for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed", "float16"])
def test_power_of_two_equivariance_of_training(recipe):
    """Loss times 2**-20, rate times 2**20: every weight the same, bit for bit."""
    x, y = normal(50 * 8, 6), normal(50 * 8, 3, seed=1)
    weights = []
    for exponent in (0, -20):
        model = mlp(recipe=recipe)
        factor = 2.0**exponent

        def loss(y, p, factor=factor):
            return ops.mean(ops.square(y - p)) * factor

        model.compile(keras.optimizers.SGD(0.25 / factor), loss)
        start = [to_numpy(v) for v in model.trainable_variables]
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        kernels = [to_numpy(v) for v in model.trainable_variables if v.ndim]
        assert all(np.isfinite(v).all() for v in kernels)
        assert all(np.any(v != s) for v, s in zip(kernels, start, strict=False))
        weights.append(kernels)
    assert_same(*weights)


@pytest.mark.parametrize("recipe", ["float8", "float16"])
def test_power_of_two_equivariance_of_the_products(recipe):
    x, g = normal(8, 12), normal(8, 5, seed=1)
    layer = built(12, 5, use_bias=False, recipe=recipe)
    y, dx, (dw,) = pull_back(layer, x, g)
    scaled = pull_back(layer, x * np.float32(2.0**30), g * np.float32(2.0**-40))
    assert_same(scaled[0], y * np.float32(2.0**30))
    assert_same(scaled[1], dx * np.float32(2.0**-40))
    assert_same(scaled[2][0], dw * np.float32(2.0**-10))


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed", "float16"])
def test_gradients_of_4e_minus_6_reach_layer_0_of_8(recipe):
    x, g = normal(32, 16), normal(32, 16, seed=1, scale=4e-6)
    deep, plain = (
        mlp(cls, inputs=16, units=(16,) * 8, activation="tanh", **kwargs)
        for cls, kwargs in (
            (ks.layers.ScaledDense, {"recipe": recipe}),
            (keras.layers.Dense, {}),
        )
    )
    scaled, truth = (
        dws[0] for _, _, dws in (pull_back(m, x, g) for m in (deep, plain))
    )
    # 2 * 8 products of rounded operands on the way.
    cosine = np.sum(scaled * truth) / np.linalg.norm(scaled) / np.linalg.norm(truth)
    assert cosine >= 0.97
    assert 0.9 <= np.linalg.norm(scaled) / np.linalg.norm(truth) <= 1.1


@pytest.mark.parametrize("recipe", ["float8", "float8_delayed"])
def test_a_frozen_layer_does_not_stop_its_elders(recipe):
    model = mlp(units=(8, 8, 3), recipe=recipe)
    frozen = model.layers[2]
    frozen.trainable = False
    model.compile(keras.optimizers.SGD(0.1), "mse")
    before = [to_numpy(layer.kernel) for layer in model.layers[1:]]
    for seed in range(2):
        model.train_on_batch(normal(16, 6, seed=seed), normal(16, 3, seed=seed + 9))
    moved = [
        np.linalg.norm(to_numpy(layer.kernel) - kernel)
        for layer, kernel in zip(model.layers[1:], before, strict=True)
    ]
    assert moved[0] > 1e-3 and moved[1] == 0 and moved[2] > 1e-3


class Twice(keras.Model):
    """One layer on two inputs of unlike magnitude, side by side."""

    def __init__(self, layer, factor):
        super().__init__()
        self.layer, self.factor = layer, factor
        self.built = True

    def call(self, x, training=None):
        half = x.shape[-1] // 2
        small = self.layer(x[:, :half] * self.factor, training=training)
        large = self.layer(x[:, half:], training=training)
        return ops.concatenate([small, large], axis=-1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_layer_called_twice_gets_the_sum_of_both_gradients(recipe):
    layer = built(8, 4, recipe=recipe, use_bias=False)
    # A delayed scale of the second call knows the first, not the second.
    factor = 1.0 if recipe == "float8_delayed" else 1e-4
    x, g = normal(16, 16), normal(16, 8, seed=1)
    _, _, (both, *_) = pull_back(Twice(layer, factor), x, g, training=True)
    small, large = (
        pull_back(layer, v, g[:, s], training=True)[2][0]
        for v, s in (
            (x[:, :8] * np.float32(factor), slice(0, 4)),
            (x[:, 8:], slice(4, 8)),
        )
    )
    tolerance = 0.05 if recipe == "float8_delayed" else 1e-6
    assert relative_error(both, small + large) <= tolerance
