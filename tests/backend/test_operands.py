"""The operands of quantized products, bit for bit against ml_dtypes, in both forms."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_scalify import backend, config
from keras_scalify.formats import FORMATS
from keras_scalify.scaling import amax_to_scale
from tests.helpers import assert_power_of_two, assert_sqnr, oracle_quantize, to_numpy

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
NARROW = [*FLOAT8, "float16", "bfloat16"]
FORMS = ["native", "emulated"]
SCALES = [2.0**-20, 1.0, 2.0**10]
SQNR_DB = {"float8_e4m3fn": 31.0, "float8_e5m2": 25.0}


def bfloat16_patterns():
    """All 65,536 bit patterns."""
    return (np.arange(65536, dtype="uint32") << 16).view("float32")


def float32_values():
    """A million values of any magnitude, ties and neighbours of ties among them."""
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(500_000) * 2.0 ** rng.uniform(-30, 30, 500_000)
    near = rng.uniform(-500, 500, 200_000)
    ties = rng.choice(bfloat16_patterns(), 300_000)
    ties = np.where(np.isfinite(ties), ties, 1.0).astype("float32")
    steps = rng.integers(-1, 2, ties.size).astype("int32")
    ties = (ties.view("int32") + steps).view("float32")
    return np.concatenate([spread, near, ties]).astype("float32")


def quantize(x, scale, name, compiled=False):
    """The operand as float32 numpy."""
    row = FORMATS[name]

    def program(x):
        q = backend.quantize(x, ops.convert_to_tensor(np.float32(scale)), row)
        return ops.cast(q, "float32")

    return to_numpy(
        compile_program(program)(ops.array(x)) if compiled else program(ops.array(x))
    )


def compile_program(program):
    """The function under the backend's compiler."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(program)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(program, jit_compile=True)
    import torch

    return torch.compile(program, backend="aot_eager")


def assert_same_bits(a, b):
    """Equal float32 bits, any NaN being as good as any other."""
    a, b = np.asarray(a), np.asarray(b)
    same = (a.view("int32") == b.view("int32")) | (np.isnan(a) & np.isnan(b))
    assert same.all(), f"{(~same).sum()} differ: {a[~same][:5]} != {b[~same][:5]}"


@pytest.fixture
def form(request, monkeypatch):
    monkeypatch.setattr(config, "_matmul", request.param)
    return request.param


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("name", NARROW)
def test_every_bfloat16_pattern(name, form, compiled):
    x = bfloat16_patterns()
    if name == "bfloat16":  # float32's subnormals are its own, and backends flush them
        x = x[(np.abs(x) >= 2.0**-126) | (x == 0) | np.isnan(x)]
    assert_same_bits(quantize(x, 1.0, name, compiled), oracle_quantize(x, name, 1.0))


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("name", FLOAT8)
def test_a_million_float32_values(name, form):
    x = float32_values()
    for scale in SCALES:
        expected = oracle_quantize(x, name, scale)
        assert_same_bits(quantize(x, scale, name), expected)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        (
            "float8_e4m3fn",
            [1, 448, 464, 465, 500, 1e6, -500, np.nan, np.inf, -np.inf],
            [1, 448, 448, 448, 448, 448, -448, np.nan, np.nan, np.nan],
        ),
        (
            "float8_e4m3fn",  # ties to even, subnormals, the sign of zero
            [1.0625, 1.0625 + 2**-12, 2**-10, 1.5 * 2**-10, 2**-9, -0.0, -(2**-11)],
            [1.0, 1.125, 0.0, 2**-9, 2**-9, -0.0, -0.0],
        ),
        (
            "float8_e5m2",
            [1.125, 1.625, 60000, 61440, 65504, 1e6, np.inf, -np.inf, np.nan],
            [1.0, 1.5, 57344, 57344, 57344, 57344, np.inf, -np.inf, np.nan],
        ),
        ("float8_e5m2", [2**-17, 1.5 * 2**-17, 1e-5], [0.0, 2**-16, 2**-16]),
        ("float16", [65504, 65520, 1e38, -1e38], [65504, 65504, 65504, -65504]),
        ("bfloat16", [3.4028235e38, 1 + 2**-8], [3.3895314e38, 1.0]),
    ],
)
@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_edges(form, name, x, expected):
    assert_same_bits(quantize(np.float32(x), 1.0, name), np.float32(expected))


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("scale", [2.0**-126, 2.0**126])
def test_finite_values_saturate_at_extreme_scales(form, scale):
    q = quantize(np.float32([3e38, -3e38, 1.0, 0.0]), scale, "float8_e5m2")
    assert np.isfinite(q).all() and np.all(np.abs(q) <= 57344) and q[3] == 0


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("sigma", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", FLOAT8)
def test_snr_of_gaussian_data(name, sigma, form):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(100_000) * sigma).astype("float32")
    amax = backend.amax(ops.array(x))
    scale = to_numpy(amax_to_scale(amax, FORMATS[name]))
    assert_power_of_two(scale)
    assert_sqnr(x, quantize(x, scale, name) * scale, SQNR_DB[name])


