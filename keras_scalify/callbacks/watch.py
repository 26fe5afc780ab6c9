"""When a model's statistics are measured and read, and where they live meanwhile."""

from typing import Any

from keras_scalify import backend
from keras_scalify.callbacks.reading import Reading, read, set_clock
from keras_scalify.layers.scale_statistics import ScaleStatistics
from keras_scalify.layers.watched_kernel import attach, detach, watched_layers


class Watch:
    """Attaches statistics to a model's layers while it trains, and reads them.

    A reading ends a window of steps. Its last step is due: everything is measured there
    (with gradient accumulation: in the micro-batches of a whole update).

    Args:
        every: steps between two readings.

    Attributes:
        layers: the watched layers, by path.
        step: batches of training so far.
    """

    def __init__(self, every: int):
        self.every = every
        self.layers: dict[str, Any] = {}
        self.step = 0
        self._attached: dict[str, ScaleStatistics] = {}
        self._functions: tuple[Any, Any, Any] = (None, None, None)
        self._window = self._first = self._next = self._armed = 0
        self._updates = 1

    def attach(self, model) -> None:
        """Add what the layers lack, before the training step is traced."""
        self.layers = watched_layers(model)
        lacking = {n: x for n, x in self.layers.items() if x.statistics is None}
        if not lacking:
            return
        key, plain, watched = self._functions
        same = _program_key(model, lacking) == key and model.train_function is plain
        if not same or set(lacking) != set(self._attached):
            watched, self._attached = None, {n: _observer(lacking[n]) for n in lacking}
        for name, layer in lacking.items():
            attach(layer, self._attached[name])
        self._functions = _program_key(model, lacking), model.train_function, watched
        model.train_function = watched

    def detach(self, model) -> None:
        """Leave the model as it was, and its training step with it."""
        if not any(layer.statistics is x for layer, x in self._pairs()):
            return
        for layer, _ in self._pairs():
            detach(layer)
        key, plain, _ = self._functions
        self._functions = key, plain, model.train_function
        model.train_function = plain

    def _pairs(self):
        layers = self.layers
        return [(layers[n], x) for n, x in self._attached.items() if n in layers]

    def hint(self) -> str:
        """What cannot be shown, and why; "" if all can."""
        if not self.layers:
            return "found no scaled layer with a recipe that rounds: it shows nothing"
        blind = [n for n, x in self.layers.items() if x.statistics.gradient is None]
        if not blind:
            return ""
        text = f"shows no gradient of {len(blind)} layers, such as {blind[0]}"
        return f"{text}: build them with monitor=True to see it"

    def begin(self, model) -> None:
        """Start counting where the optimizer is."""
        optimizer = getattr(model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._updates = getattr(inner, "gradient_accumulation_steps", None) or 1
        done = 0 if optimizer is None else int(optimizer.iterations) * self._updates
        self.step = max(self.step, done)
        self._next, self._armed = self.step, 0
        clocks = (x.statistics.clock for x in self.layers.values())
        self._window = max([self._window, *(int(clock[0]) for clock in clocks)])
        self._open()

    def before(self, monitor, steps: int) -> None:
        """Before so many steps: declare them due if they are."""
        if not self._armed and self.step + steps > self._next:
            self._armed = self._next + self._updates
            monitor.model  # noqa: B018  (JAX puts the state back into the variables)
            for layer in self.layers.values():
                set_clock(layer, self._window, True)

    def after(self, monitor, steps: int) -> list[Reading]:
        """After so many steps: the readings, if it is time; else none."""
        self.step += steps
        ready = self._armed and self.step >= self._armed
        return self.read(monitor) if ready else []

    def read(self, monitor) -> list[Reading]:
        """The readings of the window up to now; the next one begins."""
        monitor.model  # noqa: B018
        span = self._window, self._first, self.step
        called = sorted(self.layers.items(), key=lambda row: row[1].statistics.order)
        found = [r for n, x in called for r in read(n, x, *span)]
        if self._armed:
            every = -(-self.every // self._updates) * self._updates
            self._next += every * max(1, -(-(self.step - self._next) // every))
        self._armed = 0
        self._open()
        return found

    def _open(self) -> None:
        self._window, self._first = self._window + 1, self.step
        for layer in self.layers.values():
            set_clock(layer, self._window, False)


def _observer(layer) -> ScaleStatistics:
    observer = ScaleStatistics(
        layer.recipe, with_gradient=backend.ASSIGNS_IN_BACKWARD, name="statistics"
    )
    observer.build()
    return observer


def _program_key(model, layers) -> tuple:
    """What changes whenever the model is compiled or a layer is converted anew."""
    states = (layer.scales for layer in layers.values())
    return getattr(model, "optimizer", None), *model.metrics[:1], *states
