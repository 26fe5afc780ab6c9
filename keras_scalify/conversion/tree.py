"""The layers within a model, each with a path that a reader recognizes."""

from collections.abc import Iterator

import keras

from keras_scalify.layers.keras_private import sublayers
from keras_scalify.layers.registration import is_keras


def is_container(layer) -> bool:
    """Whether a layer's config holds those of its layers: every other layer makes its
    sublayers itself, from arguments of its own."""
    cls = type(layer)
    return is_keras(cls) and cls.__name__ in ("Sequential", "Functional")


def walk(layer, path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields (path, layer) of every layer within this one, once, parents first."""
    yield from _walk(layer, path, {id(layer)})


def _walk(layer, path, seen):
    for child in sublayers(layer):
        if id(child) in seen:
            continue
        seen.add(id(child))
        child_path = f"{path}/{child.name}" if path else child.name
        yield child_path, child
        yield from _walk(child, child_path, seen)


def find(layer, indices):
    """The layer at these positions among sublayers, or None."""
    for index in indices:
        inner = sublayers(layer)
        if index >= len(inner):
            return None
        layer = inner[index]
    return layer


def positions(layer) -> Iterator[tuple[list[int], keras.layers.Layer]]:
    """Yields (indices, layer) of every layer within this one: `find` reads them."""
    yield from _positions(layer, [], {id(layer)})


def _positions(layer, indices, seen):
    for index, child in enumerate(sublayers(layer)):
        if id(child) not in seen:
            seen.add(id(child))
            yield [*indices, index], child
            yield from _positions(child, [*indices, index], seen)


def models(model) -> list[keras.Model]:
    """The models among a layer and those within it."""
    every = [model, *(layer for _, layer in walk(model))]
    return [layer for layer in every if isinstance(layer, keras.Model)]
