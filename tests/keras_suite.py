"""Keras's own test cases, from its wheel, run on this package's classes.

No test of Keras is copied: its file is loaded under another name, and the class under
test is replaced in that copy's globals.
"""

import importlib.util
import sys
import types

_LOADED = "tests.keras_suite."


def load_cases(module, case, replace, leave_out):
    """A test class of Keras with other classes in the place of those it tests.

    Args:
        module: Name of Keras's test module: "keras.src.layers.core.dense_test".
        case: Name of the class in it.
        replace: From a global of that module to what stands in its place. A dotted
            name, such as "layers.Dense", replaces an attribute in this module's eyes.
        leave_out: From the name of a test function, before any parameters, to the
            reason why it is left out. One that Keras does not have is an error.

    Returns:
        The class, to be assigned to a global of a test file, where pytest finds it.
    """
    loaded = _load(module)
    for name, value in replace.items():
        _replace(loaded, name, value)
    cases = getattr(loaded, case)
    methods = [name for name in vars(cases) if name.startswith("test")]
    gone = set()
    for name in leave_out:
        found = {m for m in methods if m == name or m.startswith(f"{name}_")}
        if not found:
            raise LookupError(f"{module}.{case} has no {name}: leave it out no longer")
        gone |= found
    for method in gone:
        delattr(cases, method)
    return cases


def _load(module):
    """A copy of a module under a name of its own, so that Keras's stays as it is."""
    spec = importlib.util.find_spec(module)
    name = _LOADED + module.rpartition(".")[2]
    spec = importlib.util.spec_from_file_location(name, spec.origin)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _replace(loaded, name, value):
    owner, _, attribute = name.rpartition(".")
    if not hasattr(getattr(loaded, owner) if owner else loaded, attribute):
        raise LookupError(f"{loaded.__name__} does not use {name}")
    if not owner:
        setattr(loaded, name, value)
        return
    namespace = types.ModuleType(owner)
    namespace.__dict__.update(vars(getattr(loaded, owner)), **{attribute: value})
    setattr(loaded, owner, namespace)
