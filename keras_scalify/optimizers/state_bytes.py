"""state_bytes: what an optimizer keeps in memory."""

import math

import keras
import ml_dtypes
import numpy as np


def state_bytes(model_or_optimizer) -> dict[str, int]:
    """Bytes of an optimizer's state, by variable.

    `size * itemsize` of every variable of the optimizer but its counters and its
    learning rate. Variables of the same path are added up.

    Args:
        model_or_optimizer: a compiled model, or an optimizer, that is built. A
            LossScaleOptimizer counts with what it wraps.

    Returns:
        path of each variable to its bytes, and "total" to their sum.

    Raises:
        ValueError: a model that is not compiled, an optimizer without state yet, or
            something else.

    Example:

    >>> import keras, keras_scalify as ks
    >>> optimizer = ks.optimizers.ScaledAdam()
    >>> optimizer.build([keras.Variable([[1.0, 2.0]])])
    >>> ks.optimizers.state_bytes(optimizer)["total"]
    16
    """
    optimizer = getattr(model_or_optimizer, "optimizer", model_or_optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "`model_or_optimizer` must be a compiled model or an optimizer. Received: "
            f"model_or_optimizer={model_or_optimizer!r}"
        )
    if not optimizer.built:
        raise ValueError(
            "`model_or_optimizer` must be built: its state is made by the first step, "
            f"or by `optimizer.build(variables)`. Received: "
            f"model_or_optimizer={model_or_optimizer!r}"
        )
    settings = ("iteration", "step_counter", "learning_rate", "holds_roots")
    rows: dict[str, int] = {}
    for v in optimizer.variables:
        if v.name not in settings:
            # Models inside a model may have variables of the same path.
            size = math.prod(v.shape) * _itemsize(v.dtype)
            rows[v.path] = rows.get(v.path, 0) + size
    return {**rows, "total": sum(rows.values())}


def _itemsize(dtype: str) -> int:
    return np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
