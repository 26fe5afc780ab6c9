"""A small regression model, and what its training changes."""

import keras
import numpy as np

from tests.helpers import to_numpy

RNG = np.random.default_rng(0)
X = np.float32(RNG.normal(size=(32, 8)))
Y = np.float32(X @ RNG.normal(size=(8, 2)) * 0.5)


def build(optimizer, dense=keras.layers.Dense, **kwargs):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8,)), dense(16, activation="relu", name="first")]
    model = keras.Sequential([*layers, dense(2, name="second")], name="model")
    model.compile(optimizer, "mse", **kwargs)
    return model


def fit(model, x=X, epochs=2):
    log = model.fit(x, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return log.history["loss"]


def snapshot(variables):
    """Arrays by the path of the variable."""
    return {v.path.removeprefix("model/"): to_numpy(v) for v in variables}


def changed(before, after):
    assert before.keys() == after.keys()
    return {k for k in before if not np.array_equal(before[k], after[k])}
