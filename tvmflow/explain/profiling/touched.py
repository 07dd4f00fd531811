"""How many elements of a tensor a kernel touches, each once.

A block's region of a tensor is an interval for each dimension, in terms of the block's axes::

    for n < 1, c < 8, y < 14, x < 14:  out[n, c, y, x] = data[n, c, 2 * y, 2 * x]

touches 8 · 14 · 14 elements of ``data`` although that has 8 · 28 · 28.  The intervals are evaluated
for all values of the axes, dimensions that share none of them separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

#: Combinations of axes, and elements of a tensor, that are looked at one by one.
_LIMIT = 1 << 24

#: Indices along each dimension; arrays of a rank that broadcasts to all combinations.
Places = tuple[np.ndarray, ...]


class _UnknownError(Exception):
    """An index depends on data, or on what is not evaluated here."""


class Touched:
    """The elements of one tensor that are touched.

    Parameters
    ----------
    shape
        The tensor's extents.
    """

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)
        self._places: list[Places] = []
        self._most = 0

    def add(self, ranges: Sequence[Any], axes: Mapping[Any, range], accesses: int | None) -> None:
        """Add a region.

        Parameters
        ----------
        ranges
            An interval for each dimension.
        axes
            Values of the block's axes, and of loops around it.
        accesses
            Most elements that all accesses together can be, where it is known.
        """
        if any(_constant(r.extent) == 0 for r in ranges):
            return
        places = self._evaluate(ranges, axes)
        count = prod(np.broadcast_shapes(*(p.shape for p in places))) if places else 1
        self._most += count if accesses is None else min(count, accesses)
        self._places.append(places)

    @property
    def count(self) -> int:
        """Elements, each once, of all that was added."""
        size = prod(self.shape)
        most = min(self._most, size)
        if len(self._places) < 2 or size > _LIMIT or not self.shape:
            return most
        mask = np.zeros(self.shape, bool)
        for places in self._places:
            mask[places] = True
        return min(most, int(np.count_nonzero(mask)))

    def _evaluate(self, ranges: Sequence[Any], axes: Mapping[Any, range]) -> Places:
        groups = _groups([axes_in(r.min, axes) for r in ranges])
        places: list[np.ndarray] = [np.zeros(0)] * len(ranges)
        for position, dims in enumerate(groups):
            found = self._joint([(d, ranges[d]) for d in dims], axes)
            # One axis of the broadcast for each group of dimensions.
            shape = [1] * len(groups)
            shape[position] = -1
            for dim, indices in zip(dims, found, strict=True):
                places[dim] = indices.reshape(shape)
        return tuple(places)

    def _joint(
        self, intervals: Sequence[tuple[int, Any]], axes: Mapping[Any, range]
    ) -> list[np.ndarray]:
        """Indices along dimensions that share axes, without repetition."""
        extents = [self.shape[dim] for dim, _ in intervals]
        used = list(dict.fromkeys(v for _, r in intervals for v in axes_in(r.min, axes)))
        try:
            widths = [_width(r) for _, r in intervals]
            if prod(len(axes[v]) for v in used) * prod(widths) > _LIMIT:
                raise _UnknownError
            rank = len(used) + len(intervals)
            values = _values(used, axes, rank)
            flat, inside = np.zeros(1, np.int64), np.ones(1, bool)
            for n, ((_, r), width, extent) in enumerate(
                zip(intervals, widths, extents, strict=True)
            ):
                offset = np.arange(width).reshape(
                    [-1 if i == len(used) + n else 1 for i in range(rank)]
                )
                index = evaluate(r.min, values) + offset
                inside = inside & (index >= 0) & (index < extent)
                flat = flat * extent + index
            flat, inside = np.broadcast_arrays(flat, inside)
            return list(np.unravel_index(np.unique(flat[inside]), extents))
        except _UnknownError:
            if len(intervals) == 1:
                return [np.arange(extents[0])]
            # Too many to look at: every combination, which may be more than there are.
            alone = [self._joint([interval], axes)[0] for interval in intervals]
            grid = np.meshgrid(*alone, indexing="ij")
            return [g.ravel() for g in grid]


def _groups(used: Sequence[set[Any]]) -> list[list[int]]:
    """Dimensions that share axes, together."""
    groups: list[tuple[list[int], set[Any]]] = []
    for dim, axes in enumerate(used):
        touching = [g for g in groups if g[1] & axes]
        groups = [g for g in groups if not (g[1] & axes)]
        dims = sorted([dim, *(d for g in touching for d in g[0])])
        groups.append((dims, axes.union(*(g[1] for g in touching))))
    return [dims for dims, _ in groups]


def _values(used: Sequence[Any], axes: Mapping[Any, range], rank: int) -> dict[Any, np.ndarray]:
    """Values of axes: of those that are used each along a dimension of its own."""
    values = {v: np.asarray(r.start) for v, r in axes.items()}
    for n, v in enumerate(used):
        shape = [-1 if i == n else 1 for i in range(rank)]
        values[v] = np.arange(axes[v].start, axes[v].stop).reshape(shape)
    return values


def axes_in(expr: Any, axes: Mapping[Any, range]) -> set[Any]:
    """The axes of more than one value in an expression."""
    found: set[Any] = set()

    def visit(var: Any) -> None:
        if len(axes.get(var, ())) > 1:
            found.add(var)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return found


def _constant(expr: Any) -> int | None:
    if isinstance(expr, int):
        return expr
    return int(expr) if isinstance(expr, tirx.IntImm) else None


def _width(interval: Any) -> int:
    width = _constant(interval.extent)
    if width is None:
        raise _UnknownError
    return width


def share_of(condition: Any, axes: Mapping[Any, range]) -> float:
    """Part of the axes' values for which a condition holds; 1 where that is not known."""
    used = sorted(axes_in(condition, axes), key=lambda var: str(var.name))
    extents = [len(axes[v]) for v in used]
    if prod(extents) > _LIMIT:
        return 1.0
    try:
        held = np.broadcast_to(evaluate(condition, _values(used, axes, len(used))), extents)
    except _UnknownError:
        return 1.0
    return float(np.count_nonzero(held) / held.size)


_BINARY: dict[type, Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def evaluate(expr: Any, values: Mapping[Any, np.ndarray]) -> np.ndarray:
    """The value of an index for all values of its axes.

    Raises
    ------
    _UnknownError
        If it depends on data, or on another variable.
    """
    if isinstance(expr, tirx.IntImm):
        return np.asarray(int(expr))
    if isinstance(expr, TensorLoad):
        raise _UnknownError
    if isinstance(expr, tirx.Cast):
        return evaluate(expr.value, values)
    if isinstance(expr, tirx.Select):
        return np.where(
            evaluate(expr.condition, values),
            evaluate(expr.true_value, values),
            evaluate(expr.false_value, values),
        )
    if (operation := _BINARY.get(type(expr))) is not None:
        return operation(evaluate(expr.a, values), evaluate(expr.b, values))
    if isinstance(expr, Call) and getattr(expr.op, "name", "") == "prim.if_then_else":
        return np.where(*(evaluate(argument, values) for argument in expr.args))
    if isinstance(expr, Call) and getattr(expr.op, "name", "") == "prim.likely":
        return evaluate(expr.args[0], values)
    if isinstance(expr, tirx.Var) and expr in values:
        return values[expr]
    raise _UnknownError
