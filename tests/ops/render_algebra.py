"""docs/algebra.md, made from the table of rules.

python -m tests.ops.render_algebra > docs/algebra.md
"""

import keras_scalify as ks

TEXT = """\
# The algebra of mean squares

A `ScaledTensor` is a tensor with an estimate of its **mean square**, `mean(value**2)`,
beside it: one float32 number. Its root is the tensor's natural scale, and the power of
two below it is what the tensor is divided by before it is rounded to float8. The
estimate is not measured. It is computed from those of the operands, by a rule for each
op, as if entries were independent Gaussians with mean 0: mean squares of independent
tensors add where tensors add and multiply where they multiply.

Backward, the cotangent of a mean square **is** the mean square of the gradient, called
`h` below. Where a tensor is used twice automatic differentiation adds the two, as it
does the gradients, and for most ops the derivative of the forward rule is the right
backward rule. Those that sum another number of terms backward than forward have their
own.

In the table:

- **forward** is the mean square of the result. `x` (or `a`, `b`; `w`) stands for the
  mean square of the operand of that name, `gamma` and `beta` for those of parameters,
  `n` for the number of entries that a reduction takes in.
- **backward** is the mean square of each operand's gradient, `h` that of the result's.
- `E[...]` is an expectation over Gaussians `z` with the mean square of the operand.
- **measured** means that the tensor at hand is read: where scales enter and leave, and
  in normalizations, so that the drift of the estimate stays within one block.

An op that is not in the table raises an error: leave by `ks.ops.unscale(x)`, compute,
and come back by `ks.ops.scale(x)`.

"""


def render() -> str:
    """The whole page."""
    rows = [("op", "forward", "backward", "note"), ("---",) * 4]
    for name, rule in sorted(ks.ops.RULES.items()):
        rows.append((f"`{name}`", rule.forward, rule.backward, rule.note))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return TEXT + "\n".join(line.replace("  |", " |") for line in lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
