"""state_bytes: what is counted, and what is refused."""

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.optimizers import small_model

state_bytes = ks.optimizers.state_bytes
KERNEL = (64, 80)  # 5120 elements, 20 blocks
SIZE, BLOCKS = 5120, 20

# The bytes of a kernel of SIZE elements and a bias of 80.
TOTALS = [
    (keras.optimizers.Adam, {}, 8 * (SIZE + 80)),
    (ks.optimizers.ScaledAdam, {"state_dtype": "float32"}, 8 * (SIZE + 80)),
    (ks.optimizers.ScaledAdam, {}, 4 * (SIZE + 80) + 2 * 2 * 4),
    (ks.optimizers.ScaledAdam, {"state_dtype": "bfloat16"}, 4 * (SIZE + 80)),
    (
        ks.optimizers.ScaledAdam,
        {"state_dtype": "float8"},
        2 * SIZE + 4 * BLOCKS + 8 * 80,
    ),
    (
        ks.optimizers.ScaledAdam,
        {"state_dtype": {"momentum": "float8", "velocity": "bfloat16"}},
        3 * SIZE + (4 + 2) * 80,
    ),
    (
        ks.optimizers.ScaledAdamW,
        {"state_dtype": "float8", "min_size": 0, "amsgrad": True},
        3 * (SIZE + 80) + 2 * 4 * (BLOCKS + 1),
    ),
    (
        ks.optimizers.ScaledLion,
        {"state_dtype": "float8"},
        SIZE + 4 * BLOCKS + 4 * 80,
    ),
    (ks.optimizers.ScaledSGD, {"state_dtype": "float8"}, 0),
    (
        ks.optimizers.ScaledSGD,
        {"momentum": 0.9, "state_dtype": "float8", "use_ema": True},
        SIZE + 4 * BLOCKS + 4 * 80 + 4 * (SIZE + 80),
    ),
]


def variables():
    return [
        keras.Variable(np.zeros(shape), dtype="float32", name=name)
        for name, shape in (("kernel", KERNEL), ("bias", (80,)))
    ]


@pytest.mark.parametrize(("optimizer", "kwargs", "total"), TOTALS)
def test_totals(optimizer, kwargs, total):
    optimizer = optimizer(**kwargs)
    optimizer.build(variables())
    table = state_bytes(optimizer)
    assert table.pop("total") == sum(table.values()) == total


def test_rows_are_paths():
    optimizer = ks.optimizers.ScaledLion(state_dtype="float8")
    optimizer.build(variables())
    expected = {"kernel_momentum": SIZE, "kernel_momentum_amax": 4 * BLOCKS}
    rows = {path.split("/")[-1]: size for path, size in state_bytes(optimizer).items()}
    assert rows.items() >= {**expected, "bias_momentum": 320, "total": 5520}.items()


def test_variables_of_one_path_are_added_up():
    optimizer = ks.optimizers.ScaledLion()
    optimizer.build([variables()[0], variables()[0]])
    assert state_bytes(optimizer)["total"] == 2 * (2 * SIZE + 4)


def test_what_a_wrapper_holds_counts():
    """With the loss scale, 4 bytes, and without counters."""
    inner = ks.optimizers.ScaledAdam(state_dtype="float8")
    wrapped = keras.optimizers.LossScaleOptimizer(inner)
    wrapped.build(variables())
    assert state_bytes(wrapped)["total"] == state_bytes(inner)["total"] + 4
    optimizers = keras.optimizers.OptimizerMap(
        ks.optimizers.ScaledLion(), {".*bias": ks.optimizers.ScaledSGD(momentum=0.9)}
    )
    several = keras.optimizers.MultiOptimizer(optimizers)
    several.build(variables())
    assert state_bytes(several)["total"] == 2 * (SIZE + 80) + 8


def test_a_model_counts_as_its_optimizer():
    model = small_model.build(ks.optimizers.ScaledAdam())
    model.optimizer.build(model.trainable_variables)
    assert state_bytes(model) == state_bytes(model.optimizer)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: None, ("compiled", "None")),
        (lambda: "adam", ("compiled", "'adam'")),
        (lambda: keras.layers.Dense(2), ("compiled", "Dense")),
        (
            lambda: keras.Sequential([keras.Input((2,))], name="plain"),
            ("compiled", "plain"),
        ),
        (lambda: ks.optimizers.ScaledAdam(), ("built", "ScaledAdam")),
        (lambda: small_model.build(ks.optimizers.ScaledAdam()), ("built", "model")),
    ],
)
def test_errors(wrong, words):
    with pytest.raises(ValueError) as error:
        state_bytes(wrong())
    for word in ("model_or_optimizer", *words):
        assert word in str(error.value)
