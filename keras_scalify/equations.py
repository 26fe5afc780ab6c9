"""Two-operand einsum equations: their parts and those of their gradients."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Equation:
    """`x,w->y` split into the kinds of its labels.

    batch labels are in x, w and y; contracted ones in x and w; free ones in y and one
    operand.
    """

    x: str
    w: str
    y: str
    batch: str
    contracted: str
    x_free: str
    w_free: str

    def __str__(self):
        return f"{self.x},{self.w}->{self.y}"

    @property
    def product(self) -> str:
        """The order in which a matrix product gives the labels of y."""
        return self.batch + self.x_free + self.w_free

    @property
    def dimension_numbers(self):
        """((contracted axes of x, of w), (batch axes of x, of w))."""
        return tuple(
            tuple(tuple(term.index(c) for c in labels) for term in (self.x, self.w))
            for labels in (self.contracted, self.batch)
        )

    @property
    def input_gradient(self) -> "Equation":
        """The equation of x's gradient from y's gradient and w."""
        return parse(f"{self.y},{self.w}->{self.x}")

    @property
    def kernel_gradient(self) -> "Equation":
        """The equation of w's gradient from x and y's gradient."""
        return parse(f"{self.x},{self.y}->{self.w}")


def parse(equation: str) -> Equation:
    """Split an equation such as "abk,kn->abn".

    Raises:
        ValueError: an ellipsis, a repeated label in one operand, or a label that stands
            in one operand only, which would make the gradient no product of this kind.
    """
    operands, _, y = str(equation).replace(" ", "").partition("->")
    x, _, w = operands.partition(",")
    if not y.isalpha() or not x.isalpha() or not w.isalpha():
        raise ValueError(
            f"`equation` must be of the form 'ab,bc->ac'. "
            f"Received: equation={equation!r}"
        )
    for term, others in (x, w + y), (w, x + y), (y, x + w):
        if len(set(term)) < len(term) or not set(term) <= set(others):
            raise ValueError(
                "every label of `equation` must stand in two of its three terms, once "
                f"in each. Received: equation={equation!r}"
            )
    return Equation(
        x=x,
        w=w,
        y=y,
        batch="".join([c for c in y if c in x and c in w]),
        contracted="".join([c for c in x if c not in y]),
        x_free="".join([c for c in x if c not in w]),
        w_free="".join([c for c in w if c not in x]),
    )
