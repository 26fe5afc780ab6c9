"""Expectations over Gaussian variables: numerical integrals, as tables for the graph.

Everything here is numpy at the time a model is traced, cached, and enters the program
as a table of a few dozen numbers.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_scalify import backend

# Tables hold log2 of an expectation for log2 of the standard deviation, at half powers
# of two from 2**-16 to 2**16. Beyond, the last two entries go on: a power law.
_LOG2_SIGMA = np.arange(-16.0, 16.01, 0.5)
_FLOOR = 2.0**-126
Table = tuple[float, ...]  # no array: torch.compile takes numbers as constants


@functools.cache
def moments(function: Callable) -> tuple[Table, Table]:
    """Tables of log2 E[f(z)**2] and log2 E[f'(z)**2], z Gaussian with mean 0.

    The integration points are spaced like sinh: densely near 0, where functions bend,
    and as far as 10 standard deviations.
    """
    tables: tuple[list, list] = [], []
    for log2_sigma in _LOG2_SIGMA:
        sigma = 2.0**log2_sigma
        s = np.linspace(-np.arcsinh(10 * sigma), np.arcsinh(10 * sigma), 4001)
        z = np.sinh(s)
        weight = np.cosh(s) * np.exp(-0.5 * (z / sigma) ** 2)
        weight /= weight.sum()
        for table, values in zip(
            tables, (function(z), _slope(function, z)), strict=True
        ):
            table.append(np.log2(max(np.sum(weight * values**2), _FLOOR)))
    forward, backward = (tuple(map(float, table)) for table in tables)
    return forward, backward


def _slope(function, z):
    """f'(z): of the differences to both sides the smaller, for a jump has no slope."""
    step = 1e-6 * np.maximum(np.abs(z), 2.0**-4)
    below, at, above = (function(z + d) for d in (-step, 0.0, step))
    left, right = (at - below) / step, (above - at) / step
    return np.where(np.abs(left) < np.abs(right), left, right)


def lookup(table: Table, mean_square, first: float = -16.0, extrapolate=True):
    """The expectation at a mean square: the table, interpolated in logarithms.

    Args:
        table: log2 of the expectation at half powers of two of the standard deviation.
        mean_square: float32 scalar tensor, positive.
        first: log2 of the first standard deviation.
        extrapolate: whether the end pieces go on beyond the ends.

    Returns:
        float32 scalar tensor.
    """
    finite = ops.minimum(mean_square, 2.0**126)  # a sum of many may be infinite
    position = ops.log2(finite) - 2.0 * first  # half powers of two of sigma
    last = len(table) - 2
    index = ops.cast(ops.clip(ops.floor(position), 0, last), "int32")
    part = position - ops.cast(index, "float32")
    part = part if extrapolate else ops.clip(part, 0.0, 1.0)
    entries = ops.convert_to_tensor(table, dtype="float32")
    low, high = (ops.take(entries, index + offset) for offset in (0, 1))
    return ops.power(2.0, ops.clip(low + (high - low) * part, -126.0, 126.0))


@backend.constant
@functools.cache
def maximum_mean_square(count: int) -> float:
    """E[max(z_1 .. z_count)**2] of independent standard Gaussians."""
    z = np.linspace(-10.0, 10.0, 20001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.cumsum(density) * (z[1] - z[0])
    weight = count * density * below ** (count - 1)
    return float(np.sum(weight * z**2) * (z[1] - z[0]))


SOFTMAX_FIRST = -4.0  # tables of softmax go from 2**-4 to 2**4; beyond, it is flat


@backend.constant
@functools.cache
def softmax_moments(size: int) -> tuple[Table, Table]:
    """Tables of log2 E[p**2] and log2 E[p**2 (1 - 2 p + sum(q**2))].

    p is an entry of the softmax of `size` Gaussian logits, q runs over all of them. The
    second is the mean square of `p (g - sum(q g))` for independent g of mean square 1.

    With S the sum of all exponentials, `1 / S**k` is the integral over t > 0 of
    `t**(k - 1) e**(-t S) / (k - 1)!`, in which the logits are independent.
    """
    tables: tuple[list, list] = [], []
    for log2_sigma in np.arange(SOFTMAX_FIRST, 4.01, 0.5):
        log_t, others, power = _softmax_integrands(2.0**log2_sigma, size)
        one, two = others ** (size - 1), others ** (size - 2)
        step = log_t[1] - log_t[0]
        square, cube, fourth = (
            np.sum(power[k] * one) * step / math.factorial(k - 1) for k in (2, 3, 4)
        )
        pair = np.sum(power[2] ** 2 * two) * step / 6
        slope = square - 2 * cube + fourth + (size - 1) * pair
        square = np.clip(square, 1.0 / size**2, 1.0 / size)
        for table, value in zip(tables, (square, slope), strict=True):
            table.append(np.log2(max(value, _FLOOR)))
    forward, backward = (tuple(map(float, table)) for table in tables)
    return forward, backward


def _softmax_integrands(sigma: float, size: int):
    """log t, and there E[e**(-t e**z)] and E[(t e**z)**k e**(-t e**z)] by k."""
    u = np.linspace(-8.0, 8.0 + 4 * sigma, 600)
    log_weight = -0.5 * u**2
    log_weight -= np.log(np.sum(np.exp(log_weight)))
    log_t = np.linspace(-math.log(size) - 8 * sigma - 8, 8 * sigma + 8, 800)
    log_tz = np.minimum(log_t[:, None] + sigma * u, 700.0)
    others = np.sum(np.exp(log_weight - np.exp(log_tz)), 1)
    power = {
        k: np.sum(np.exp(log_weight + k * log_tz - np.exp(log_tz)), 1)
        for k in (2, 3, 4)
    }
    return log_t, others, power
