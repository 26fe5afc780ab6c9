"""Every rule predicts the mean squares that independent Gaussians have."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from tests.helpers import assert_same
from tests.ops.pulled import measured, pull, pull_all
from tests.ops.rule_cases import FAMILIES, HALF

BACKEND = keras.backend.backend()
CASES = [case for cases in FAMILIES.values() for case in cases]
# JAX compiles every op of an eager program by itself; torch.compile traces for seconds,
# and TensorFlow compiles half as fast as JAX, which compiles all.
FEW = {
    ("tensorflow", "compiled"): (
        "add",
        "gelu",
        "matmul-recipe=float8",
        "mean-axis=0",
        "relu",
        "sigmoid",
        "softmax-37",
        "take-0",
        "where",
    ),
    ("jax", "eager"): ("add", "gelu", "matmul-recipe=float8", "negative", "where"),
    ("torch", "compiled"): ("add", "matmul-recipe=float8", "relu", "where"),
}


def chosen(mode, family):
    cases = FAMILIES[family]
    few = FEW.get((BACKEND, mode))
    return cases if few is None else [c for c in cases if str(c) in few]


@functools.cache
def results(mode, family):
    return pull_all(chosen(mode, family), compiled=mode == "compiled")


KERAS_FAILS = {
    *(
        ("jax", f"{op}_pool-pool_size={size}")
        for op in ("max", "average")
        for size in ("3", "(3, 2)")
    ),
    ("torch", "rms_normalization-scale=3.0"),
}
RUNS = [
    pytest.param(mode, family, case, id=f"{mode}-{case}")
    for mode in ("eager", "compiled")
    for family in FAMILIES
    for case in chosen(mode, family)
]


# Dynamo looks there when it goes on after a part that it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(("mode", "family", "case"), RUNS)
def test_predicted_mean_squares(mode, family, case):
    for sigma in case.sigmas:
        pulled = results(mode, family)[case, sigma]
        for ratio in pulled.ratios():
            assert 1 / case.limit <= ratio <= case.limit, (sigma, pulled.forward)
        assert all(h > 0 for h, _ in pulled.backward)


def test_every_rule_has_a_case():
    assert set(ks.ops.RULES) == {case.op for case in CASES} | {"scale", "unscale"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_type_in_type_out(case):
    """Plain tensors give Keras's values, which are those of the scaled ones."""
    if "float8" in str(case) or case.op in ("einsum", "matmul", "dropout"):
        pytest.skip("rounded, or random")
    if (BACKEND, str(case)) in KERAS_FAILS:
        pytest.skip("the op of Keras 3.15 fails here")
    mode = "compiled" if BACKEND == "jax" else "eager"
    family = next(name for name, cases in FAMILIES.items() if case in cases)
    sigma = case.sigmas[0]
    expected = results(mode, family)[case, sigma].values
    plain = case.function(*map(ops.array, case.inputs(sigma)))
    plain = [plain] if hasattr(plain, "shape") else list(plain)
    for a, b in zip(plain, expected, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), b, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("branches", [2, 3])
def test_gradients_of_a_fan_out_add(branches):
    ws = [np.random.default_rng(i).standard_normal((61, 61)) for i in range(branches)]
    ws = [w.astype("float32") / 8 for w in ws]
    x = np.random.default_rng(9).standard_normal((97, 61)).astype("float32")

    def fan(x, *ws):
        return [ks.ops.matmul(x, w, "float32") for w in ws]

    pulled = pull(fan, x, *ws)
    assert all(1 / 1.2 <= ratio <= 1.2 for ratio in pulled.ratios())
    one = pull(lambda x, w: ks.ops.matmul(x, w, "float32"), x, ws[0])
    ratio = pulled.backward[0][0] / one.backward[0][0]
    assert ratio == pytest.approx(branches, rel=0.1)


def he(rng, inputs, outputs, gain=2.0):
    w = rng.standard_normal((inputs, outputs)) * (gain / inputs) ** 0.5
    return w.astype("float32")


