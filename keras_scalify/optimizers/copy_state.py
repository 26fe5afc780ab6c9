"""copy_state: going on with another optimizer, or with state of another dtype."""

import keras
from keras import ops

from keras_scalify.optimizers.wide_moments import set_moments, wide_moments


def copy_state(source, target) -> None:
    """Copy an optimizer's moments and step count to another one, in its precision.

    Between Keras's Adam and ScaledAdam, or AdamW, Lion, SGD, in both directions, and
    between two `state_dtype`s. Float32 values are copied as they are; into narrow state
    they are rounded stochastically. Learning rates and other settings stay.

    Args:
        source: a built optimizer, or a LossScaleOptimizer of one.
        target: another one, built with variables of the same shapes in the same order,
            with the same moments.

    Raises:
        ValueError: an optimizer that is not built, other moments or other shapes.
            Nothing is changed then.

    Example:

    >>> import keras, keras_scalify as ks
    >>> kernel = keras.Variable([[1.0, 2.0]])
    >>> adam, scaled = keras.optimizers.Adam(), ks.optimizers.ScaledAdam()
    >>> adam.build([kernel]); scaled.build([kernel])
    >>> ks.optimizers.copy_state(adam, scaled)
    """
    optimizers = {"source": source, "target": target}
    for name, optimizer in optimizers.items():
        if not isinstance(optimizer, keras.optimizers.Optimizer) or not optimizer.built:
            raise ValueError(
                f"`{name}` must be a built optimizer (`optimizer.build(variables)`). "
                f"Received: {name}={optimizer!r}"
            )
    source, target = (getattr(o, "inner_optimizer", o) for o in optimizers.values())
    values = wide_moments(source)
    wanted = {name: _shapes(m) for name, m in wide_moments(target).items()}
    found = {name: _shapes(m) for name, m in values.items()}
    if wanted != found:
        raise ValueError(
            "`source` and `target` must have the same moments of variables of the same "
            f"shapes. Received: source with {found}, target with {wanted}"
        )
    set_moments(target, values)
    steps = ops.convert_to_numpy(source.iterations)
    _counter(target).assign(steps * (target.gradient_accumulation_steps or 1))


def _counter(optimizer):
    return next(v for v in optimizer.variables if v.name == "iteration")


def _shapes(moments):
    return [tuple(m.shape) for m in moments]
