"""Einsum equations split into the kinds of their labels."""

import numpy as np
import pytest

from keras_scalify.equations import parse

# equation: batch, contracted, x's own, w's own, gradient of x, gradient of w
PARTS = {
    "bk,kn->bn": ("", "k", "b", "n", "bn,kn->bk", "bk,bn->kn"),
    "abk,kn->abn": ("", "k", "ab", "n", "abn,kn->abk", "abk,abn->kn"),
    "k,kn->n": ("", "k", "", "n", "n,kn->k", "k,n->kn"),
    "abc,cde->abde": ("", "c", "ab", "de", "abde,cde->abc", "abc,abde->cde"),
    "abcd,acde->abe": ("a", "cd", "b", "e", "abe,acde->abcd", "abcd,abe->acde"),
    "bqhd,bkhd->bhqk": ("bh", "d", "q", "k", "bhqk,bkhd->bqhd", "bqhd,bhqk->bkhd"),
}

WRONG = [
    3,
    "...k,kn->...n",
    "bk,kn",
    "bk->b",
    "",
    "bkk,kn->bn",
    "bk,kn->bnn",
    "bkz,kn->bn",
    "bk,kn->bnz",
]


@pytest.mark.parametrize("equation", PARTS)
def test_parts(equation):
    parts = parse(equation)
    gradients = str(parts.input_gradient), str(parts.kernel_gradient)
    kinds = parts.batch, parts.contracted, parts.x_free, parts.w_free
    assert (*kinds, *gradients) == PARTS[equation]
    assert str(parts) == equation == str(parse(equation.replace(",", " , ")))


@pytest.mark.parametrize("equation", PARTS)
def test_gradient_equations_are_the_gradients(equation):
    """<g, y(x, w)> is linear in x and in w, so <dx, x> = <dw, w> = <g, y>."""
    rng = np.random.default_rng(0)
    parts = parse(equation)
    sizes = {c: 2 + i for i, c in enumerate(sorted(set(parts.x + parts.w)))}
    x, w, g = (
        rng.standard_normal([sizes[c] for c in term])
        for term in (parts.x, parts.w, parts.y)
    )
    product = np.sum(g * np.einsum(equation, x, w))
    dx = np.einsum(str(parts.input_gradient), g, w)
    dw = np.einsum(str(parts.kernel_gradient), x, g)
    np.testing.assert_allclose([np.sum(dx * x), np.sum(dw * w)], product)


@pytest.mark.parametrize("equation", WRONG)
def test_wrong_equation_names_what_came(equation):
    with pytest.raises(ValueError, match="equation") as error:
        parse(equation)
    assert f"equation={equation!r}" in str(error.value)
