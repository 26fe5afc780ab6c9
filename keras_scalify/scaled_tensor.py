"""ScaledTensor: a tensor and the mean square that is expected of it."""

from typing import Any, NamedTuple

from keras_scalify.formats import FORMATS
from keras_scalify.scaling import mean_square_to_scale


class ScaledTensor(NamedTuple):
    """A tensor with the estimate of its mean square riding beside it.

    `value` is the tensor itself, not divided by anything. `mean_square` estimates
    `mean(value**2)`; its cotangent in a backward pass is the mean square of the
    gradient of `value`: where gradients add, their mean squares add.

    Attributes:
        value: tensor in the compute dtype, any shape.
        mean_square: float32 scalar, positive; infinite where many near 2**126 add up.

    `ks.ops.scale(x)` makes one of a tensor and `ks.ops.unscale(x)` gives the tensor
    back. Using `.value` of a differentiated tensor in other ops adds a gradient without
    its mean square: leave by `unscale`. Layers also take a plain pair of the two.

    Example:

    >>> import numpy as np, keras_scalify as ks
    >>> x = ks.ops.scale(np.full((4, 8), 3.0, "float32"))
    >>> float(x.mean_square), float(x.scale), tuple(x.shape)
    (9.0, 2.0, (4, 8))

    Reference: Balança et al., "Scalify" (2024), whose scaled arrays these are, up to
    where the division by the scale happens.
    """

    value: Any
    mean_square: Any

    @property
    def scale(self):
        """Largest power of two at or below the root mean square, float32 scalar."""
        return mean_square_to_scale(self.mean_square, FORMATS["float8_e4m3fn"])

    @property
    def shape(self):
        """The shape of the value."""
        return self.value.shape

    @property
    def dtype(self):
        """The dtype of the value."""
        return self.value.dtype

    def _no_operator(self, *_):
        raise TypeError(
            "a ScaledTensor has no Python operators: use keras_scalify.ops, such as "
            "ks.ops.add(x, y), or ks.ops.unscale(x) first."
        )


# A tuple would concatenate and repeat.
for _name in ("add", "radd", "mul", "rmul", "sub", "rsub", "truediv", "matmul", "neg"):
    setattr(ScaledTensor, f"__{_name}__", ScaledTensor._no_operator)


def is_scaled(x) -> bool:
    """Whether x is a ScaledTensor, or the plain pair that a reloaded layer receives."""
    if isinstance(x, ScaledTensor):
        return True
    pair = isinstance(x, (tuple, list)) and len(x) == 2
    return pair and all(hasattr(t, "shape") for t in x) and len(x[1].shape) == 0
