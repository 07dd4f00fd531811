"""The arithmetic of a pair of boxes, as expressions of eight fp32 numbers.

For a box ``x1 y1 x2 y2`` of the prediction and one of the target::

    giou = inter / (union + e) - (enclosing - union) / (enclosing + e)

Sides are clamped at 0, so that an inverted box is empty.  A NaN in any of the eight numbers
makes the result, and all of its derivatives, NaN: a side is compared and not given to a
maximum, which drops NaNs on some targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from .names import Names, Scalar

CORNERS = ("x1", "y1", "x2", "y2")

#: Added to areas that something is divided by.
EPSILON = 1e-5


def _number(value: float) -> Scalar:
    """A constant of the arithmetic."""
    return tirx.const(value, "float32")


def _positive_part(value: Scalar) -> Scalar:
    """``max(value, 0)`` that keeps a NaN."""
    return _where_not_negative(value, value)


def _where_not_negative(value: Scalar, chosen: Scalar) -> Scalar:
    """``chosen``, 0 where ``value`` is negative."""
    return tirx.Select(value < _number(0), _number(0), chosen)


@dataclass(frozen=True)
class Pair:
    """What GIoU and its derivatives share; the names are defined by :attr:`names`."""

    names: Names
    pred: Sequence[Scalar]
    target: Sequence[Scalar]
    #: Sides along x and y before they are clamped: of both boxes, of what they have in common,
    #: and of the box around both.
    sides: dict[str, tuple[Scalar, Scalar]]
    clamped: dict[str, tuple[Scalar, Scalar]]
    inter: Scalar
    union: Scalar
    enclosing: Scalar
    #: ``1 / (union + e)`` and ``1 / (enclosing + e)``.
    per_union: Scalar
    per_enclosing: Scalar

    @classmethod
    def of(cls, pred: Sequence[Scalar], target: Sequence[Scalar], epsilon: float) -> Pair:
        """Of two boxes' coordinates, which may be loads of any floating dtype."""
        names = Names()
        p1x, p1y, p2x, p2y, t1x, t1y, t2x, t2y = (
            names.name(f"{box}_{corner}", coordinate.astype("float32"))
            for box, coordinates in (("pred", pred), ("target", target))
            for corner, coordinate in zip(CORNERS, coordinates, strict=True)
        )
        raw = {
            "pred": (p2x - p1x, p2y - p1y),
            "target": (t2x - t1x, t2y - t1y),
            "inter": (
                tirx.Min(p2x, t2x) - tirx.Max(p1x, t1x),
                tirx.Min(p2y, t2y) - tirx.Max(p1y, t1y),
            ),
            "enclosing": (
                tirx.Max(p2x, t2x) - tirx.Min(p1x, t1x),
                tirx.Max(p2y, t2y) - tirx.Min(p1y, t1y),
            ),
        }
        sides, clamped, areas = {}, {}, {}
        for box, both in raw.items():
            x, y = (names.name(f"{box}_{side}", s) for side, s in zip("wh", both, strict=True))
            cx, cy = (
                names.name(f"{box}_{side}_clamped", _positive_part(s))
                for side, s in zip("wh", (x, y), strict=True)
            )
            sides[box], clamped[box] = (x, y), (cx, cy)
            areas[box] = names.name(f"{box}_area", cx * cy)
        inter, enclosing = areas["inter"], areas["enclosing"]
        union = names.name("union_area", areas["pred"] + areas["target"] - inter)
        one = _number(1)
        per_union = names.name("per_union", one / (union + _number(epsilon)))
        per_enclosing = names.name("per_enclosing", one / (enclosing + _number(epsilon)))
        return cls(
            names,
            (p1x, p1y, p2x, p2y),
            (t1x, t1y, t2x, t2y),
            sides,
            clamped,
            inter,
            union,
            enclosing,
            per_union,
            per_enclosing,
        )


def giou_of(pred: Sequence[Scalar], target: Sequence[Scalar], epsilon: float = EPSILON) -> Scalar:
    """GIoU of two boxes in fp32."""
    pair = Pair.of(pred, target, epsilon)
    return pair.names.close(
        pair.inter * pair.per_union - (pair.enclosing - pair.union) * pair.per_enclosing
    )


def gradients_of(
    pred: Sequence[Scalar], target: Sequence[Scalar], epsilon: float = EPSILON
) -> tuple[Names, list[Scalar]]:
    """Derivatives of GIoU with respect to the eight coordinates, those of ``pred`` first.

    Names are defined once for all of them.  Where two corners are equal, each gets half of what
    their maximum or minimum does; a side that is exactly 0 counts as one that is not clamped.
    """
    pair = Pair.of(pred, target, epsilon)
    names, per_union, per_enclosing = pair.names, pair.per_union, pair.per_enclosing
    # By the union, by the intersection (which is part of the union, too) and by the box around.
    by_union = names.name("by_union", per_enclosing - pair.inter * per_union * per_union)
    by_inter = names.name("by_inter", per_union - by_union)
    by_enclosing = names.name(
        "by_enclosing", -(pair.union + _number(epsilon)) * per_enclosing * per_enclosing
    )
    by_area = {"pred": by_union, "target": by_union, "inter": by_inter, "enclosing": by_enclosing}
    first, second = {}, {}
    for axis in range(2):
        # An area's derivative by one side is the other side.
        by_side = {
            box: names.name(
                f"by_{box}_{'wh'[axis]}",
                by * _where_not_negative(pair.sides[box][axis], pair.clamped[box][1 - axis]),
            )
            for box, by in by_area.items()
        }
        p1, p2, t1, t2 = (
            pair.pred[axis],
            pair.pred[axis + 2],
            pair.target[axis],
            pair.target[axis + 2],
        )
        # The share of the prediction's corner in that of the intersection; the target has the rest
        # of it, and both have the other share of the corner of the box around.
        left = names.name(f"left_{axis}", _share(p1, t1))
        right = names.name(f"right_{axis}", _share(t2, p2))
        for corner, share, sign in ((axis, left, -1), (axis + 2, right, 1)):
            rest = names.name(f"rest_{corner}", _number(1) - share)
            inter, enclosing = by_side["inter"], by_side["enclosing"]
            first[corner] = by_side["pred"] + share * inter + rest * enclosing
            second[corner] = by_side["target"] + rest * inter + share * enclosing
            if sign < 0:
                first[corner], second[corner] = -first[corner], -second[corner]
    return names, [first[c] for c in range(4)] + [second[c] for c in range(4)]


def _share(a: Scalar, b: Scalar) -> Scalar:
    """1 where ``a > b``, 0 where it is less, half where they are equal."""
    equal_or_less = tirx.Select(a < b, _number(0), _number(0.5))
    return tirx.Select(a > b, _number(1), equal_or_less)
