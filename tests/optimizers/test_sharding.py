"""State and narrow weights under a layout of eight devices, which only JAX has."""

import subprocess
import sys

import keras
import pytest

SCRIPT = """
import keras, numpy as np, keras_scalify as ks
from keras import distribution

def train(weight_dtype, state_dtype):
    keras.utils.set_random_seed(0)
    dense = ks.layers.ScaledDense
    model = keras.Sequential([
        keras.Input((64,)),
        dense(128, "relu", recipe="float32", weight_dtype=weight_dtype, name="wide"),
        dense(4, recipe="float32", name="narrow")], name="model")
    model.compile(ks.optimizers.ScaledAdam(1e-2, state_dtype=state_dtype), "mse")
    x = np.random.default_rng(0).normal(size=(32, 64)).astype("float32")
    model.fit(x, x[:, :4], batch_size=16, epochs=4, verbose=0, shuffle=False)
    # The optimizer alone, where nothing is summed: the same bits.
    variables, rng = model.trainable_variables, np.random.default_rng(1)
    start = {v.path: np.asarray(v.value, "float32") for v in variables}
    optimizer = ks.optimizers.ScaledAdam(1e-2, state_dtype=state_dtype)
    optimizer.build(variables)
    for _ in range(5):
        g = [rng.normal(size=v.shape).astype(v.dtype) for v in variables]
        optimizer.apply([keras.ops.convert_to_tensor(a) for a in g], variables)
    slots = {f"{i} {v.name}": v for i, v in enumerate(optimizer.variables)}
    return model, start, slots

cases = ((None, "float16"), (None, "float8"), ("float16", "float16"))
alone = [train(*case) for case in cases]
mesh = distribution.DeviceMesh((2, 4), ["batch", "model"], distribution.list_devices())
layout = distribution.LayoutMap(mesh)
layout[".*wide.*kernel"] = (None, "model")
distribution.set_distribution(
    distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
for case, (_, start, slots) in zip(cases, alone):
    model, start_here, slots_here = train(*case)
    for path, value in start.items():
        # Sums in another order, and roundings that fall otherwise for it.
        apart = np.abs(start_here[path] - value).max()
        assert apart <= 2e-3 * np.abs(value).max(), (case, path, apart)
    for name, slot in slots.items():
        np.testing.assert_array_equal(slot.value, slots_here[name].value, err_msg=name)
    kernel = model.layers[0].kernel_variable
    assert "model" in str(kernel.value.sharding.spec)
    own = [v for v in slots_here.values() if v.shape == kernel.shape]
    assert len(own) == 2
    for v in own:
        assert v.value.sharding == kernel.value.sharding, v.path
"""


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="no layouts elsewhere")
def test_slots_are_sharded_like_their_variables(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
