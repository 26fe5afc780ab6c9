"""What ks.scalify does to KerasHub's and Keras's models: bits, error, time.

Small KerasHub models and the applications of Keras, of random weights. Columns: how
many layers are converted; whether the outputs with recipe="float32" are the same bits;
the relative error of the outputs in float8; whether a step of training moves every
variable that it moved before; seconds to convert.

    KERAS_BACKEND=torch ./dev bench conversion GPT2 ResNet50

KerasHub is needed for its models: ./dev test installs it.
"""

import argparse
import time

import keras
import numpy as np

import keras_scalify as ks

SOURCE = np.random.default_rng(0)
JIT = keras.backend.backend() == "jax"


def text(name, **heads):
    def build():
        import keras_hub

        cls = getattr(keras_hub.models, f"{name}Backbone")
        sizes = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 32}
        return cls(**sizes, intermediate_dim=64, **heads)

    ids = {"token_ids": np.arange(16).reshape(2, 8) % 50}
    ids["padding_mask"] = np.ones((2, 8), "int32")
    return build, ids


def vision(size=32):
    def build():
        import keras_hub

        return keras_hub.models.ViTBackbone(
            image_shape=(size, size, 3),
            patch_size=8,
            num_layers=2,
            num_heads=2,
            hidden_dim=32,
            mlp_dim=64,
        )

    return build, SOURCE.normal(size=(2, size, size, 3)).astype("float32")


def speech():
    lengths = {"max_encoder_sequence_length": 16, "max_decoder_sequence_length": 8}
    build, ids = text("Whisper", num_heads=2, **lengths)
    features = SOURCE.normal(size=(2, 16, 80)).astype("float32")
    inputs = {f"decoder_{name}": each for name, each in ids.items()}
    return build, {"encoder_features": features, **inputs}


def application(name, size=64):
    def build():
        shape = {"input_shape": (size, size, 3), "classes": 20}
        return getattr(keras.applications, name)(weights=None, **shape)

    return build, SOURCE.normal(size=(2, size, size, 3)).astype("float32")


def bert(heads):
    build, ids = text("Bert", **heads)
    return build, {**ids, "segment_ids": np.zeros((2, 8), "int32")}


HEADS = {"num_heads": 2, "max_sequence_length": 16}
GROUPS = {"num_query_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "GPT2": text("GPT2", **HEADS),
    "Llama3": text("Llama3", **GROUPS),
    "Gemma": text("Gemma", head_dim=8, **GROUPS),
    "Mistral": text("Mistral", **GROUPS),
    "Qwen": text("Qwen", **GROUPS),
    "Bert": bert(HEADS),
    "ViT": vision(),
    "Whisper": speech(),
    **{n: application(n) for n in ("ResNet50", "MobileNetV2", "EfficientNetB0")},
}


def predict(model, x):
    y = keras.tree.flatten(model.predict(x, verbose=0))
    return np.concatenate([np.ravel(part).astype("float64") for part in y])


def moved(model, x):
    """The paths of the trainable variables that a step of training changes."""
    before = [keras.ops.convert_to_numpy(v).copy() for v in model.variables]
    y = keras.tree.map_structure(lambda t: 0 * t + 1, model.predict(x, verbose=0))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=JIT)
    model.train_on_batch(x, y)
    pairs = zip(model.variables, before, strict=True)
    changed = {v.path for v, b in pairs if np.any(keras.ops.convert_to_numpy(v) != b)}
    return changed & {v.path for v in model.trainable_variables}


def row(build, x):
    keras.utils.set_random_seed(0)
    model = build()
    y, state = predict(model, x), model.get_weights()
    ks.scalify(model, recipe="float32")
    same = np.array_equal(predict(model, x), y)
    ks.unscalify(model)
    plain = moved(model, x)
    model.set_weights(state)
    start = time.perf_counter()
    ks.scalify(model)
    seconds = time.perf_counter() - start
    error = np.linalg.norm(predict(model, x) - y) / np.linalg.norm(y)
    converted = len(ks.scalify_report(model).converted)
    return converted, same, f"{error:.3f}", moved(model, x) == plain, f"{seconds:.2f}"


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
print(f"| {keras.backend.backend()} | converted | same bits | error | trains | s |")
print("|---|---|---|---|---|---|")
for name in parser.parse_args().models:
    print(f"| {name} |", " | ".join(map(str, row(*MODELS[name]))), "|", flush=True)
