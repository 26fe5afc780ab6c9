"""Handwritten digits in float8: float32's accuracy with half the optimizer state.

A 64-256-256-10 network learns scikit-learn's digits (1797 images of 8 by 8 pixels)
twice from each seed: in float32 with Keras's Dense and Adam, and in a recipe with
ScaledDense and ScaledAdam.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

HIDDEN, BATCH, RATE, TEST_SHARE = 256, 64, 1e-3, 1 / 3

parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
backend = os.environ.get("KERAS_BACKEND", "jax")
parser.add_argument("--backend", default=backend, help="jax, tensorflow or torch")
parser.add_argument("--recipe", default="float8", help="of ScaledDense")
parser.add_argument("--state-dtype", default="float16", help="of ScaledAdam")
parser.add_argument("--epochs", type=int, default=20, help="passes over the images")
parser.add_argument("--seeds", type=int, default=3, help="how many")
args = parser.parse_args()
os.environ["KERAS_BACKEND"] = args.backend  # Keras reads it when it is imported

import keras  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

import keras_scalify as ks  # noqa: E402

x, y = load_digits(return_X_y=True)
x = (x / 16.0).astype("float32")  # pixels are 0 to 16
x_train, x_test, y_train, y_test = train_test_split(
    x, y.astype("int32"), test_size=TEST_SHARE, stratify=y, random_state=0
)


def build_float32():
    return compiled(keras.layers.Dense, keras.optimizers.Adam(RATE))


def build_scaled():
    def dense(*arguments, **kwargs):
        return ks.layers.ScaledDense(*arguments, recipe=args.recipe, **kwargs)

    optimizer = ks.optimizers.ScaledAdam(RATE, state_dtype=args.state_dtype)
    return compiled(dense, optimizer)


def compiled(dense, optimizer):
    model = keras.Sequential([keras.Input((x.shape[1],))])
    for units, activation in ((HIDDEN, "relu"), (HIDDEN, "relu"), (10, None)):
        model.add(dense(units, activation=activation))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def train(build, seed):
    """A model trained from a seed, and its losses and accuracies by epoch."""
    keras.utils.set_random_seed(seed)
    model, test = build(), (x_test, y_test)
    log = model.fit(x_train, y_train, BATCH, args.epochs, 0, validation_data=test)
    return model, log.history


def score(model):
    """Train accuracy, test accuracy and train loss."""
    loss, on_train = model.evaluate(x_train, y_train, verbose=0)
    return on_train, model.evaluate(x_test, y_test, verbose=0)[1], loss


def step_milliseconds(models, repeats=200):
    """Median time of a training step of each model; they take turns, to be fair."""
    times = [[] for _ in models]
    for _ in range(repeats):
        for model, own in zip(models, times, strict=True):
            start = time.perf_counter()
            model.train_on_batch(x_train[:BATCH], y_train[:BATCH])
            own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own) for own in times]


def plot(logs, path):
    """Curves by epoch: the mean of the seeds, and the range between them."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    keys = ("loss", "val_loss", "val_accuracy")
    titles = ("Training loss", "Test loss", "Test accuracy")
    # The wide line below, the narrow one above: both show where they coincide.
    looks = ((6, "0.7"), (1.8, "C3"))
    for panel, key, title in zip(axes, keys, titles, strict=True):
        for (width, color), (name, own) in zip(looks, logs.items(), strict=True):
            by_epoch = list(zip(*(log[key] for log in own), strict=True))
            epochs, mean = range(1, len(by_epoch) + 1), map(statistics.mean, by_epoch)
            panel.plot(epochs, list(mean), linewidth=width, color=color, label=name)
            low, high = (list(map(f, by_epoch)) for f in (min, max))
            panel.fill_between(epochs, low, high, alpha=0.2, color=color)
        panel.set(title=title, xlabel="epoch")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set(yscale="log")
    axes[1].set(yscale="log")
    axes[2].set(ylim=(0.9, 1.0))
    axes[0].legend(frameon=False, fontsize="small")
    figure.suptitle(f"Digits on {args.backend}: mean and range of {args.seeds} seeds")
    figure.savefig(path, dpi=130)


RUNS = {
    "Dense + Adam, float32": build_float32,
    f"ScaledDense {args.recipe} + ScaledAdam {args.state_dtype}": build_scaled,
}
models, logs = {}, {name: [] for name in RUNS}
scores = {name: [] for name in RUNS}
for seed in range(args.seeds):
    for name, build in RUNS.items():
        models[name], log = train(build, seed)
        logs[name].append(log)
        scores[name].append(score(models[name]))

print(f"digits on {args.backend}, {args.epochs} epochs, mean of {args.seeds} seeds\n")
print("| | train accuracy | test accuracy | final loss | optimizer state | step |")
print("|---|---|---|---|---|---|")
steps = step_milliseconds(list(models.values()))
for (name, model), step in zip(models.items(), steps, strict=True):
    on_train, on_test, loss = map(statistics.mean, zip(*scores[name], strict=True))
    row = f"| {name} | {on_train:.2%} | {on_test:.2%} | {loss:.5f} |"
    print(
        f"{row} {ks.optimizers.state_bytes(model)['total']:,} bytes | {step:.2f} ms |"
    )
path = Path("outputs", f"digits_{args.backend}.png")
path.parent.mkdir(exist_ok=True)
plot(logs, path)
print(f"\nLoss curves: {path}")
