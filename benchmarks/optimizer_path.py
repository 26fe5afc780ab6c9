"""The way of the weights under the same gradients, by how the optimizer's state rests.

The gradients of a training run of the GPT example in float32 are fed to Keras's Adam
and, alike, to ScaledAdam with each state dtype. Prints `|w - w_Adam| / |w_Adam - w_0|`
over all weights after 10, 100 and all steps, and bytes a weight. Nothing here is
chaotic, so that one run says it all.

    ./dev bench optimizer_path --width 64 --depth 2 --steps 1000
"""

import pathlib
import sys

import keras
import numpy as np

import keras_scalify as ks

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
import gpt  # noqa: E402

STATES = "float16", "bfloat16", "float8"


class Recorder(keras.optimizers.Adam):
    """Adam that moves further optimizers' variables by the same gradients."""

    def __init__(self, followers, **kwargs):
        super().__init__(**kwargs)
        self.followers = followers

    def build(self, variables):
        super().build(variables)
        self.start = [keras.ops.convert_to_numpy(v) for v in variables]
        for follower in self.followers.values():
            follower.build(variables)
            for variable in follower.all_variables:
                self._track_variable(variable)

    def apply(self, grads, trainable_variables=None):
        for follower in self.followers.values():
            follower.apply(grads)
        super().apply(grads, trainable_variables)


class Follower:
    """An optimizer with its own copy of the model's variables."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def build(self, variables):
        self.weights = [
            keras.Variable(keras.ops.convert_to_numpy(v), name=f"copy_{i}")
            for i, v in enumerate(variables)
        ]
        self.optimizer.build(self.weights)

    @property
    def all_variables(self):
        return [*self.weights, *self.optimizer.variables]

    def apply(self, grads):
        self.optimizer.apply(list(grads), self.weights)

    def distance(self, variables, start):
        """From Adam's weights, relative to the way that those have gone."""
        pairs = zip(self.weights, variables, start, strict=True)
        both = [[keras.ops.convert_to_numpy(x) for x in p[:2]] + [p[2]] for p in pairs]
        apart = sum(np.sum((np.float64(w) - v) ** 2) for w, v, _ in both)
        way = sum(np.sum((np.float64(v) - s) ** 2) for _, v, s in both)
        return (apart / way) ** 0.5


def report(recorder, variables, step):
    for name, follower in recorder.followers.items():
        distance = follower.distance(variables, recorder.start)
        state = ks.optimizers.state_bytes(follower.optimizer)["total"]
        weights = sum(int(np.prod(v.shape)) for v in follower.weights)
        row = f"{100 * distance:8.2f}%{state / weights:8.2f} bytes"
        print(f"step {step:5} {name:10}{row}", flush=True)


def main():
    parser = gpt.parser
    parser.set_defaults(precision="float32", width=64, depth=2)
    args = parser.parse_args()
    model, settings = gpt.compiled(args), {"beta_2": 0.99, "global_clipnorm": 1.0}
    rate = model.optimizer._learning_rate
    followers = {
        name: Follower(ks.optimizers.ScaledAdam(rate, state_dtype=name, **settings))
        for name in STATES
    }
    recorder = Recorder(followers, learning_rate=rate, **settings)
    model.compile(recorder, model.loss)
    text, _ = gpt.read_text()
    rng = np.random.default_rng(args.seed)
    x, y = gpt.windows(text, args.steps * args.batch, args.context, rng)

    def watch(step, logs):
        if step + 1 in (10, 100, args.steps):
            model.jax_state_sync() if keras.backend.backend() == "jax" else None
            report(recorder, model.trainable_variables, step + 1)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=watch)
    model.fit(x, y, args.batch, verbose=0, shuffle=False, callbacks=[callback])


if __name__ == "__main__":
    main()
