"""The mean squares of attention, computed as one op."""

import math

from keras import ops

from keras_scalify.ops.normalization import (
    softmax_gradient_square,
    softmax_square,
)
from keras_scalify.ops.propagation import propagate


def effective_size(size, causal: bool):
    """The number of keys that a query sees, as far as its weights' mean square goes.

    A causal mask lets query i see i keys, and the mean of 1 / i over i is H_n / n.
    """
    if not causal or not isinstance(size, int) or size < 2:
        return size
    harmonic = math.fsum(1.0 / i for i in range(1, size + 1))
    return max(round(size / harmonic), 2)


def weights_square(scores, size):
    """The mean square of the attention weights, from that of the scores."""
    return propagate(
        lambda a: softmax_square(a, size),
        lambda h, a: (softmax_gradient_square(h, a, size),),
        scores,
    )


def attention_square(query, key, value, size):
    """The mean square of `softmax(q k / sqrt(d)) v` with independent q, k, v.

    The scores have mean square q k. With P = n E[p**2], between 1/n (all keys alike)
    and 1 (one key alone), and D = n E[p**2 (1 - 2 p + sum(p**2))], the result has P v,
    and the gradients have D h v k of q, D h v q of k, and P h of v.

    Args:
        query, key, value: float32 scalars, the mean squares of the projections.
        size: keys that a query sees.

    Returns:
        float32 scalar.
    """
    count = ops.cast(size, "float32")

    def share(q, k):
        return count * softmax_square(q * k, size)

    def backward(h, q, k, v):
        scores = count * softmax_gradient_square(h * v, q * k, size)
        return scores * k, scores * q, share(q, k) * h

    return propagate(lambda q, k, v: share(q, k) * v, backward, query, key, value)