def test_residual_chain_of_8_blocks():
    """No measurement on the way: only the rules, through 16 products and 8 sums."""
    rng, width = np.random.default_rng(0), 96
    x = rng.standard_normal((256, width)).astype("float32")
    ws = [he(rng, width, width, g) for _ in range(8) for g in (2.0, 1.0)]

    def chain(x, *ws):
        for first, second in zip(ws[::2], ws[1::2], strict=True):
            hidden = ks.ops.relu(ks.ops.matmul(x, first))
            x = ks.ops.add(x, ks.ops.matmul(hidden, second))
        return x

    pulled = pull(chain, x, *ws, compiled=BACKEND == "jax")
    (predicted, true) = pulled.backward[0]
    assert abs(0.5 * np.log2(predicted / true)) <= 0.1
    # Hidden units are positive: their mean moves all tokens alike, up or down.
    assert abs(0.5 * np.log2(np.divide(*pulled.forward[0]))) <= 0.5
    # The kernels' gradients sum over tokens that share the residual stream.
    for predicted, true in pulled.backward[1:]:
        assert abs(0.5 * np.log2(predicted / true)) <= 1


def test_24_relu_layers_without_normalization():
    """Where a scale that stays as it is would be off by 2**12."""
    rng, depth, width, factor = np.random.default_rng(0), 24, 128, 2.0**-10
    layers = [
        ks.layers.ScaledDense(width, activation="relu", use_bias=False)
        for _ in range(depth)
    ]
    for layer in layers:
        layer.build((None, width))
        layer.kernel.assign(he(rng, width, width))
    x = rng.standard_normal((256, width)).astype("float32") * factor
    taps = [np.zeros((256, width), "float32") for _ in range(depth)]

    def network(x, *taps):
        """A tap of zeros before each layer: its gradient is the gradient there."""
        ys = []
        for layer, tap in zip(layers, taps, strict=True):
            x = ks.ScaledTensor(x.value + tap.value, x.mean_square + tap.mean_square)
            x = layer(x)
            ys.append(x)
        return [*ys[:-1], ys[-1]] if keep else ys[-1]

    keep = True
    forward = pull(network, x, *taps).forward
    keep = False
    backward = pull(network, x, *taps).backward
    for predicted, true in (*forward, *backward):
        assert abs(0.5 * np.log2(predicted / true)) <= 1


def test_a_huge_constant_spoils_no_scale():
    x = np.random.default_rng(1).standard_normal(HALF.shape).astype("float32")
    scaled = ks.ops.scale(x)
    for number in (-np.inf, 1e9, -1e30, 0, float("nan")):
        for y in (
            ks.ops.where(HALF, scaled, number),
            ks.ops.where(HALF, number, scaled),
        ):
            assert_same(y.mean_square, scaled.mean_square)
    masked = ks.ops.where(HALF, scaled, -np.inf)
    assert measured(ops.convert_to_numpy(ks.ops.softmax(masked).value)) < 1
    padded = ks.ops.pad(scaled, ((1, 1), (1, 1)), constant_values=-1e9)
    assert_same(padded.mean_square, scaled.mean_square)


