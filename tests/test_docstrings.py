"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import keras
import pytest

import keras_scalify

BACKENDS = {"jax", "tensorflow", "torch"}
OTHERS = BACKENDS - {keras.backend.backend()}
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(
        keras_scalify.__path__, f"{keras_scalify.__name__}."
    )
    if name.rpartition(".")[2] not in OTHERS
]
if keras.backend.backend() == "jax":  # it compiles every op of every layer's example
    MODULES = [name for name in MODULES if ".layers.scaled_" not in name]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_examples_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in MODULES]
    tests = [t for m in modules for t in finder.find(m) if t.examples]
    assert len(tests) >= 10
