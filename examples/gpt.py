"""A GPT on the source of Python's standard library, byte by byte.

"float32" and "bfloat16" are Keras's own numbers; "float8" measures every scale; in
"float8-propagated" scales travel with the tensors, and only norms measure.
"""

import argparse
import os
import pathlib
import time

PRECISIONS = {  # name: (recipe, whether scales propagate, dtype policy)
    "float32": ("float32", False, "float32"),
    "bfloat16": ("float32", False, "mixed_bfloat16"),
    "float8": ("float8", False, "float32"),
    "float8-propagated": ("float8", True, "float32"),
}
BYTES = 256  # the vocabulary

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--precision", choices=PRECISIONS, default="float8-propagated")
parser.add_argument("--backend", choices=["jax", "tensorflow", "torch"], default="jax")
parser.add_argument("--state-dtype", default="float32", help="of Adam's moments")
parser.add_argument("--weight-dtype", help="of kernels at rest, such as float16")
parser.add_argument("--rate", type=float, default=1e-3)
SIZES = {"width": 128, "depth": 4, "heads": 4, "context": 64, "batch": 16}
for name, value in {**SIZES, "steps": 1000, "seed": 0}.items():
    parser.add_argument(f"--{name}", type=int, default=value)

if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = parser.parse_args().backend

import keras  # noqa: E402  (the backend is chosen above)
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

import keras_scalify as ks  # noqa: E402
from keras_scalify import layers  # noqa: E402


def read_text():
    """The bytes of the standard library: training and held-out, split by file."""
    files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    data = [np.frombuffer(f.read_bytes(), np.uint8) for f in files]
    train = [d for i, d in enumerate(data) if i % 10]
    return np.concatenate(train), np.concatenate(data[::10])


def windows(data, count, context, rng):
    """Random stretches of the data, (count, context), and the bytes that follow."""
    starts = rng.integers(0, len(data) - context - 1, (count, 1))
    rows = data[starts + np.arange(context + 1)].astype("int32")
    return rows[:, :-1], rows[:, 1:]


def build(args):
    """Pre-norm blocks of attention and a GELU MLP; the output is tied."""
    (recipe, propagate, _), size = PRECISIONS[args.precision], args.width // args.heads
    given = {"recipe": recipe, "weight_dtype": args.weight_dtype}
    # The projection to the logits stays in the policy's precision, as is usual.
    table = {**given, "recipe": "float32", "scaled": propagate}
    tokens = layers.ScaledEmbedding(BYTES, args.width, name="tokens", **table)
    positions = layers.ScaledEmbedding(args.context, args.width, **table)
    ids = keras.Input((args.context,), dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(ids), axis=1) - 1
    x = layers.ScaledAdd()([tokens(ids), positions(places)])
    for _ in range(args.depth):
        y = layers.ScaledLayerNormalization()(x)
        attend = layers.ScaledMultiHeadAttention(args.heads, size, **given)
        x = layers.ScaledAdd()([x, attend(y, y, use_causal_mask=True)])
        y = layers.ScaledLayerNormalization()(x)
        y = layers.ScaledDense(4 * args.width, activation="gelu", **given)(y)
        x = layers.ScaledAdd()([x, layers.ScaledDense(args.width, **given)(y)])
    x = layers.ScaledLayerNormalization()(x)
    return keras.Model(ids, layers.Unscale(dtype="float32")(tokens(x, reverse=True)))


def compiled(args):
    """The model, ready to train: Adam, a tenth of warm-up, cosine decay."""
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(PRECISIONS[args.precision][2])
    model, warm_up = build(args), args.steps // 10
    schedule = {"warmup_target": args.rate, "warmup_steps": warm_up}
    rate = keras.optimizers.schedules.CosineDecay(0.0, args.steps, **schedule)
    given = {"state_dtype": args.state_dtype, "global_clipnorm": 1.0}
    optimizer = ks.optimizers.ScaledAdam(rate, beta_2=0.99, **given)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def train(model, data, args):
    """The loss of every step, and tokens per second without the first tenth."""
    rng = np.random.default_rng(args.seed)
    x, y = windows(data, args.steps * args.batch, args.context, rng)
    losses, marks, tenth = [], [], max(args.steps // 10, 1)

    def record(step, logs):
        losses.append(logs["loss"] * (step + 1) - sum(losses))  # Keras's is the mean
        marks.append(time.perf_counter())
        if (step + 1) % tenth == 0:
            print(f"step {step + 1:5}  loss {np.mean(losses[-50:]):.4f}", flush=True)

    watch = [keras.callbacks.LambdaCallback(on_train_batch_end=record)]
    model.fit(x, y, args.batch, verbose=0, shuffle=False, callbacks=watch)
    seconds = (marks[-1] - marks[tenth - 1]) / max(len(marks) - tenth, 1)
    return losses, args.batch * args.context / max(seconds, 1e-9)


def held_out_loss(model, data, args):
    """The mean loss on 512 stretches of the held-out text, the same for every run."""
    x, y = windows(data, 512, args.context, np.random.default_rng(0))
    return model.evaluate(x, y, batch_size=64, verbose=0)


def sample(model, prompt, length, args):
    """The prompt and what the model thinks follows, drawn at temperature 0.7."""
    rng, text = np.random.default_rng(args.seed), bytearray(prompt)
    for _ in range(length):
        ids, recent = np.zeros((1, args.context), "int32"), text[-args.context :]
        ids[0, : len(recent)] = recent
        logits = model.predict_on_batch(ids)[0, len(recent) - 1]
        p = np.exp((logits - logits.max()) / 0.7)
        text.append(rng.choice(BYTES, p=p / p.sum()))
    return text.decode(errors="replace")


def plot(losses, args):
    """Save the loss of each step, raw and smoothed."""
    path = pathlib.Path("outputs") / f"gpt-{args.precision}-{args.backend}.png"
    path.parent.mkdir(exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
    smooth = np.convolve(losses, np.ones(50) / 50, "valid")
    axes.plot(range(25, 25 + len(smooth)), smooth, label="mean of 50")
    axes.set(xlabel="step", ylabel="training loss, nats a byte", title=path.stem)
    axes.legend()
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    args = parser.parse_args()
    text, held_out = read_text()
    model = compiled(args)
    print(f"{args.precision}, {args.backend}: {model.count_params():,} parameters")
    losses, speed = train(model, text, args)
    loss, size = held_out_loss(model, held_out, args), ks.optimizers.state_bytes(model)
    print(f"{speed:,.0f} tokens/s, held-out loss {loss:.4f}, state {size['total']:,} B")
    print(f"{sample(model, b'def ', 200, args)}\npicture: {plot(losses, args)}")