@pytest.mark.parametrize("name", ["sparsemax", "sin", "logsumexp", "sort"])
def test_an_op_without_a_rule_says_so(name):
    with pytest.raises(AttributeError, match=rf"{name}.*unscale"):
        getattr(ks.ops, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        ks.ops.nonsense  # noqa: B018


def test_a_mix_of_plain_and_scaled_says_which():
    x = np.ones((3, 3), "float32")
    with pytest.raises(ValueError, match="add takes.*x1 scaled, x2 plain.*unscale"):
        ks.ops.add(ks.ops.scale(x), x)
    with pytest.raises(ValueError, match=r"xs\[1\] scaled, xs\[0\] plain"):
        ks.ops.concatenate([x, ks.ops.scale(x)])
    with pytest.raises(ValueError, match="x2 scaled, x1 plain"):
        ks.ops.matmul(x, ks.ops.scale(x))
    with pytest.raises(TypeError, match=r"ks.ops.add|keras_scalify.ops"):
        ks.ops.scale(x) + ks.ops.scale(x)


WRONG_OPERANDS = {
    "a number": (
        lambda x: ks.ops.matmul(x, 3),
        "`x2` of matmul must be a ScaledTensor",
    ),
    "None": (lambda x: ks.ops.add(x, None), "`x2` of add must be .* or a number"),
    "a list": (lambda x: ks.ops.add(x, [1.0]), r"x1 scaled, x2\[0\] plain"),
    "no list": (lambda x: ks.ops.stack(x), "`x` of stack must be a list"),
    "divided": (lambda x: ks.ops.divide(2, x), "divide has a rule"),
    "an equation": (lambda x: ks.ops.einsum(3, x, x), "`equation` must be"),
    "a recipe": (lambda x: ks.ops.matmul(x.value, x.value, "fp8"), "`recipe` must be"),
    "a function": (lambda x: ks.ops.activate("fp8", x), "fp8"),
}


@pytest.mark.parametrize("name", WRONG_OPERANDS)
def test_a_wrong_operand_or_argument_is_named(name):
    function, message = WRONG_OPERANDS[name]
    x = ks.ScaledTensor(ops.ones((1, 3, 3)), ops.ones(()))
    with pytest.raises(ValueError, match=message):
        function(x)


@pytest.mark.parametrize(("name", "wrong"), [("mean", "a"), ("max_pool", 0)])
def test_keras_says_what_is_wrong_with_other_arguments(name, wrong):
    x = ks.ScaledTensor(ops.ones((1, 3, 3)), ops.ones(()))
    errors = []
    for module, operand in (ks.ops, x), (ops, x.value):
        with pytest.raises(Exception) as error:
            getattr(module, name)(operand, wrong)
        errors.append(error.type)
    assert errors[0] is errors[1]


def test_arguments_of_every_kind_that_keras_takes():
    x = ks.ScaledTensor(ops.ones((2, 3)), ops.ones(()))
    assert ks.ops.take(x, [0, 1, 1], axis=0).shape == (3, 3)
    assert ks.ops.repeat(x, np.array([1, 2]), axis=0).shape == (3, 3)
    assert float(ks.ops.dropout(x, 1.0).mean_square) == 1.0
    assert_same(ks.ops.activate("relu", x).value, x.value)
    assert_same(ks.ops.activate("relu", x.value), x.value)


def test_a_symbolic_tensor_says_to_use_a_layer():
    x = ks.layers.Scale()(keras.Input((3,)))
    with pytest.raises(ValueError, match="relu.*symbolic.*layer"):
        ks.ops.relu(x)
    with pytest.raises(ValueError, match="add.*symbolic.*layer"):
        ks.ops.add(x, x)


SUMS = "add", "subtract"  # not clipped
BOUNDED = "tanh", "sigmoid", "softsign", "hard_tanh"


@pytest.mark.parametrize("name", sorted(ks.ops.RULES))
def test_extremes_keep_a_scale(name):
    """Mean squares at both ends of their range, and what many large ones add up to."""
    case = next((c for c in CASES if c.op == name), None)
    if case is None or (BACKEND == "jax" and name not in ("exp", "gelu", "matmul")):
        pytest.skip("enters or leaves; or on JAX, which compiles op by op")
    for square in (2.0**-126, 2.0**126, np.inf):
        xs = [
            ks.ScaledTensor(ops.array(x), ops.array(np.float32(square)))
            for x in case.inputs(1.0)
        ]
        ys = case.function(*xs)
        for y in [ys] if hasattr(ys, "mean_square") else ys:
            assert float(y.mean_square) >= 2.0**-126
            assert 2.0**-67 <= float(y.scale) <= 2.0**64
            if name not in SUMS and square < np.inf:
                assert float(y.mean_square) <= 2.0**126
            if name in BOUNDED:
                assert float(y.mean_square) < 1.01


def test_a_mean_square_may_be_an_array():
    x = ks.ScaledTensor(ops.ones((2, 3)), np.float32(4.0))
    assert float(ks.ops.relu(x).mean_square) == 2.0
    assert float(ks.ops.repeat(x, np.array([1, 2]), axis=0).mean_square) == 4.0
