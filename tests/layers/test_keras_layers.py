"""Keras's own tests of the other layers, on the scaled ones with the float32 recipe."""

import keras
import pytest

import keras_scalify as ks
from tests.keras_suite import load_cases

pytestmark = pytest.mark.filterwarnings("default")


def float32(base):
    """The scaled layer with another default recipe: Keras's tests name none."""

    class Float32(base):
        def __init__(self, *args, recipe="float32", **kwargs):
            super().__init__(*args, recipe=recipe, **kwargs)

    Float32.__qualname__ = Float32.__name__ = f"Float32{base.__qualname__}"
    register = keras.saving.register_keras_serializable("tests", Float32.__name__)
    return register(Float32)


CLASSES = {
    name: float32(getattr(ks.layers, f"Scaled{name}"))
    for name in (
        "EinsumDense",
        "Embedding",
        "Conv1D",
        "Conv2D",
        "DepthwiseConv2D",
        "MultiHeadAttention",
        "GroupQueryAttention",
    )
}

# Keras's own quantization replaces the product that a recipe describes: a scaled layer
# refuses its policies, and Keras refuses quantize(mode) for a subclass.
QUANTIZED = "Keras's own quantization"


def names(*patterns, reason=QUANTIZED):
    return dict.fromkeys(patterns, reason)


EinsumDenseTest = load_cases(
    "keras.src.layers.core.einsum_dense_test",
    "EinsumDenseTest",
    {"layers.EinsumDense": CLASSES["EinsumDense"]},
    names(
        "test_awq_kernel_packing",
        "test_awq_serialization",
        "test_einsum_dense_int8_custom_quantizer",
        "test_einsum_dense_quantize",
        "test_gptq_kernel_packing",
        "test_gptq_serialization",
        "test_int4",
        "test_legacy_load_own_variables",
        "test_quantize",
    ),
)
EmbeddingTest = load_cases(
    "keras.src.layers.core.embedding_test",
    "EmbeddingTest",
    {"layers.Embedding": CLASSES["Embedding"]},
    names(
        "test_embedding_int8_custom_quantizer",
        "test_embedding_quantize_config",
        "test_int4",
        "test_legacy_load_own_variables",
        "test_quantize",
    ),
)
CONVOLUTIONS = {f"layers.Conv{n}D": CLASSES[f"Conv{n}D"] for n in (1, 2)}
CORRECT_3D = names(*(f"test_conv3d{i}" for i in range(5)), reason="no ScaledConv3D")
BASIC_3D = names("test_conv3d", reason="no ScaledConv3D") | names(
    *(f"test_enable_lora_conv{n}d" for n in (1, 2, 3)),
    reason="its parameters name Keras's classes: test_scaled_layers_usage.py has it",
)
ConvBasicTest, ConvCorrectnessTest = (
    load_cases(
        "keras.src.layers.convolutional.conv_test", f"Conv{kind}", CONVOLUTIONS, left
    )
    for kind, left in (("BasicTest", BASIC_3D), ("CorrectnessTest", CORRECT_3D))
)
DEPTHWISE = {"layers.DepthwiseConv2D": CLASSES["DepthwiseConv2D"]}
ONE = [f"test_depthwise_conv1d{i}" for i in range(4)]
DepthwiseConvBasicTest, DepthwiseConvCorrectnessTest = (
    load_cases(
        "keras.src.layers.convolutional.depthwise_conv_test",
        f"DepthwiseConv{kind}",
        DEPTHWISE,
        names(*left, reason="no ScaledDepthwiseConv1D"),
    )
    for kind, left in (
        ("BasicTest", ["test_depthwise_conv1d"]),
        ("CorrectnessTest", ONE),
    )
)
LayerNormalizationTest, RMSNormalizationTest = (
    load_cases(
        f"keras.src.layers.normalization.{module}_normalization_test",
        f"{name}NormalizationTest",
        {
            f"layers.{name}Normalization": getattr(
                ks.layers, f"Scaled{name}Normalization"
            )
        },
        {},
    )
    for name, module in (("Layer", "layer"), ("RMS", "rms"))
)
if keras.backend.backend() != "jax":  # which compiles a minute for these two
    MultiHeadAttentionTest = load_cases(
        "keras.src.layers.attention.multi_head_attention_test",
        "MultiHeadAttentionTest",
        {
            "layers.MultiHeadAttention": CLASSES["MultiHeadAttention"],
        },
        names("test_quantize_int8", "test_dtype_policy_map"),
    )
    GroupedQueryAttentionTest = load_cases(
        "keras.src.layers.attention.grouped_query_attention_test",
        "GroupedQueryAttentionTest",
        {"layers.GroupedQueryAttention": CLASSES["GroupQueryAttention"]},
        {},
    )
