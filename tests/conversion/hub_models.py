"""Small KerasHub models of random weights, and their inputs."""

import numpy as np
import pytest

from tests.layers.layer_cases import normal

hub = pytest.importorskip("keras_hub").models

TOKENS = {
    "token_ids": np.arange(16).reshape(2, 8) % 50,
    "padding_mask": np.ones((2, 8), "int32"),
}
TEXT = {"vocabulary_size": 50, "num_layers": 1, "hidden_dim": 32}
TEXT |= {"intermediate_dim": 64}
HEADS = {"num_heads": 2, "max_sequence_length": 16}
GROUPS = {"num_query_heads": 4, "num_key_value_heads": 2}
SPEECH = {"max_encoder_sequence_length": 16, "max_decoder_sequence_length": 8}
IMAGE = {"image_shape": (32, 32, 3), "patch_size": 8, "num_layers": 1}
IMAGE |= {"num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}

# By name: the class, its arguments, its inputs, how many layers are converted.
MODELS = {
    "GPT2": (hub.GPT2Backbone, TEXT | HEADS, TOKENS, 6),
    "Llama3": (hub.Llama3Backbone, TEXT | GROUPS, TOKENS, 7),
    "Gemma": (hub.GemmaBackbone, TEXT | GROUPS | {"head_dim": 8}, TOKENS, 7),
    "Mistral": (hub.MistralBackbone, TEXT | GROUPS, TOKENS, 7),
    "Qwen": (hub.QwenBackbone, TEXT | GROUPS, TOKENS, 7),
    "BERT": (
        hub.BertBackbone,
        TEXT | HEADS,
        TOKENS | {"segment_ids": np.zeros((2, 8), "int32")},
        6,  # its pooling layer projects to the output
    ),
    "ViT": (hub.ViTBackbone, IMAGE, normal(2, 32, 32, 3), 7),
    "Whisper": (
        hub.WhisperBackbone,
        TEXT | {"num_heads": 2} | SPEECH,
        {
            "encoder_features": normal(2, 16, 80),
            "decoder_token_ids": TOKENS["token_ids"],
            "decoder_padding_mask": TOKENS["padding_mask"],
        },
        18,
    ),
}


def build(name):
    """The model of that name, and its inputs."""
    cls, kwargs, x, _ = MODELS[name]
    return cls(**kwargs), x
