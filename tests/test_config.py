"""The form of quantized products: set in code, by the environment, or by itself."""

import pytest

from keras_scalify import backend, config

FORMS = ("auto", "native", "emulated")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.setattr(config, "_matmul", None)
    monkeypatch.delenv("KERAS_SCALIFY_MATMUL", raising=False)


def test_the_default_is_auto():
    assert config.matmul() == "auto"


@pytest.mark.parametrize("form", FORMS)
def test_the_environment_is_the_default_and_code_overrides_it(form, monkeypatch):
    monkeypatch.setenv("KERAS_SCALIFY_MATMUL", form)
    assert config.matmul() == form
    for chosen in FORMS:
        config.set_matmul(chosen)
        assert config.matmul() == chosen


@pytest.mark.parametrize(("form", "native"), [("native", True), ("emulated", False)])
def test_the_backend_obeys(form, native):
    config.set_matmul(form)
    assert backend.is_native() is native


@pytest.mark.parametrize("form", ["fp8", "", None, True])
def test_wrong_form_names_argument_value_and_choices(form):
    with pytest.raises(ValueError) as error:
        config.set_matmul(form)
    assert f"form={form!r}" in str(error.value)
    assert all(known in str(error.value) for known in FORMS)
    assert config.matmul() == "auto"


def test_wrong_environment_names_variable_value_and_choices(monkeypatch):
    monkeypatch.setenv("KERAS_SCALIFY_MATMUL", "fast")
    with pytest.raises(ValueError, match="KERAS_SCALIFY_MATMUL='fast'"):
        config.matmul()
