"""Selection of the largest or smallest elements of rows (``topk``) by ranks.

TVM's sort for GPUs launches many kernels of a few threads each.  An element's rank is the number of
elements before it; equal elements are ordered by their index.  The rank is a plain sum, and so is
the index that has a rank::

    before   (values, indices) = topk(x : [R, N], k)
    after    rank[r, i]    = sum_j (x[r, j] > x[r, i] or (x[r, j] == x[r, i] and j < i))
             indices[r, s] = sum_i (i if rank[r, i] == s else 0)                 s < k
             values        = gather_elements(x, indices)

Comparisons grow with the square of N.  In longer rows the first k of each part are selected, then
the first k among these, until a short row remains; if k is more than half of a part, rows are left
to TVM's sort.  There is no NaN in x (the front end has replaced it with infinity).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import IRModule, relax, te, tirx
from tvm.ir import Call
from tvm.relax import op as R

from ..ir.expressions import OPAQUE, nodes_in
from ..ir.passes import module_pass
from ..ir.rewriter import Rewriter, op_name, shape_of

#: Most elements of a row that is ranked at once.
_LONGEST_ROW = 1024
#: Fewest elements of a part of longer rows.
_SHORTEST_PART = 256


@module_pass("RankShortRows")
def RankShortRows(mod: IRModule) -> IRModule:  # noqa: N802
    """Replace ``topk`` of short rows."""
    found = any(_is_ranked(call) for call in nodes_in(mod["main"], Call))
    return _Ranks(mod).run() if found else mod


def _is_ranked(call: relax.Expr) -> bool:
    if op_name(call) != "relax.topk":
        return False
    extent = shape_of(call.args[0])[int(call.attrs.axis)]
    return extent <= _LONGEST_ROW or int(call.attrs.k) <= _LONGEST_ROW // 2


class _Ranks(Rewriter):
    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        if not _is_ranked(value):
            return super().rewrite(var, value)
        attrs, x = value.attrs, self.substitute(value.args[0])
        axis = int(attrs.axis) % len(shape_of(value.args[0]))
        places = self._first(x, axis, int(attrs.k), bool(attrs.largest), str(attrs.dtype))
        if attrs.ret_type == "indices":
            return places
        values = R.gather_elements(x, places, axis)
        return values if attrs.ret_type == "values" else relax.Tuple([self.bb.emit(values), places])

    def _first(self, x: relax.Expr, axis: int, k: int, largest: bool, dtype: str) -> relax.Var:
        """Return the indices of the first k elements of rows."""
        at = None
        while (extent := shape_of(x)[axis]) > _LONGEST_ROW:
            size = min(_LONGEST_ROW, max(_SHORTEST_PART, 4 * k))
            parts = self._te(_parts, x, axis, size, largest, name="parts")
            places = self._short(parts, axis + 1, k, largest, dtype)
            places = self._te(_joined, places, axis, size, name="join")
            x = self._te(_elements, x, places, axis, largest, name="elements")
            # Indices past the end of the row are never selected: a part has k other elements.
            if at is not None:
                limit = relax.const(extent - 1, dtype)
                at = self.bb.emit(R.gather_elements(at, R.minimum(places, limit), axis))
            else:
                at = places
        places = self._short(x, axis, k, largest, dtype)
        return places if at is None else self.bb.emit(R.gather_elements(at, places, axis))

    def _short(self, x: relax.Expr, axis: int, k: int, largest: bool, dtype: str) -> relax.Var:
        ranks = self._te(_ranks, x, axis, largest, name="rank")
        return self._te(_places, ranks, axis, k, dtype, name="place")

    def _te(self, function: Callable[..., te.Tensor], *arguments: object, name: str) -> relax.Var:
        # A fused producer would be computed for every pair of elements.
        attributes = {"op_pattern": OPAQUE}
        call = self.bb.call_te(
            function, *arguments, primfunc_name_hint=name, primfunc_attrs=attributes
        )
        return self.bb.emit(call)


def _worst(dtype: str, largest: bool) -> tirx.Expr:
    """Return a value that comes last in the order."""
    if dtype.startswith("float"):
        return tirx.const(-np.inf if largest else np.inf, dtype)
    bounds = np.iinfo(dtype)
    return tirx.const(int(bounds.min if largest else bounds.max), dtype)


def _parts(x: te.Tensor, axis: int, size: int, largest: bool) -> te.Tensor:
    """Split rows ``[R, N]`` into parts ``[R, ceil(N / size), size]``; pad the last one."""
    extent = int(x.shape[axis])
    shape = [*x.shape[:axis], -(-extent // size), size, *x.shape[axis + 1 :]]

    def element(*index: tirx.Var) -> tirx.Expr:
        at = index[axis] * size + index[axis + 1]
        place = [*index[:axis], at, *index[axis + 2 :]]
        return tirx.if_then_else(at < extent, x(*place), _worst(str(x.dtype), largest))

    return te.compute(shape, element, name="parts")


def _joined(places: te.Tensor, axis: int, size: int) -> te.Tensor:
    """Convert indices within parts to indices of whole rows, ``[R, P, k]`` to ``[R, P * k]``."""
    k = places.shape[axis + 1]
    shape = [*places.shape[:axis], places.shape[axis] * k, *places.shape[axis + 2 :]]

    def element(*index: tirx.Var) -> tirx.Expr:
        part, place = index[axis] // k, index[axis] % k
        found = places(*index[:axis], part, place, *index[axis + 1 :])
        return found + (part * size).astype(str(places.dtype))

    return te.compute(shape, element, name="joined")


def _elements(x: te.Tensor, places: te.Tensor, axis: int, largest: bool) -> te.Tensor:
    """Read elements of rows by index; indices past the end give the last value in the order."""

    def element(*index: tirx.Var) -> tirx.Expr:
        at = places(*index)
        found = x(*index[:axis], at, *index[axis + 1 :])
        return tirx.if_then_else(at < x.shape[axis], found, _worst(str(x.dtype), largest))

    return te.compute(places.shape, element, name="elements")


def _ranks(x: te.Tensor, axis: int, largest: bool) -> te.Tensor:
    """Count the elements of the same row that come before each element."""
    other = te.reduce_axis((0, x.shape[axis]))

    def element(*index: tirx.Var) -> tirx.Expr:
        place, mine = list(index), x(*index)
        place[axis] = other
        theirs = x(*place)
        first = theirs > mine if largest else theirs < mine
        # Multiply and add truth values: C's logical operators would branch and prevent
        # vectorisation.
        earlier = other.astype("int32") < index[axis].astype("int32")
        equal = (theirs == mine).astype("int32") * earlier.astype("int32")
        return te.sum(first.astype("int32") + equal, other)

    return te.compute(x.shape, element, name="rank")


def _places(ranks: te.Tensor, axis: int, k: int, dtype: str) -> te.Tensor:
    """Find the indices of the elements with the first ranks."""
    at = te.reduce_axis((0, ranks.shape[axis]))

    def element(*index: tirx.Var) -> tirx.Expr:
        place = list(index)
        place[axis] = at
        found = ranks(*place) == index[axis].astype("int32")
        return te.sum(tirx.Select(found, at.astype(dtype), tirx.const(0, dtype)), at)

    shape = [k if a == axis else n for a, n in enumerate(ranks.shape)]
    return te.compute(shape, element, name="place")
