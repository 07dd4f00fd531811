"""The largest or smallest elements of short rows, by ranks.

TVM's sort for GPUs makes many kernels of a few threads each.  An element's rank is the number of
those before it, of equal ones those with a lower index.  This is a sum like others, and so is the
index that has a rank::

    before   (values, indices) = topk(x : [R, N], k)
    after    rank[r, i]    = sum_j (x[r, j] > x[r, i] or (x[r, j] == x[r, i] and j < i))
             indices[r, s] = sum_i (i if rank[r, i] == s else 0)                 s < k
             values        = gather_elements(x, indices)

Comparisons grow with the square of N: longer rows are left to the sort.  There is no NaN in x (the
front end has put infinity in its place).
"""

from __future__ import annotations

from tvm import IRModule, relax, te, tirx
from tvm.ir import Call
from tvm.relax import op as R

from ..ir.expressions import OPAQUE, nodes_in
from ..ir.passes import module_pass
from ..ir.rewriter import Rewriter, op_name, shape_of

#: Rows of up to so many elements are ranked.
_LONGEST_ROW = 1024


@module_pass("RankShortRows")
def RankShortRows(mod: IRModule) -> IRModule:  # noqa: N802
    """Replace ``topk`` of short rows; a module without any stays as it is."""
    found = any(_is_short(call) for call in nodes_in(mod["main"], Call))
    return _Ranks(mod).run() if found else mod


def _is_short(call: relax.Expr) -> bool:
    if op_name(call) != "relax.topk":
        return False
    return shape_of(call.args[0])[int(call.attrs.axis)] <= _LONGEST_ROW


class _Ranks(Rewriter):
    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        if not _is_short(value):
            return super().rewrite(var, value)
        attrs, x = value.attrs, self.substitute(value.args[0])
        axis = int(attrs.axis) % len(shape_of(value.args[0]))
        # What is fused with them would be computed for every pair.
        options = {"primfunc_attrs": {"op_pattern": OPAQUE}}
        ranks = self.bb.emit(
            self.bb.call_te(
                _ranks, x, axis, bool(attrs.largest), primfunc_name_hint="rank", **options
            )
        )
        places = self.bb.call_te(
            _places, ranks, axis, int(attrs.k), str(attrs.dtype), primfunc_name_hint="place",
            **options,
        )  # fmt: skip
        if attrs.ret_type == "indices":
            return places
        places = self.bb.emit(places)
        values = R.gather_elements(x, places, axis)
        return values if attrs.ret_type == "values" else relax.Tuple([self.bb.emit(values), places])


def _ranks(x: te.Tensor, axis: int, largest: bool) -> te.Tensor:
    """Count the elements of its row that go before each one."""
    other = te.reduce_axis((0, x.shape[axis]))

    def element(*index: tirx.Var) -> tirx.Expr:
        place, mine = list(index), x(*index)
        place[axis] = other
        theirs = x(*place)
        first = theirs > mine if largest else theirs < mine
        # Products and sums of truth values: C's operators would branch, which no vector does.
        earlier = other.astype("int32") < index[axis].astype("int32")
        equal = (theirs == mine).astype("int32") * earlier.astype("int32")
        return te.sum(first.astype("int32") + equal, other)

    return te.compute(x.shape, element, name="rank")


def _places(ranks: te.Tensor, axis: int, k: int, dtype: str) -> te.Tensor:
    """Find the indices that have the first ranks."""
    at = te.reduce_axis((0, ranks.shape[axis]))

    def element(*index: tirx.Var) -> tirx.Expr:
        place = list(index)
        place[axis] = at
        found = ranks(*place) == index[axis].astype("int32")
        return te.sum(tirx.Select(found, at.astype(dtype), tirx.const(0, dtype)), at)

    shape = [k if a == axis else n for a, n in enumerate(ranks.shape)]
    return te.compute(shape, element, name="place")
