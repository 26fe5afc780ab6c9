"""Keras's own tests of Dense, on ScaledDense with the identity recipe."""

import keras
import pytest

import keras_scalify as ks
from tests.keras_suite import load_cases

pytestmark = pytest.mark.filterwarnings("default")


@keras.saving.register_keras_serializable(package="tests")
class Float32Dense(ks.layers.ScaledDense):
    """ScaledDense with another default recipe: Keras's tests name none."""

    def __init__(self, *args, recipe="float32", **kwargs):
        super().__init__(*args, recipe=recipe, **kwargs)


# Keras's own quantization replaces the product that a recipe describes, so a scaled
# layer refuses it, and all of these quantize a layer in one of Keras's ways.
POLICY = "sets a dtype policy with a quantization mode, which ScaledDense refuses"
CALL = "calls quantize(mode), which Keras refuses for subclasses of Dense"
FORCED = "forces quantize(mode, type_check=False): modes replace the product"

LEAVE_OUT = {
    "test_awq_kernel_packing": CALL,
    "test_awq_serialization": POLICY,
    "test_dense_int4_custom_quantizer": CALL,
    "test_dense_int8_custom_quantizer": CALL,
    "test_dense_int8_weight_only_quantizer": CALL,
    "test_dense_quantize_config": CALL,
    "test_gptq_kernel_packing": CALL,
    "test_gptq_serialization": POLICY,
    "test_int4_awq_kernel_returns_unpacked_form": CALL,
    "test_int4_block_size_serialization": CALL,
    "test_int4_block_size_with_lora": CALL,
    "test_int4_gptq_kernel_returns_unpacked_form": CALL,
    "test_int4_grouped_vs_perchannel_scale_shapes": CALL,
    "test_int4_kernel_returns_unpacked_form": CALL,
    "test_int4_perchannel_no_g_idx": CALL,
    "test_int4_quantization_block_size": CALL,
    "test_int4_subchannel_g_idx_created": CALL,
    "test_int4_subchannel_g_idx_serialization": CALL,
    # Its one case without a mode is in test_scaled_dense_saving.py.
    "test_legacy_load_own_variables": POLICY,
    "test_quantize_by_setting_dtype_policy": CALL,
    "test_quantize_dtype_argument": POLICY,
    "test_quantize_float8": CALL,
    "test_quantize_float8_fitting": CALL,
    "test_quantize_float8_inference": CALL,
    "test_quantize_int": CALL,
    "test_quantize_lora_integration": CALL,
    "test_quantize_on_subclass": FORCED,
    "test_quantize_when_already_quantized": CALL,
}

DenseTest = load_cases(
    "keras.src.layers.core.dense_test",
    "DenseTest",
    {"layers.Dense": Float32Dense},
    LEAVE_OUT,
)
