"""What backends measure of large tensors, in ways of their own, also compiled."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_scalify import backend
from tests.helpers import to_numpy

SHAPES = {"parts": (2, 512, 512), "odd": (263, 1013)}  # more than 2**18 entries
ODD_ONES = {
    "finite": (),
    "nan": (np.nan,),
    "infinities": (np.inf, -np.inf),
    "all": (np.nan, np.inf, -np.inf),
    "largest": (3.4e38, -3.4e38),
    "smallest": (-1e-37,),
}


def compiled(function):
    """The function as it runs inside a compiled step; Torch's is eager."""
    name = keras.backend.backend()
    if name == "jax":
        import jax

        return jax.jit(function)
    if name == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    return function


MEASURES = {name: compiled(getattr(backend, name)) for name in ("amax", "mean_square")}


@pytest.mark.parametrize("ones", ODD_ONES)
@pytest.mark.parametrize("shape", SHAPES)
def test_large_tensors(shape, ones):
    rng, values = np.random.default_rng(0), ODD_ONES[ones]
    scale = 1e-37 if ones == "smallest" else 1.0
    x = rng.uniform(-0.5, 0.5, SHAPES[shape]).astype("float32") * np.float32(scale)
    flat = x.reshape(-1)
    # Before, between and after the largest entries.
    for i, value in enumerate(values * 3):
        flat[[0, 100_003, -1][i % 3] + (i // 3) * 7 * (-1 if i % 3 == 2 else 1)] = value
    flat[[50, 200_000]] = np.float32([0.75, -0.875]) * np.float32(scale)
    finite = np.where(np.isfinite(x), x, 0).astype("float64")
    tensor = ops.array(x)
    amax = to_numpy(MEASURES["amax"](tensor))
    assert amax.dtype == np.float32 and amax == np.abs(finite).max()
    square = np.mean(np.square(np.clip(finite, -(2.0**62), 2.0**62)))
    measured = float(to_numpy(MEASURES["mean_square"](tensor)))
    np.testing.assert_allclose(measured, max(square, 2.0**-126), rtol=1e-4)
