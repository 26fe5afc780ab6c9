"""The first step through every scaled layer is as good as ScaledDense's."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.gradients import pull_back
from tests.helpers import assert_power_of_two, relative_error, to_numpy
from tests.layers.layer_cases import BACKWARD, FORWARD, normal
from tests.layers.scaled_cases import case

# One product each, larger than in scaled_cases.py: the errors of few terms scatter.
LINEAR = [
    case(
        "EinsumDense",
        (13, 48),
        equation="abc,cde->abde",
        output_shape=(13, 3, 16),
    ),
    case(
        "EinsumDense",
        (13, 3, 16),
        label="output projection",
        equation="abcd,cde->abe",
        output_shape=(13, 40),
    ),
    case("Conv1D", (23, 12), filters=16, kernel_size=5, use_bias=False),
    case("Conv2D", (12, 11, 12), filters=16, kernel_size=3, strides=2, use_bias=False),
    case("Conv2D", (9, 8, 12), filters=16, kernel_size=3, groups=4, use_bias=False),
    case("DepthwiseConv2D", (12, 11, 12), kernel_size=3, use_bias=False),
]


def assert_errors(result, truth):
    y, dx, dws = result
    expected_y, expected_dx, expected_dws = truth
    pairs = [(y, expected_y), (dx, expected_dx), (dws[0], expected_dws[0])]
    measured = [relative_error(a, b) for a, b in pairs]
    limits = FORWARD, BACKWARD, BACKWARD
    for error, (least, most) in zip(measured, limits, strict=True):
        assert least <= error <= most, f"errors of y, dx, dw: {measured}"


@pytest.mark.parametrize("kind", ["plain", "propagated"])
@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_one_product(case, kind):
    x, g = case.data(batch=8)
    truth = pull_back(case.model("keras"), x, g)
    model = case.model(kind, "float8")
    assert_errors(pull_back(model, x, g), truth)
    # Scales follow: the same errors for data of another size.
    small = np.float32(1e-4), np.float32(1e-9)
    y, dx, dws = pull_back(model, x * small[0], g * small[1])
    y, dx = y / small[0], dx / small[1]
    assert_errors((y, dx, [dws[0] / small[0] / small[1]]), truth)


PROJECTIONS = {
    "MultiHeadAttention": {"num_heads": 4, "key_dim": 12, "use_bias": False},
    "GroupQueryAttention": {
        "head_dim": 12,
        "num_query_heads": 4,
        "num_key_value_heads": 2,
        "use_bias": False,
    },
}


BOTH = [True] if keras.backend.backend() == "jax" else [False, True]  # it compiles long


@pytest.mark.parametrize("scaled_attention", BOTH)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_attention(name, scaled_attention):
    """Five products in a row, plain and propagated, against Keras's float32."""
    settings = {"use_bias": False, "kernel_initializer": "lecun_normal"}
    attention = case(
        name, (9, 48), apply=lambda layer, x: layer(x, x), **PROJECTIONS[name]
    )
    x, g = attention.data(batch=4)
    truth = pull_back(attention.model("keras"), x, g)
    settings = {"recipe": "float8", "scaled_attention": scaled_attention}
    results = [
        pull_back(attention.model(kind, **settings), x, g)
        for kind in ("plain", "propagated")
    ]
    more = 1.5 if scaled_attention else 1.0  # roundings one after the other
    for y, dx, dws in results:
        assert 0.01 <= relative_error(y, truth[0]) <= more * FORWARD[1]
        assert 0.01 <= relative_error(dx, truth[1]) <= more * BACKWARD[1]
        for dw, expected in zip(dws, truth[2], strict=True):
            assert 0.01 <= relative_error(dw, expected) <= more * BACKWARD[1]


def test_each_projection_of_attention_alone():
    layer = ks.layers.ScaledMultiHeadAttention(4, 12, use_bias=False)
    layer.build((None, 9, 48), (None, 9, 48))
    twin = keras.layers.MultiHeadAttention(4, 12, use_bias=False)
    twin.build((None, 9, 48), (None, 9, 48))
    for name in "query", "key", "value", "output":
        scaled, plain = (getattr(each, f"{name}_dense") for each in (layer, twin))
        assert isinstance(scaled, ks.layers.ScaledEinsumDense)
        plain.kernel.assign(to_numpy(scaled.kernel))
        inner, outer = ((4, 9, 48), (4, 9, 4, 12))[:: -1 if name == "output" else 1]
        x, g = normal(*inner), normal(*outer, seed=1)
        assert_errors(pull_back(scaled, x, g), pull_back(plain, x, g))


def test_embedding_as_an_output_projection():
    layer = ks.layers.ScaledEmbedding(37, 48, recipe="float8")
    layer.build()
    layer.embeddings.assign(normal(37, 48, scale=48**-0.5))
    x, g = normal(16, 48), normal(16, 37, seed=1)

    class Reverse(keras.Model):
        def __init__(self, propagated):
            super().__init__()
            self.layer, self.propagated, self.built = layer, propagated, True

        def call(self, x, training=None):
            x = ks.ops.scale(x) if self.propagated else x
            return ks.ops.unscale(self.layer(x, reverse=True, training=training))

    table = to_numpy(layer.embeddings).astype("float64")
    truth = x @ table.T, g @ table, [g.T @ x]
    for propagated in False, True:
        assert_errors(pull_back(Reverse(propagated), x, g), truth)


@pytest.mark.parametrize("kind", ["plain", "propagated"])
@pytest.mark.parametrize("case", LINEAR[::2], ids=str)
def test_scales_are_powers_of_two(case, kind):
    model = case.model(kind, "float8")
    model(case.data(batch=8)[0], training=True)
    layer = next(v for v in model.layers if hasattr(v, "recipe"))
    scales = [float(layer.input_scale), float(layer.kernel_scale)]
    assert_power_of_two(scales)
    assert scales != [1.0, 1.0]


def test_a_map_that_quantizes_a_projection_is_refused():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies["m/query"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = ks.layers.ScaledMultiHeadAttention(2, 4, dtype=policies, name="m")
    with pytest.raises(ValueError, match="must be a policy without quantization"):
        layer.build((1, 3, 8), (1, 3, 8))
