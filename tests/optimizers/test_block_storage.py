"""Moments in a byte each: any shape, their scales, their bounds, their bytes."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_scalify as ks
from keras_scalify.optimizers.random_bits import random_bits
from keras_scalify.optimizers.storages import STORAGES
from tests.helpers import assert_power_of_two, to_numpy
from tests.optimizers.stepper import Stepper
from tests.optimizers.test_codes import compiled, numbers
from tests.optimizers.test_storage import SEQUENCES

SHAPES = [(), (1,), (255,), (256,), (257,), (3, 5, 7), (2, 300)]
TRAINED = [(1,), (257,), (3, 5, 7)]
KINDS = {"signed": "float8_e4m3fn", "root": "float8_ue4m4"}


def in_blocks(x):
    """The elements in rows of 256, the last one filled up with zeros, float64."""
    rows = np.zeros(-(-x.size // 256) * 256)
    rows[: x.size] = x.reshape(-1)
    return rows.reshape(-1, 256)


def moments(shape, kind):
    """Magnitudes of ln-sigma 2, every block of another size."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    x = np.exp(2 * rng.normal(size=size)) * 10.0 ** (np.arange(size) // 256)
    x = x * rng.choice([-1.0, 1.0], size) if kind == "signed" else x
    return np.float32(x.reshape(shape))


@pytest.mark.parametrize("kind", KINDS)
def test_any_shape(kind):
    """The reference decodes what rests without the package's help."""
    storage, keep = STORAGES["float8"][kind], kind == "root"

    def program(xs):
        for stream, x in enumerate(xs):
            amax = storage.amax(x)
            bits = random_bits(x.shape, 0, stream, ops.convert_to_tensor(0))
            scale = storage.scale(amax)
            data = storage.encode(x, scale, bits, keep)
            yield amax, scale.value, data, storage.decode(data, scale)

    xs = [moments(shape, kind) for shape in SHAPES]
    rows = compiled(lambda xs: list(program(xs)))(
        [ops.convert_to_tensor(x) for x in xs]
    )
    for x, row in zip(xs, rows, strict=True):
        check(storage, x, *map(to_numpy, row), numbers(KINDS[kind]))
        assert not keep or np.all(to_numpy(row[-1]) > 0)


def check(storage, x, amax, scales, data, decoded, table):
    """What must be true of an array, its bounds, scales, bytes and decoded bytes."""
    np.testing.assert_array_equal(amax, np.abs(in_blocks(x)).max(-1))
    assert amax.shape == storage.amax_shape(x.shape)
    assert_power_of_two(scales)
    assert data.dtype == np.uint8
    assert decoded.shape == data.shape == x.shape
    expected = table[in_blocks(data).astype(int)] * scales[:, None]
    np.testing.assert_array_equal(decoded.reshape(-1), expected.reshape(-1)[: x.size])
    # Three mantissa bits, and the smallest number of the block.
    quantum = 2.0**storage.format.quantum_exponent * scales[:, None]
    error = np.abs(in_blocks(decoded) - in_blocks(x))
    assert np.all(error <= np.maximum(2.0**-3 * np.abs(in_blocks(x)), quantum))


def test_padding_does_not_reach_the_scales():
    """Nor does a block of zeros get a scale of 0, nor one block's scale another's."""
    storage = STORAGES["float8"]["root"]
    tiny = np.full(300, 1e-30, np.float32)
    tiny[:256] = 1e30
    amax = to_numpy(storage.amax(ops.convert_to_tensor(tiny)))
    np.testing.assert_array_equal(amax, np.float32([1e30, 1e-30]))
    zeros = storage.amax(ops.zeros((300,)))
    np.testing.assert_array_equal(to_numpy(storage.scale(zeros).value), [1, 1])


