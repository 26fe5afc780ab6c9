"""The loss of each batch against those before it."""

import math
import statistics
from collections import deque

LEAST = 10  # losses that make a median


class LossWatch:
    """How many times its usual value the loss is.

    Args:
        window: losses whose median is the usual value. Default 50.
    """

    def __init__(self, window: int = 50):
        self._losses: deque[float] = deque(maxlen=window)
        self._mean, self._count = 0.0, 0
        self._was_bad = False

    def begin_epoch(self) -> None:
        """Keras's mean starts anew."""
        self._mean, self._count = 0.0, 0

    def ratio(self, logged: float | None, count: int, running: bool) -> float:
        """loss / median of the losses before; infinite when it ceases to be finite.

        Args:
            logged: the loss in the logs.
            count: batches of this epoch so far.
            running: whether `logged` is the mean over them, as in Keras's own step.

        Returns:
            NaN where there is nothing to say: too few losses, or a loss that was not
            finite before.
        """
        if logged is None:
            return math.nan
        was_bad, self._was_bad = self._was_bad, not math.isfinite(logged)
        if self._was_bad:
            return math.nan if was_bad else math.inf
        new = count - self._count  # several, with steps_per_execution
        total = logged * count - self._mean * self._count
        loss = total / new if running else logged
        self._mean, self._count = logged, count
        usual = statistics.median(self._losses) if self._losses else 0.0
        enough = len(self._losses) >= LEAST and usual > 0
        self._losses.append(loss)
        return loss / usual if enough else math.nan
