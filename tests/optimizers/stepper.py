"""Applying an optimizer to plain variables, compiled where the backend compiles."""

import importlib

import keras
import numpy as np

from tests.helpers import to_numpy

BACKEND = keras.backend.backend()


class Stepper:
    """An optimizer with the variables that it moves.

    Args:
        optimizer: An optimizer that is not built yet.
        values: Arrays, where the variables start.
        dtypes: Of the variables; float32 if not given.
    """

    def __init__(self, optimizer, values, dtypes=None):
        self.optimizer = optimizer
        dtypes = ["float32"] * len(values) if dtypes is None else dtypes
        self.variables = [
            keras.Variable(np.asarray(value), dtype=dtype, name=f"variable_{i}")
            for i, (value, dtype) in enumerate(zip(values, dtypes, strict=True))
        ]
        optimizer.build(self.variables)
        self._apply = _APPLY[BACKEND](optimizer, self.variables)

    def step(self, *gradients):
        """One update with a gradient (an array or a backend's tensor) a variable."""
        tensors = [
            keras.ops.convert_to_tensor(g, "float32")
            if isinstance(g, np.ndarray)
            else g
            for g in gradients
        ]
        self._apply(tensors)
        return self

    def values(self):
        """The variables as float32 arrays."""
        return [to_numpy(v).astype(np.float32) for v in self.variables]

    def state(self):
        """Every variable of the optimizer by its place and name, as arrays."""
        variables = enumerate(self.optimizer.variables)
        return {f"{i} {v.name}": to_numpy(v) for i, v in variables}

    def moment(self, name, index=0):
        """A stored moment ("momentum", "velocity_root", ...), decoded, as float32."""
        slot = self.optimizer._slots[name][index]
        shape = self.variables[index].shape
        storage = self.optimizer.storage(name.split("_")[0], shape)
        return to_numpy(storage.read(slot))

    def data(self, name, index=0):
        """A stored moment as it rests, as float32: without its scale."""
        return to_numpy(self.optimizer._slots[name][index].data).astype(np.float32)


def _jax(optimizer, variables):
    jax = importlib.import_module("jax")

    @jax.jit
    def program(state, values, gradients):
        return optimizer.stateless_apply(state, gradients, values)

    def apply(gradients):
        state = [v.value for v in optimizer.variables]
        values, state = program(state, [v.value for v in variables], gradients)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        for variable, value in zip(optimizer.variables, state, strict=True):
            variable.assign(value)

    return apply


def _tensorflow(optimizer, variables):
    tf = importlib.import_module("tensorflow")
    return tf.function(lambda gradients: optimizer.apply(gradients, variables))


def _torch(optimizer, variables):
    return lambda gradients: optimizer.apply(gradients, variables)


_APPLY = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
