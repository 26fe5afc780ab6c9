"""Held-out loss of the GPT example in several precisions, in pairs.

Every seed gives the same data and the same initial weights to every precision, so that
the differences scatter less than the runs. Prints, for each precision, the mean
difference to the first one in percent and its standard error, and appends each run to a
JSON file, from which a later call goes on. A precision may name the dtypes of the
optimizer's state and of the weights at rest too: "float32:float16:float16".

    python benchmarks/convergence.py --seeds 12 --width 96 --depth 3
"""

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
import gpt  # noqa: E402

PRECISIONS = ("float32", "float8", "float8-propagated")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--results", default="outputs/convergence.json")
    return parser.parse_known_args()


def run(precision, seed, rest):
    """The held-out loss of one run."""
    names = "--precision", "--state-dtype", "--weight-dtype"
    given = ["--seed", str(seed)]
    for name, value in zip(names, precision.split(":"), strict=False):
        given += [name, value]
    args = gpt.parser.parse_args([*rest, *given])
    text, held_out = gpt.read_text()
    model = gpt.compiled(args)
    gpt.train(model, text, args)
    return gpt.held_out_loss(model, held_out, args)


def table(losses, precisions):
    """Mean loss, and difference to the first precision in percent with its error."""
    print(f"{'precision':24}{'loss':>9}{'difference':>12}{'error':>8}{'pairs':>7}")
    base = losses[precisions[0]]
    for precision in precisions:
        seeds = sorted(set(base) & set(losses[precision]))
        pairs = np.array([[base[s], losses[precision][s]] for s in seeds])
        difference = 100 * (pairs[:, 1] / pairs[:, 0] - 1)
        error = difference.std(ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else np.nan
        mean = pairs[:, 1].mean()
        row = f"{mean:9.4f}{difference.mean():11.2f}%{error:7.2f}%{len(seeds):7}"
        print(f"{precision:24}{row}", flush=True)


def main():
    args, rest = options()
    path = pathlib.Path(args.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    losses = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(args.seeds):
        for precision in args.precisions:
            done = losses.setdefault(precision, {})
            if str(seed) not in done:
                done[str(seed)] = run(precision, seed, rest)
                path.write_text(json.dumps(losses))
        table(losses, args.precisions)


if __name__ == "__main__":
    main()
