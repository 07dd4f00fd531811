"""Write GIoU of a pair of boxes and its derivatives as expressions of eight numbers.

For a predicted box and its target, each ``x1 y1 x2 y2`` in fp32 or fp64::

    giou = inter / (union + e) - (enclosing - union) / (enclosing + e)

Sides are clamped at 0, so that an inverted box is empty.  A NaN in any of the eight numbers
makes the result and all of its derivatives NaN: sides are clamped by comparisons, as a maximum
drops NaNs on some targets.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import Expr

from ..schedules.boxes import arithmetic

#: Number that is added to areas before a division by them.
EPSILON = 1e-5


class Names:
    """Names of values that an expression uses more than once, so that they are computed once."""

    def __init__(self) -> None:
        self._bound: list[tuple[tirx.Var, Expr]] = []

    def name(self, name: str, value: Expr) -> tirx.Var:
        """Return a variable that has this value in what :meth:`close` returns."""
        self._bound.append((tirx.Var(name, value.ty.dtype), value))
        return self._bound[-1][0]

    def close(self, body: Expr) -> Expr:
        """Return the expression ``body`` with every name defined."""
        for var, value in reversed(self._bound):
            body = tirx.Let(var, value, body)
        return body


class Pair:
    """The values that GIoU and its derivatives share, from two boxes of any dtypes."""

    def __init__(self, pred: Sequence[Expr], target: Sequence[Expr], epsilon: float):
        self.names = names = Names()
        name, dtype = names.name, arithmetic(str(pred[0].ty.dtype))
        self.pred, self.target = (
            [
                name(f"{box}_{corner}", coordinate.astype(dtype))
                for corner, coordinate in zip(("x1", "y1", "x2", "y2"), coordinates, strict=True)
            ]
            for box, coordinates in (("pred", pred), ("target", target))
        )
        #: Sides along x and y, and the clamped sides: of both boxes, of their intersection, and of
        #: the box that encloses both.
        self.sides: dict[str, list[Expr]] = {}
        self.clamped: dict[str, list[Expr]] = {}
        (p1, p2), (t1, t2) = ((box[:2], box[2:]) for box in (self.pred, self.target))
        areas = {}
        for box, first, last in (
            ("pred", p1, p2),
            ("target", t1, t2),
            ("inter", map(tirx.Max, p1, t1), map(tirx.Min, p2, t2)),
            ("enclosing", map(tirx.Min, p1, t1), map(tirx.Max, p2, t2)),
        ):
            corners = zip("wh", first, last, strict=True)
            self.sides[box] = [name(f"{box}_{side}", end - start) for side, start, end in corners]
            width, height = self.clamped[box] = [
                name(f"{box}_{side}_clamped", _where_not_negative(length, length))
                for side, length in zip("wh", self.sides[box], strict=True)
            ]
            areas[box] = name(f"{box}_area", width * height)
        self.inter, self.enclosing = areas["inter"], areas["enclosing"]
        self.union = name("union_area", areas["pred"] + areas["target"] - self.inter)
        one, small = tirx.const(1, dtype), tirx.const(epsilon, dtype)
        self.union_epsilon = self.union + small
        self.per_union = name("per_union", one / self.union_epsilon)
        self.per_enclosing = name("per_enclosing", one / (self.enclosing + small))


def giou_of(pred: Sequence[Expr], target: Sequence[Expr], epsilon: float) -> Expr:
    """Return GIoU of two boxes, in fp64 if coordinates are, else in fp32."""
    pair = Pair(pred, target, epsilon)
    return pair.names.close(
        pair.inter * pair.per_union - (pair.enclosing - pair.union) * pair.per_enclosing
    )


def gradients_of(
    pred: Sequence[Expr], target: Sequence[Expr], epsilon: float
) -> tuple[Names, list[Expr]]:
    """Return the derivatives of GIoU by the eight coordinates, those of ``pred`` first.

    All derivatives share the returned names.  If two corners are equal, each has half of the
    derivative by their maximum or minimum; a side of exactly 0 counts as not clamped.
    """
    pair = Pair(pred, target, epsilon)
    name, per_union, per_enclosing = pair.names.name, pair.per_union, pair.per_enclosing
    # Derivatives by the union, the intersection (which the union contains) and the enclosing box.
    by_union = name("by_union", per_enclosing - pair.inter * per_union * per_union)
    by_inter = name("by_inter", per_union - by_union)
    by_enclosing = name("by_enclosing", -pair.union_epsilon * per_enclosing * per_enclosing)
    by_area = {"pred": by_union, "target": by_union, "inter": by_inter, "enclosing": by_enclosing}
    first, second = {}, {}
    for axis in range(2):
        # An area's derivative by one side is the other side.
        by_side = {
            box: name(
                f"by_{box}_{'wh'[axis]}",
                by * _where_not_negative(pair.sides[box][axis], pair.clamped[box][1 - axis]),
            )
            for box, by in by_area.items()
        }
        inter, enclosing = by_side["inter"], by_side["enclosing"]
        (p1, p2), (t1, t2) = pair.pred[axis::2], pair.target[axis::2]
        # The prediction's share in a corner of the intersection.  The target has the rest of it,
        # and each has the other's share in the corner of the enclosing box.
        left = name(f"left_{axis}", _share(p1, t1))
        right = name(f"right_{axis}", _share(t2, p2))
        for corner, share in ((axis, left), (axis + 2, right)):
            rest = name(f"rest_{corner}", tirx.const(1, share.ty.dtype) - share)
            first[corner] = by_side["pred"] + share * inter + rest * enclosing
            second[corner] = by_side["target"] + rest * inter + share * enclosing
        # A side shrinks as its first corner grows.
        first[axis], second[axis] = -first[axis], -second[axis]
    return pair.names, [by_corner[c] for by_corner in (first, second) for c in range(4)]


def _where_not_negative(value: Expr, chosen: Expr) -> Expr:
    """Return ``chosen``, or 0 where ``value`` is negative."""
    zero = tirx.const(0, value.ty.dtype)
    return tirx.Select(value < zero, zero, chosen)


def _share(a: Expr, b: Expr) -> Expr:
    """Return 1 where ``a > b``, 0 where it is less, and half where they are equal."""
    less, equal, greater = (tirx.const(share, a.ty.dtype) for share in (0, 0.5, 1))
    return tirx.Select(a > b, greater, tirx.Select(a < b, less, equal))
