"""What the tests of layers share: layers of fixed weights, and their float64 truth."""

import keras
import numpy as np
from keras import ops

import keras_scalify as ks
from tests.helpers import relative_error

# A float64 simulation of ideal per-tensor float8 gives 0.024 to 0.040 forward and 0.042
# to 0.094 backward for any K. Below the least, nothing was rounded.
FORWARD, BACKWARD = (0.005, 0.08), (0.005, 0.13)

# What each recipe carries out of training steps.
RECIPES = ["float8", "float8_delayed", "float8_e4m3", "float16", "bfloat16"]


def normal(*shape, seed=0, scale=1.0):
    """Fixed float32 Gaussian data."""
    x = np.random.default_rng(seed).standard_normal(shape) * scale
    return x.astype("float32")


def built(inputs, units, cls=ks.layers.ScaledDense, seed=9, **kwargs):
    """A built layer whose kernel has unit variance outputs, and whose bias is not 0."""
    layer = cls(units, **kwargs)
    layer.build((None, inputs))
    layer.kernel.assign(normal(inputs, units, seed=seed, scale=inputs**-0.5))
    if layer.bias is not None:
        layer.bias.assign(normal(units, seed=seed + 1, scale=0.1))
    return layer


def errors(result, x, kernel, g):
    """Relative errors of y, dx and dw, of a layer without bias, against float64."""
    y, dx, (dw, *_) = result
    x, kernel, g = (np.asarray(v, "float64") for v in (x, kernel, g))
    flat_x, flat_g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    truths = x @ kernel, g @ kernel.T, flat_x.T @ flat_g
    return [relative_error(a, b) for a, b in zip((y, dx, dw), truths, strict=True)]


def assert_float8_errors(result, x, kernel, g):
    """Assert that y, dx and dw were rounded to float8, and no worse."""
    measured = errors(result, x, kernel, g)
    for error, (least, most) in zip(
        measured, (FORWARD, BACKWARD, BACKWARD), strict=True
    ):
        assert least <= error <= most, f"errors of y, dx, dw: {measured}"


def mlp(cls=ks.layers.ScaledDense, inputs=6, units=(8, 3), activation="relu", **kwargs):
    """A small functional model with fixed weights, the same for every class."""
    x = inputs_tensor = keras.Input((inputs,))
    sizes = [inputs, *units]
    for i, n in enumerate(units):
        last = i == len(units) - 1
        x = cls(n, activation=None if last else activation, **kwargs)(x)
    model = keras.Model(inputs_tensor, x)
    layers = [layer for layer in model.layers if hasattr(layer, "kernel")]
    for i, layer in enumerate(layers):
        layer.kernel.assign(normal(*sizes[i : i + 2], seed=i, scale=sizes[i] ** -0.5))
    return model


def fit(
    model,
    steps=3,
    optimizer=None,
    loss="mse",
    seed=5,
    x=None,
    batch=16,
    **compile_kwargs,
):
    """Train on fixed data and return the model.

    On TensorFlow without XLA, unless told otherwise: it compiles for seconds.
    """
    compile_kwargs.setdefault("jit_compile", keras.backend.backend() == "jax")
    x = normal(batch * steps, model.input_shape[-1], seed=seed) if x is None else x
    y = normal(len(x), model.output_shape[-1], seed=seed + 1)
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **compile_kwargs)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return model


def scale_states(model):
    """Every variable but kernels and biases, by path from the layer on, as numpy."""
    return {
        f"{i}/{v.path.split('/', 1)[1]}": ops.convert_to_numpy(v)
        for i, layer in enumerate(model.layers)
        for v in layer.variables
        if v.name not in ("kernel", "bias")
    }
