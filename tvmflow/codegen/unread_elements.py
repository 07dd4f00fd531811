"""Removal of stores to elements of private memory that nothing reads.

A schedule copies the box of texels around those that a tile reads.  With strides or dilation the
box has others between them: of a row of 15 texels, a pointwise convolution of stride 2 reads 8.
Before and after :func:`DropUnreadElements`, on unrolled code::

    row[T.Ramp(0, 1, 4)] = T.texture2d_load(x, 0, ...)      row[T.Ramp(0, 1, 4)] = ...
    row[T.Ramp(4, 1, 4)] = T.texture2d_load(x, 1, ...)
    row[T.Ramp(8, 1, 4)] = T.texture2d_load(x, 2, ...)      row[T.Ramp(8, 1, 4)] = ...
    y[T.Ramp(0, 1, 4)] += row[0] * w[...]                   y[T.Ramp(0, 1, 4)] += row[0] * w[...]
    y[T.Ramp(4, 1, 4)] += row[8] * w[...]                   y[T.Ramp(4, 1, 4)] += row[8] * w[...]

GPUs' compilers drop such reads, too, but the source would be longer, and passes that count the
texels of a loop would count too many (:mod:`.prevent_unrolling`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import CHOICE, nodes_in
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name
from .textures import LOAD

_POINTER = "tirx.buffer_data"
#: Operators of copies, none of which has an effect.
_PURE = (LOAD, CHOICE, _POINTER)


@prim_func_pass("opencl")
def DropUnreadElements(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop copies to private memory of elements that are never read; runs on unrolled code."""
    # Memory whose address is taken, or whose index is computed, may be read anywhere.
    unknown = {c.args[0] for c in nodes_in(function.body, Call) if op_name(c) == _POINTER}
    read: defaultdict[tirx.Var, set[int]] = defaultdict(set)
    for load in nodes_in(function.body, TensorLoad):
        elements = _elements(load.indices)
        if elements is None:
            unknown.add(load.source)
        else:
            read[load.source] |= elements

    def drop(store: tirx.BufferStore) -> tirx.Stmt:
        buffer, written = store.buffer, _elements(store.indices)
        if buffer.scope() != "local" or buffer in unknown or written is None:
            return store
        if read[buffer] & written or _has_effects(store.value):
            return store
        return tirx.Evaluate(0)

    return map_nodes(function, (tirx.BufferStore, drop))


def _elements(indices: Iterable[tirx.Expr]) -> set[int] | None:
    """Return the elements at an index of a flat buffer; ``None`` if the index is not constant."""
    first, *others = indices
    base, stride, lanes = first, 1, 1
    if isinstance(first, tirx.Ramp):
        base, stride, lanes = first.base, first.stride, int(first.lanes)
    if others or not all(isinstance(n, (int, tirx.IntImm)) for n in (base, stride)):
        return None
    return {int(base) + int(stride) * lane for lane in range(lanes)}


def _has_effects(value: tirx.Expr) -> bool:
    return any(op_name(call) not in _PURE for call in nodes_in(value, Call))