def test_every_shape_trains():
    """Where there was a gradient the root is not 0; elsewhere nothing moves."""
    start = [np.ones(shape, np.float32) for shape in TRAINED]
    optimizer = ks.optimizers.ScaledAdam(1e-3, state_dtype="float8", min_size=0)
    stepper, rng = Stepper(optimizer, start), np.random.default_rng(0)
    used = [np.ravel(rng.random(shape) < 0.9).reshape(shape) for shape in TRAINED]
    for _ in range(30):
        sizes = [np.exp(3 * rng.normal(size=shape)) for shape in TRAINED]
        gradients = zip(sizes, used, strict=True)
        stepper.step(*[np.asarray(s * u, np.float32) for s, u in gradients])
    for index, mask in enumerate(used):
        root = stepper.moment("velocity_root", index)
        np.testing.assert_array_equal(root > 0, mask)
        np.testing.assert_array_equal(stepper.moment("momentum", index) != 0, mask)
        np.testing.assert_array_equal(stepper.values()[index] != 1, mask)


OPTIMIZERS = {
    "adam": (ks.optimizers.ScaledAdam, {}),
    "adam, blocks only": (
        ks.optimizers.ScaledAdam,
        {"beta_1": 0.95, "beta_2": 0.9, "amsgrad": True},
    ),
    "lion": (ks.optimizers.ScaledLion, {}),
    "sgd": (ks.optimizers.ScaledSGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_amax_bound_holds(name):
    """Every sequence of gradients moves a variable of its own, of a block and a half.

    Rounding up step after step adds up, to less than the margin of 2. Without gradients
    nothing else renews a moment, and single ones leave it: they saturate, below 4, and
    the mean of all is the bound still.
    """
    optimizer, kwargs = OPTIMIZERS[name]
    optimizer = optimizer(1e-3, state_dtype="float8", min_size=0, **kwargs)
    stepper = Stepper(optimizer, [np.zeros(384)] * len(SEQUENCES))
    rng = np.random.default_rng(0)
    for step in range(100):
        gradients = [np.tile(make(rng, step), 6) for make in SEQUENCES.values()]
        stepper.step(*[np.float32(g) for g in gradients])
        if step % 10 not in (0, 5):
            continue
        for index, sequence in enumerate(SEQUENCES):
            for amax, rows in bounded(stepper, index):
                assert np.all(np.isfinite(amax))
                if sequence == "one, then zero":
                    assert np.all(rows.max(-1) < 4 * amax)
                    assert np.all(abs(rows[0].mean() / amax[0] - 1) < 0.1)
                else:
                    assert np.all(rows.max(-1) <= 1.9 * amax), (sequence, step)


def bounded(stepper, index):
    """The bounds and the magnitudes of each moment in blocks of a variable."""
    for name, slots in stepper.optimizer._slots.items():
        if slots[index].amax is not None:
            rows = in_blocks(np.abs(stepper.moment(name, index)))
            yield to_numpy(slots[index].amax), rows


def test_bytes_a_parameter():
    optimizer = ks.optimizers.ScaledAdam(state_dtype="float8")
    kernel = keras.Variable(np.zeros((512, 512)), dtype="float32", name="kernel")
    bias = keras.Variable(np.zeros(4095), dtype="float32", name="bias")
    edge = keras.Variable(np.zeros(4096), dtype="float32", name="edge")
    optimizer.build([kernel, bias, edge])
    rows = {v.name: v for v in optimizer.variables}
    own = [v for name, v in rows.items() if name.startswith("kernel")]
    size = sum(np.asarray(to_numpy(v)).nbytes for v in own)
    assert size / 512**2 <= 2.05
    for moment in ("momentum", "velocity_root"):
        assert rows[f"kernel_{moment}"].dtype == "uint8"
        assert rows[f"edge_{moment}"].dtype == "uint8"
        assert rows[f"bias_{moment}"].dtype == "float32"
    assert rows["kernel_velocity_root_amax"].shape == (1024,)
    assert "bias_velocity_root_amax" not in rows


def test_small_variables_are_as_with_float32_state():
    """The same arithmetic, nothing rounded."""
    steppers = [
        Stepper(ks.optimizers.ScaledAdam(1e-2, state_dtype=name), [np.ones((8, 8))])
        for name in ("float8", "float32")
    ]
    rng = np.random.default_rng(0)
    for _ in range(20):
        g = np.float32(rng.normal(size=(8, 8)))
        for stepper in steppers:
            stepper.step(g)
    np.testing.assert_allclose(*(s.values()[0] for s in steppers), rtol=1e-5)
