"""Small models and data that the tests of ScaleMonitor train."""

import contextlib
import warnings

import keras
import numpy as np

import keras_scalify as ks
from tests.helpers import to_numpy
from tests.layers.layer_cases import normal

BACKEND = keras.backend.backend()
SIZE, BATCH = 6, 8


def net(
    depth=2,
    recipe="float8",
    monitor=True,
    propagate=False,
    activation="tanh",
    **kwargs,
):
    """A stack of layers called "layer_0", "layer_1", ... of fixed weights."""
    x = inputs = keras.Input((SIZE,))
    x = ks.layers.Scale()(x) if propagate else x
    for i in range(depth):
        name = f"layer_{i}"
        given = {"recipe": recipe, "monitor": monitor, "name": name, **kwargs}
        x = ks.layers.ScaledDense(SIZE, activation=activation, **given)(x)
    x = ks.layers.Unscale()(x) if propagate else x
    model = keras.Model(inputs, x, name="net")
    for i in range(depth):
        kernel = normal(SIZE, SIZE, seed=i, scale=SIZE**-0.5)
        model.get_layer(f"layer_{i}").kernel.assign(kernel)
    return model


def data(steps):
    """Batches of Gaussians."""
    return normal(BATCH * steps, SIZE, seed=5), normal(BATCH * steps, SIZE, seed=6)


def train(
    model, monitor=None, steps=6, x=None, y=None, callbacks=(), optimizer=None, **kwargs
):
    """fit, with a monitor among the callbacks; returns the History."""
    fit = {k: kwargs.pop(k) for k in ("epochs", "validation_data") if k in kwargs}
    if optimizer != "compiled":
        kwargs.setdefault("jit_compile", BACKEND == "jax")
        model.compile(optimizer or keras.optimizers.SGD(0.01), "mse", **kwargs)
    callbacks = [*callbacks, *([monitor] if monitor else [])]
    inputs, targets = data(steps)
    x = inputs if x is None else x
    targets = targets if y is None else y
    fit |= {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(x, targets, callbacks=callbacks, **fit)


@contextlib.contextmanager
def quiet():
    """Warnings are recorded, not raised; gives the list of their texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
        texts += [str(w.message) for w in caught if w.category is UserWarning]


def weights(model):
    """Kernels and biases, as numpy."""
    names = "kernel", "bias"
    return [to_numpy(v) for v in model.variables if v.name in names]


def rows(monitor, **wanted):
    """The rows of the history with these values, as dicts."""
    columns = zip(*monitor.history.values(), strict=True)
    found = [dict(zip(monitor.history, row, strict=True)) for row in columns]
    return [r for r in found if all(r[k] == v for k, v in wanted.items())]


def statistics_of(x, scale, format):
    """What the statistics of an array are, by the pure functions."""
    from keras_scalify.statistics import measured, shown

    x, scale = (keras.ops.convert_to_tensor(np.float32(v)) for v in (x, scale))
    return shown(to_numpy(measured(x, scale, ks.FORMATS[format])))
