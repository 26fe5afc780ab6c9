"""Keras's own tests of Adam and AdamW, on the classes with float32 state."""

import keras
import pytest

import keras_scalify as ks
from tests.keras_suite import load_cases

pytestmark = pytest.mark.filterwarnings("default")


@keras.saving.register_keras_serializable(package="tests")
class Float32Adam(ks.optimizers.ScaledAdam):
    """ScaledAdam with another default state_dtype: Keras's tests name none."""

    def __init__(self, *args, state_dtype="float32", **kwargs):
        super().__init__(*args, state_dtype=state_dtype, **kwargs)


@keras.saving.register_keras_serializable(package="tests")
class Float32AdamW(ks.optimizers.ScaledAdamW):
    """ScaledAdamW with another default state_dtype."""

    def __init__(self, *args, state_dtype="float32", **kwargs):
        super().__init__(*args, state_dtype=state_dtype, **kwargs)


AdamTest = load_cases(
    "keras.src.optimizers.adam_test", "AdamTest", {"Adam": Float32Adam}, {}
)
AdamWTest = load_cases(
    "keras.src.optimizers.adamw_test", "AdamWTest", {"AdamW": Float32AdamW}, {}
)
