"""KerasHub's models: converted whole, trained, saved, adapted."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_scalify as ks
from tests.conversion.converted import predict, values
from tests.conversion.hub_models import MODELS, build
from tests.helpers import assert_same, relative_error, to_numpy

# JAX compiles each model for seconds: one there.
JAX = keras.backend.backend() == "jax"
NAMES = {"jax": ["GPT2"], "tensorflow": ["GPT2", "Gemma", "BERT", "ViT"]}
NAMES = NAMES.get(keras.backend.backend(), list(MODELS))
PRODUCTS = keras.layers.Dense, keras.layers.EinsumDense


def trained(model, x):
    """One step towards zeros."""
    targets = keras.tree.map_structure(lambda y: 0 * y + 1, model.predict(x, verbose=0))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=JAX)
    model.train_on_batch(x, targets)


def moved(model, x):
    """The paths of the trainable variables that a step of training changes."""
    before = values(model)
    trained(model, x)
    after = values(model)
    return {
        v.path
        for v, a, b in zip(model.variables, before, after, strict=True)
        if v.trainable and np.any(a != b)
    }


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_convert_train_and_save(name, tmp_path):
    model, x = build(name)
    y, state = predict(model, x), model.get_weights()
    ks.scalify(model, recipe="float32")
    assert_same(predict(model, x), y)
    ks.unscalify(model)
    trainable = {v.path for v in model.trainable_variables}
    plain = trainable if JAX else moved(model, x)  # there GPT2 moves all of them
    model.set_weights(state)
    ks.scalify(model)
    report = ks.scalify_report(model)
    assert len(report.converted) == MODELS[name][3]
    left = [row for row in report.left if isinstance(row.layer, PRODUCTS)]
    assert all(row.reason == "projection to the output" for row in left)
    assert relative_error(predict(model, x), y) < 0.15
    assert moved(model, x) == plain
    if JAX:
        return  # the next test loads it
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(predict(loaded, x), predict(model, x))


LOAD = """
import sys, numpy as np, keras, keras_hub, keras_scalify
model = keras.models.load_model(sys.argv[1])
x = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], model.predict(x, verbose=0))
"""


def test_a_fresh_process_predicts_the_same_bits(tmp_path):
    model, x = build("GPT2")
    ks.scalify(model)
    files = [tmp_path / name for name in ("model.keras", "x.npz", "y.npy")]
    model.save(files[0])
    np.savez(files[1], **x)
    subprocess.run([sys.executable, "-c", LOAD, *map(str, files)], check=True)
    assert_same(np.load(files[2]).ravel(), predict(model, x))


@pytest.mark.parametrize("order", ["before", "after"][: 1 if JAX else 2])
def test_adapters_train_in_float32_beside_a_float8_base(order):
    model, x = build("Llama3")
    if order == "before":
        model.enable_lora(4)
    ks.scalify(model)
    if order == "after":
        model.enable_lora(4)
    variables = model.trainable_variables
    assert {v.name for v in variables} == {"lora_kernel_a", "lora_kernel_b"}
    assert {v.dtype for v in variables} == {"float32"}
    assert {path.split("/")[-1] for path in moved(model, x)} == {"lora_kernel_b"}
    assert len(ks.scalify_report(model).converted) == 7


def test_files_of_adapters(tmp_path):
    """KerasHub numbers the layers in them: scales must not count."""
    (plain, _), (scaled, _) = build("Llama3"), build("Llama3")
    ks.scalify(scaled)
    for model in plain, scaled:
        model.enable_lora(2)
    for source, target in (plain, scaled), (scaled, plain):
        for variable in source.trainable_variables:
            variable.assign(np.random.default_rng(0).normal(size=variable.shape))
        source.save_lora_weights(tmp_path / "model.lora.h5")
        target.load_lora_weights(tmp_path / "model.lora.h5")
        pairs = zip(source.trainable_variables, target.trainable_variables, strict=True)
        for a, b in pairs:
            assert_same(to_numpy(a), to_numpy(b))
    ks.unscalify(scaled)
    scaled.load_lora_weights(tmp_path / "model.lora.h5")
