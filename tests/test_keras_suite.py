"""The loader of Keras's own tests replaces what it says and nothing else."""

import sys

import keras
import pytest

from tests.keras_suite import load_cases

MODULE = "keras.src.layers.core.identity_test"


class Other(keras.layers.Layer):
    pass


def names_of(cases):
    return {name for name in dir(cases) if name.startswith("test")}


def test_only_the_copy_sees_the_replacement():
    plain = keras.layers.Identity
    cases = load_cases(MODULE, "IdentityTest", {"layers.Identity": Other}, {})
    namespace = sys.modules[cases.__module__].layers
    assert namespace.Identity is Other and namespace.Dense is keras.layers.Dense
    assert keras.layers.Identity is plain


def test_a_left_out_function_is_gone_with_its_parameters():
    case = "IdentityTest"
    every = names_of(load_cases(MODULE, case, {}, {}))
    left = names_of(load_cases(MODULE, case, {}, {"test_identity": "all of them"}))
    assert every and not left


def test_a_name_that_keras_does_not_have_is_an_error():
    with pytest.raises(LookupError, match="test_gone"):
        load_cases(MODULE, "IdentityTest", {}, {"test_gone": "was there once"})
    with pytest.raises(LookupError, match="layers.Gone"):
        load_cases(MODULE, "IdentityTest", {"layers.Gone": Other}, {})
