"""ScaleMonitor."""

import warnings
from collections.abc import Callable
from typing import Any

import keras

from keras_scalify.analysis.history_plot import plot_history
from keras_scalify.callbacks.breach import (
    Breach,
    check_arguments,
    find_breaches,
    list_causes,
    loss_breach,
    react,
)
from keras_scalify.callbacks.limits import GROWN, LIMITS, Limit, merge_limits
from keras_scalify.callbacks.loss_watch import LossWatch
from keras_scalify.callbacks.record import Record
from keras_scalify.callbacks.watch import Watch


class ScaleMonitor(keras.callbacks.Callback):
    """Watches the operands of every scaled layer while the model trains.

    For each layer with a quantized product, and each role (input, kernel, gradient), it
    reads `ks.analysis.STATISTICS`, which are measured inside the training step. amax,
    headroom and non-finite entries count every step since the last reading, the others
    the step that is read; of several calls or micro-batches the worst counts. On JAX
    the gradient's statistics need layers built with `monitor=True`, and those, with
    `ema_overwrite_frequency`, an optimizer of ks.optimizers: Keras's (3.15) fail.

    Args:
        every: batches between two readings; the first batch is read too. Default 50.
        log_dir: folder of a TensorBoard event file, with a scalar for each statistic,
            layer and role. Needs the package tensorboard. Default None.
        csv: path of a CSV file with the rows of `history`; an existing one is
            continued. Default None.
        limits: statistic to Limit, or to a number in place of LIMITS's threshold:
            `{**ks.callbacks.LIMITS, "underflow_rate": 0.3}` changes one.
        on_breach: what a statistic beyond its limit does. "warn" (default): a warning
            for each layer, role and statistic once, and a count at the end. "raise": a
            ScaleBreach. "stop": a warning, and training stops after the batch. Or a
            function of the Breach.

    Attributes:
        history: dict of lists of the same length, one entry for each reading, layer and
            role: `pandas.DataFrame(monitor.history)`.
        breaches: every Breach so far.

    The logs of every batch and epoch get `worst_<statistic>` over all layers and roles,
    as last read: callbacks later in the list, such as CSVLogger, see them.

    Raises:
        ValueError: `every` below 1, an unknown limit or reaction.

    Example:

    >>> import keras, numpy as np, keras_scalify as ks
    >>> layer = ks.layers.ScaledDense(2, monitor=True)
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> model.compile("sgd", "mse")
    >>> monitor = ks.callbacks.ScaleMonitor(every=2)
    >>> x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    >>> _ = model.fit(x, y, batch_size=2, verbose=0, callbacks=[monitor])
    >>> monitor.history["step"], monitor.history["role"][:3]
    ([1, 1, 1, 3, 3, 3], ['input', 'kernel', 'gradient'])
    """

    def __init__(
        self,
        every: int = 50,
        log_dir: Any = None,
        csv: Any = None,
        limits: dict[str, Limit | float] = LIMITS,  # type: ignore[assignment]
        on_breach: str | Callable[[Breach], Any] = "warn",
    ):
        super().__init__()
        check_arguments(every, on_breach)
        self.every, self.on_breach = every, on_breach
        self.limits = merge_limits(limits)
        self.breaches: list[Breach] = []
        self._watch, self._losses = Watch(every), LossWatch()
        self._record = Record(log_dir, csv)
        self._begun, self._trains = 0, False
        self._is_running_mean = self._has_begun = self._spiked = self._told = False

    @property
    def history(self) -> dict[str, list]:
        """A dict of lists of the same length. See the class."""
        return self._record.history

    def set_model(self, model):
        super().set_model(model)
        if model.built:  # before fit makes its training step
            self._watch.attach(model)

    def on_train_begin(self, logs=None):
        model = self.model
        self._is_running_mean = type(model).train_step is keras.Model.train_step
        self._trains = True
        try:
            self._record.open()
        except BaseException:
            self._end()
            raise
        self._has_begun = False
        if model.built:
            self._begin(model)

    def _begin(self, model):
        self._watch.begin(model)
        self._has_begun = True
        hint = self._watch.hint()
        if hint and not self._told:
            self._told = True
            warnings.warn(f"ScaleMonitor {hint}.", stacklevel=2)

    def on_test_begin(self, logs=None):
        if not self._trains:  # evaluate
            self._watch.detach(self.model)

    on_predict_begin = on_test_begin

    def on_epoch_begin(self, epoch, logs=None):
        self._losses.begin_epoch()

    def on_train_batch_begin(self, batch, logs=None):
        self._begun = batch
        self._watch.before(self, getattr(self._model, "steps_per_execution", 1))

    def on_train_batch_end(self, batch, logs=None):
        try:
            self._after_batch(batch, logs)
        except BaseException:  # Keras calls on_train_end no more
            self._end()
            raise

    def _after_batch(self, batch, logs):
        logs = {} if logs is None else logs
        if self._has_begun:
            readings = self._watch.after(self, batch - self._begun + 1)
        else:  # TensorFlow builds a model in its first step
            readings = []
            self._watch.attach(self.model)
            self.model.make_train_function()
            self._begin(self.model)
        ratio = self._losses.ratio(logs.get("loss"), batch + 1, self._is_running_mean)
        limit = self.limits.get("loss_ratio")
        above = limit is not None and not limit.holds(ratio)
        spikes, self._spiked = above and not self._spiked, above
        if spikes and not readings:
            readings = self._watch.read(self)
        step = self._watch.step
        readings = self._record.add(readings, step)
        logs.update(self._record.summary)
        found = find_breaches(readings, self.limits, step)
        if spikes:
            causes = found or find_breaches(readings, GROWN, step)
            found.insert(0, loss_breach(ratio, step, causes, limit))
        self._react(found)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.update(self._record.summary)

    def on_train_end(self, logs=None):
        self._end()
        if self.breaches and self.on_breach == "warn":
            text = list_causes(self.breaches)
            warnings.warn(f"ScaleMonitor saw {text}", stacklevel=2)

    def _end(self):
        self._trains = False
        self._watch.detach(self.model)
        self._record.close()

    def _react(self, found: list[Breach]):
        known = {b.cause for b in self.breaches}
        self.breaches += found
        if react(found, known, self.on_breach):
            self.model.stop_training = True

    def plot(self, path) -> None:
        """Save a picture of `history`.

        A heat map over layers and steps for each statistic, and the scale of every role
        over time, with the band of magnitudes that its format holds as normal numbers.

        Args:
            path: of the file; its suffix gives the format. Needs matplotlib.

        Raises:
            ValueError: nothing was read yet.
        """
        plot_history(self.history, path)
