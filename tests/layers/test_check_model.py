"""Every function that takes a model says what it expects."""

import keras
import numpy as np
import pytest

import keras_scalify as ks

BATCH = np.ones((2, 16), "float32")
FUNCTIONS = {
    "scalify": ks.scalify,
    "unscalify": ks.unscalify,
    "scalify_report": ks.scalify_report,
    "freeze_scales": lambda model: ks.freeze_scales(model, [BATCH]),
    "scale_report": lambda model: ks.analysis.scale_report(model, BATCH),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_model_is_refused(name):
    for wrong in None, 3, "model", keras.layers.Dense:
        with pytest.raises(ValueError, match="`model` must be a Keras model or layer"):
            FUNCTIONS[name](wrong)


@pytest.mark.parametrize("name", FUNCTIONS.keys() - {"scalify_report"})
def test_a_model_must_be_built(name):
    model = keras.Sequential([keras.layers.Dense(16)], name="empty")
    with pytest.raises(ValueError, match="`model` must be built.*model=empty"):
        FUNCTIONS[name](model)
