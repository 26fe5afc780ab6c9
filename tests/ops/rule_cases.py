"""A case for every rule: an op on independent Gaussians, and how near it must come."""

import dataclasses
from collections.abc import Callable

import numpy as np

import keras_scalify as ks
from keras_scalify.ops.activations import CURVES

CLOSE, NEAR = 1.2, 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A function of ScaledTensors of some shapes, and its limit.

    Attributes:
        op: the rule's name.
        function: of ScaledTensors.
        shapes: of its inputs.
        sigmas: standard deviations of all inputs, one run each.
        limit: the largest ratio of predicted and measured mean square, either way.
        label: what tells two cases of an op apart.
    """

    op: str
    function: Callable
    shapes: tuple
    sigmas: tuple = (1.0,)
    limit: float = CLOSE
    label: str = ""

    def __str__(self):
        return f"{self.op}-{self.label}" if self.label else self.op

    def inputs(self, sigma):
        """Fixed Gaussian inputs, independent of each other."""
        rng = np.random.default_rng(3)
        return [(rng.standard_normal(s) * sigma).astype("float32") for s in self.shapes]


def case(op, *shapes, function=None, kwargs=None, **settings):
    """A case whose function is the op with keywords."""
    rule, kwargs = getattr(ks.ops, op), kwargs or {}
    function = function or (lambda *xs: rule(*xs, **kwargs))
    label = settings.pop("label", ", ".join(f"{k}={v}" for k, v in kwargs.items()))
    return Case(op=op, function=function, shapes=shapes, label=label, **settings)


BINADES = (2.0**-6, 2.0**-3, 1.0, 2.0**3, 2.0**6)
MANY = (20011,)
# Where a curve is 0 except for the outermost entries, a sample measures nothing.
CURVE_SIGMAS = {"hard_shrink": (0.3, 1.0, 8.0), "soft_shrink": (0.3, 1.0, 8.0)}
CURVE_ARGUMENTS = {"threshold": {"threshold": 0.0, "default_value": -0.3}}


def curves():
    for name in CURVES:
        sigmas = CURVE_SIGMAS.get(name, BINADES)
        yield case(name, MANY, sigmas=sigmas, kwargs=CURVE_ARGUMENTS.get(name))
    yield case("gelu", MANY, kwargs={"approximate": False}, sigmas=BINADES)
    yield case("leaky_relu", MANY, kwargs={"negative_slope": 0.5}, sigmas=BINADES)
    yield case("elu", MANY, kwargs={"alpha": 2.0}, sigmas=BINADES)


X, Y = (53, 77), (53, 77)
INDICES = np.random.default_rng(4).integers(0, 997, (29, 61))
HALF, MOST = (np.random.default_rng(5).random(X) < p for p in (0.5, 0.6))


def arithmetic():
    for op in "add", "subtract", "multiply":
        yield case(op, X, Y)
        yield case(op, (5, 23, 57), (1, 23, 57), label="broadcast")
        yield case(op, (5, 999), (999,), label="broadcast row", sigmas=(2.0**-5,))
        rule = getattr(ks.ops, op)
        yield case(op, X, function=lambda x, op=rule: op(x, 3), label="a number")
        yield case(op, X, function=lambda x, op=rule: op(0.7, x), label="of a number")
    yield case("divide", X, function=lambda x: ks.ops.divide(x, 5))
    yield case("negative", X)
    where = ks.ops.where
    yield case("where", X, Y, function=lambda a, b: where(HALF, a, b))
    # The rule is of the entries that are kept: here a bit more than half.
    some = {"function": lambda x: where(MOST, x, 1e-3), "limit": NEAR}
    yield case("where", X, label="a number", **some)


def products():
    for recipe in "float8", "float32":
        yield case("matmul", (61, 77), (77, 45), kwargs={"recipe": recipe})
        batched = (3, 23, 37), (3, 37, 19)
        yield case("matmul", *batched, kwargs={"recipe": recipe}, label=f"3 {recipe}")
        for equation, *shapes in (
            ("abc,cde->abde", (5, 13, 44), (44, 3, 17)),
            ("aecd,abcd->acbe", (3, 11, 5, 29), (3, 13, 5, 29)),
        ):
            yield case(
                "einsum",
                *shapes,
                function=lambda x, w, e=equation, r=recipe: ks.ops.einsum(e, x, w, r),
                label=f"{equation} {recipe}",
            )


def normalizations():
    for size in 3, 37, 1000:
        shape = (max(3000 // size, 15), size)
        sigmas = (2.0**-6, 0.5, 1.0, 4.0)
        # Few logits of many decide the sum: 15 rows of 1000 scatter.
        limit = NEAR if size == 1000 else CLOSE
        yield case("softmax", shape, sigmas=sigmas, limit=limit, label=str(size))
        yield case("log_softmax", shape, sigmas=sigmas[:3], limit=NEAR, label=str(size))
    yield case("exp", MANY, sigmas=(2.0**-6, 0.25, 0.7), limit=NEAR)
    yield case("layer_normalization", X, sigmas=BINADES[1:])
    yield case("rms_normalization", X, sigmas=BINADES[1:])
    beta = np.random.default_rng(6).standard_normal(77).astype("float32")
    yield case(
        "layer_normalization",
        X,
        kwargs={"gamma": np.full(77, 0.5, "float32"), "beta": beta},
        label="gamma and beta",
    )
    yield case("rms_normalization", X, kwargs={"scale": 3.0})
    yield case("dropout", (101, 77), kwargs={"rate": 0.3, "seed": 1})
    yield case("glu", (53, 78), sigmas=BINADES, limit=NEAR)


def reductions():
    for op in "sum", "mean":
        for axis, shape in (0, (7, 9, 97)), (-1, (97, 9, 7)), ((0, 1), (11, 7, 997)):
            yield case(op, shape, kwargs={"axis": axis})
        yield case(op, (997, 13), kwargs={"axis": 1, "keepdims": True})
    yield case("max", (211, 23), kwargs={"axis": -1})
    yield case("max", (23, 211), kwargs={"axis": 0, "keepdims": True})
    for op in "max_pool", "average_pool":
        yield case(op, (7, 18, 12, 5), kwargs={"pool_size": 3})
        yield case(op, (7, 18, 12, 5), kwargs={"pool_size": (3, 2)})
        yield case(op, (7, 30, 5), kwargs={"pool_size": 4, "strides": 2}, limit=NEAR)


KEEPING = {
    "expand_dims": {"axis": 1},
    "flip": {"axis": 0},
    "moveaxis": {"source": 0, "destination": 1},
    "reshape": {"newshape": (77, 53)},
    "roll": {"shift": 3, "axis": 0},
    "squeeze": {},
    "swapaxes": {"axis1": 0, "axis2": 1},
    "transpose": {},
}


def shapes():
    for op, kwargs in KEEPING.items():
        yield case(op, (1, *X) if op == "squeeze" else X, kwargs=kwargs)
    yield case("broadcast_to", (53, 1), kwargs={"shape": X})
    yield case("repeat", X, kwargs={"repeats": 3, "axis": 0})
    yield case("repeat", X, kwargs={"repeats": 3})
    starts = {"start_indices": (4, 10), "shape": (30, 60)}
    yield case("slice", X, kwargs=starts)
    yield case("split", (53, 78), kwargs={"indices_or_sections": 3, "axis": -1})
    yield case("split", X, kwargs={"indices_or_sections": [10, 70], "axis": 1})
    yield case("pad", X, kwargs={"pad_width": ((3, 9), (20, 1))})
    yield case("pad", X, kwargs={"pad_width": ((1, 1), (2, 2)), "mode": "reflect"})
    for shape in (53, 77), (53, 200):
        both = lambda a, b: ks.ops.concatenate([a, b], axis=1)  # noqa: E731
        yield case("concatenate", X, shape, function=both, label=str(shape))
    yield case("stack", X, Y, function=lambda a, b: ks.ops.stack([a, b], axis=1))
    for x, axis in ((997, 3), 0), ((3, 997), 1), ((997, 1), None):
        rows = {"indices": INDICES, "axis": axis}
        yield case("take", x, kwargs=rows, label=str(axis))
    for op in "rescale", "rescale_gradient":
        yield case(op, X, sigmas=BINADES)


FAMILIES = {
    "curves": list(curves()),
    "arithmetic": list(arithmetic()),
    "products": list(products()),
    "normalizations": list(normalizations()),
    "reductions": list(reductions()),
    "shapes": list(shapes()),
}
