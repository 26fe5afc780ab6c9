"""Expectations over Gaussian variables, by numerical integration, as tables for the graph.

Everything here is numpy at the time a model is traced, cached, and enters the program as
a table of a few dozen numbers.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from keras import ops

# Tables hold log2 of an expectation for log2 of the standard deviation, at half powers of
# two from 2**-16 to 2**16. Beyond, the last two entries go on: a power law.
_LOG2_SIGMA = np.arange(-16.0, 16.01, 0.5)
_FLOOR = 2.0**-126


@functools.cache
def moments(function: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Tables of log2 E[f(z)**2] and log2 E[f'(z)**2], z Gaussian with mean 0.

    The integration points are spaced like sinh: densely near 0, where functions bend, and
    as far as 10 standard deviations.
    """
    tables = [], []
    for log2_sigma in _LOG2_SIGMA:
        sigma = 2.0**log2_sigma
        s = np.linspace(-np.arcsinh(10 * sigma), np.arcsinh(10 * sigma), 4001)
        z = np.sinh(s)
        weight = np.cosh(s) * np.exp(-0.5 * (z / sigma) ** 2)
        weight /= weight.sum()
        step = 1e-6 * np.maximum(np.abs(z), 2.0**-4)
        slope = (function(z + step) - function(z - step)) / (2 * step)
        for table, values in zip(tables, (function(z), slope), strict=True):
            table.append(np.log2(max(np.sum(weight * values**2), _FLOOR)))
    forward, backward = (np.array(t, "float32") for t in tables)
    return forward, backward


def lookup(table: np.ndarray, mean_square, first: float = -16.0, extrapolate=True):
    """The expectation at a mean square: the table, interpolated in logarithms.

    Args:
        table: log2 of the expectation at half powers of two of the standard deviation.
        mean_square: float32 scalar tensor, positive.
        first: log2 of the first standard deviation.
        extrapolate: whether the end pieces go on beyond the ends.

    Returns:
        float32 scalar tensor.
    """
    position = ops.log2(mean_square) - 2.0 * first  # half powers of two of sigma
    last = len(table) - 2
    index = ops.cast(ops.clip(ops.floor(position), 0, last), "int32")
    part = position - ops.cast(index, "float32")
    part = part if extrapolate else ops.clip(part, 0.0, 1.0)
    low, high = (
        ops.take(ops.convert_to_tensor(table), index + offset) for offset in (0, 1)
    )
    return ops.power(2.0, ops.clip(low + (high - low) * part, -126.0, 126.0))


@functools.cache
def maximum_mean_square(count: int) -> float:
    """E[max(z_1 .. z_count)**2] of independent standard Gaussians."""
    z = np.linspace(-10.0, 10.0, 20001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.cumsum(density) * (z[1] - z[0])
    weight = count * density * below ** (count - 1)
    return float(np.sum(weight * z**2) * (z[1] - z[0]))


SOFTMAX_FIRST = -4.0  # tables of softmax go from 2**-4 to 2**4; beyond, it is flat


@functools.cache
def softmax_mean_square(size: int) -> np.ndarray:
    """Table of log2 E[p**2], p an entry of the softmax of `size` Gaussian logits.

    With S the sum of the other exponentials, E[p**2] is the integral over t > 0 of
    `t E[e**2z e**(-t e**z)] E[e**(-t e**z)]**(size - 1)`.
    """
    table = []
    for log2_sigma in np.arange(SOFTMAX_FIRST, 4.01, 0.5):
        sigma = 2.0**log2_sigma
        u = np.linspace(-8.0, 8.0 + 2 * sigma, 600)
        log_weight = -0.5 * u**2
        log_weight -= np.log(np.sum(np.exp(log_weight)))
        reach = math.log(size) + 8 * sigma + 8
        log_t = np.linspace(-reach, 8 * sigma + 8, 800)
        z = sigma * u
        damping = -np.exp(np.minimum(log_t[:, None] + z, 700.0))
        others = np.sum(np.exp(log_weight + damping), 1)
        tilted = np.sum(np.exp(log_weight + 2 * (z + log_t[:, None]) + damping), 1)
        integrand = tilted * others ** (size - 1)
        value = np.sum(integrand) * (log_t[1] - log_t[0])
        table.append(np.log2(np.clip(value, 1.0 / size**2, 1.0 / size)))
    return np.array(table, "float32")