@pytest.mark.parametrize("name", FLOAT8)
def test_rounding_leaves_at_most_254_values(name):
    x = np.random.default_rng(2).uniform(-1, 1, 10_000).astype("float32")
    for compiled in (False, True):
        values = np.unique(quantize(x, 2.0**-8, name, compiled))
        assert 64 < values.size <= 254


@functools.cache
def products():
    """Operands of a few equations, on the grid of e4m3 and e5m2."""
    rng = np.random.default_rng(3)
    shapes = {
        "bk,kn->bn": ((5, 33), (33, 7)),
        "abk,kn->abn": ((2, 3, 16), (16, 16)),
        "bqhd,bkhd->bhqk": ((2, 3, 2, 8), (2, 5, 2, 8)),
    }
    return {
        equation: tuple(rng.standard_normal(s).astype("float32") for s in pair)
        for equation, pair in shapes.items()
    }


@pytest.mark.parametrize("equation", ["bk,kn->bn", "abk,kn->abn", "bqhd,bkhd->bhqk"])
@pytest.mark.parametrize("names", [tuple(reversed(FLOAT8))])
@pytest.mark.parametrize("flags", ["", "--xla_gpu_enable_triton_gemm=false"])
def test_native_and_emulated_products_agree(equation, names, flags, monkeypatch):
    from keras_scalify.equations import parse

    monkeypatch.setenv("XLA_FLAGS", flags)  # JAX: another form of the product
    pair, scales = products()[equation], (2.0**-7, 2.0**-6)
    results = []
    for form in FORMS:
        monkeypatch.setattr(config, "_matmul", form)
        tensors = [ops.convert_to_tensor(np.float32(s)) for s in scales]
        a, b = (
            backend.quantize(ops.array(v), s, FORMATS[name])
            for v, s, name in zip(pair, tensors, names, strict=True)
        )
        y = backend.einsum(parse(equation), a, b, tensors, "float32")
        results.append(to_numpy(y))
    wide = [
        oracle_quantize(v, name, s).astype("float64") * s
        for v, s, name in zip(pair, scales, names, strict=True)
    ]
    for y in results:  # sums of exact products in float32, in any order
        np.testing.assert_allclose(y, np.einsum(equation, *wide), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="a setting of Torch's")
def test_torch_default_dtype_and_a_scale_of_zero():
    import torch

    before = torch.get_default_dtype()
    x = 1.0 + torch.arange(8) / 512
    try:
        torch.set_default_dtype(torch.bfloat16)
        q = backend.quantize(x, torch.ones((), dtype=torch.float32), FORMATS["float16"])
    finally:
        torch.set_default_dtype(before)
    assert q.dtype == torch.float32 and torch.equal(q, x)
    zero = backend.quantize(x, torch.zeros(()), FORMATS["float8_e5m2"])
    assert not torch.equal(zero, x)  # as on the others: no exception
