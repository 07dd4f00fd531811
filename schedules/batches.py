"""Leading axes of matrix products, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx


def leading(x: te.Tensor, w: te.Tensor, axes: int = 2) -> list[int]:
    """Leading axes of the product; ``w`` has ``axes`` axes behind its own."""
    left, right = [int(d) for d in x.shape[:-2]], [int(d) for d in w.shape[:-axes]]
    rank = max(len(left), len(right))
    pairs = zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)
    return [b if a == 1 else a for a, b in pairs]


def batch_of(t: te.Tensor, axes: int, index: Sequence[tirx.PrimExpr]) -> list[tirx.PrimExpr]:
    """Leading indices of an operand at those of the product."""
    own = t.shape[:-axes]
    taken = index[len(index) - len(own) :]
    return [i if int(extent) > 1 else 0 for i, extent in zip(taken, own, strict=True)]
