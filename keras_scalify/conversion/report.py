"""What scalify did, or would do, with each layer of a model."""

import dataclasses

from keras_scalify.conversion.plan import Filter, Row, plan, product_sizes
from keras_scalify.conversion.stretches import stretches
from keras_scalify.conversion.tree import is_container, models
from keras_scalify.conversion.unpropagation import carries_scales
from keras_scalify.layers.check_model import check_model
from keras_scalify.recipes import recipe_config

HEADER = ("path", "layer", "K x N", "recipe", "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """A row for every layer with weights; printed, a table.

    Attributes:
        rows: a tuple of Row, in the order of the layers.
        stretches: the names of the layers of each stretch that scales travel through.
    """

    rows: tuple[Row, ...]
    stretches: tuple[tuple[str, ...], ...] = ()

    @property
    def converted(self) -> tuple[Row, ...]:
        """The rows of scaled layers."""
        return tuple(row for row in self.rows if row.converted)

    @property
    def left(self) -> tuple[Row, ...]:
        """The rows of layers that are as they were."""
        return tuple(row for row in self.rows if not row.converted)

    def __str__(self):
        cells = [HEADER, *(_cells(row, bool(self.converted)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        lines.append(f"{len(self.converted)} of {len(self.rows)} scaled")
        lines += [f"scales travel: {' '.join(names)}" for names in self.stretches]
        return "\n".join(lines)

    __repr__ = __str__


def _cells(row: Row, any_converted: bool) -> tuple[str, ...]:
    layer = row.layer
    recipe = getattr(layer, "recipe", None)
    config = "" if recipe is None else recipe_config(recipe)
    fate = "would be converted" if not any_converted else "left out by filter"
    reason = "scaled" if row.converted else row.reason or fate
    name = config if isinstance(config, str) else "custom"
    return row.path or layer.name, type(layer).__qualname__, _sizes(layer), name, reason


def _sizes(layer) -> str:
    try:
        return "{} x {}".format(*product_sizes(layer))
    except (StopIteration, ValueError):
        return ""


def scalify_report(model, filter: Filter = None) -> ConversionReport:
    """A table of the layers with weights: path, class, sizes, recipe, and why not.

    Args:
        model: a keras.Model or a layer, converted or not.
        filter: as in `scalify`, to see what it would do. Default None.

    Returns:
        A ConversionReport; print it.

    Raises:
        ValueError: no model, or a filter that is none.

    Example:

    >>> import keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16)])
    >>> ks.scalify_report(model).rows[0].reason
    'projection to the output'
    """
    check_model(model, built=False)
    travels = [
        tuple(layer.name for layer in stretch)
        for each in models(model)
        if is_container(each) and carries_scales(each)
        for stretch in stretches(each)
    ]
    return ConversionReport(rows=tuple(plan(model, filter)), stretches=tuple(travels))
