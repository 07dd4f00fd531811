"""Reads of local memory that other work-items wrote, for which TVM must insert barriers.

TVM 0.27 inserts a barrier between a write to local memory and a read of it (`ThreadSync`), but not
if both have the same index and it depends on the innermost index of work-items: it assumes that
each item has its own place.  In a group of 32 x 2 items that is wrong for ::

    if x < 1:
        peak[y] = ...
    total += exp(value[x] - peak[y])        # by all 32 items of a row

:func:`HideSharedReads` therefore changes the index of such a read, unless each item of the group
has its own place, and :func:`ShowSharedReads` restores it after the barriers::

    total += exp(value[x] - peak[tvmflow_shared(y)])
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.evaluate import UnknownError, evaluate, values_at, variables
from ..ir.expressions import nodes_in
from ..ir.passes import map_nodes, node_pass, prim_func_pass
from ..ir.rewriter import op_name

_NAME = "tvmflow_shared"

#: Indices of a group's work-items along axes of more than one item, with their extents.
_Items = dict[tirx.Var, int]


@prim_func_pass()
def HideSharedReads(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give reads of local memory another index than writes; runs before ``ThreadSync``."""
    allocated = nodes_in(function.body, tirx.AllocBuffer)
    if not any(statement.buffer.scope().startswith("shared") for statement in allocated):
        return function
    try:
        groups = {var: items for items in _groups(function.body) for var in items}
    except UnknownError:
        # TVM's sorting uses groups along one axis whose size is computed.
        return function

    def hide(load: TensorLoad) -> tirx.Expr:
        if not load.source.scope().startswith("shared"):
            return load
        items = next((groups[var] for var in variables(load.indices) if var in groups), {})
        if items and _has_own_place(load, items):
            return load
        *rest, last = load.indices
        return tirx.BufferLoad(load.source, [*rest, _hidden(last)])

    return map_nodes(function, (TensorLoad, hide))


def _groups(body: tirx.Stmt) -> list[_Items]:
    """Return the work-items of each kernel of a function."""
    attrs = [a for a in nodes_in(body, tirx.AttrStmt) if a.attr_key == "thread_extent"]
    inner = {found for a in attrs for found in nodes_in(a.body, tirx.AttrStmt)}
    groups = []
    for kernel in (a for a in attrs if a not in inner):
        axes = [a for a in nodes_in(kernel, tirx.AttrStmt) if a.attr_key == "thread_extent"]
        items = [a for a in axes if a.node.thread_tag.startswith("threadIdx")]
        extents = {a.node.var: int(evaluate(a.value, {})) for a in items}
        groups.append({var: extent for var, extent in extents.items() if extent > 1})
    return groups


def _has_own_place(load: TensorLoad, items: _Items) -> bool:
    """Return whether no two items of a group read the same place."""
    count = prod(items.values())
    values = dict.fromkeys(variables(load.indices), np.zeros(1, np.int64))
    values |= values_at(np.arange(count), list(items.items()))
    try:
        places = [np.broadcast_to(_first(evaluate(i, values), i), count) for i in load.indices]
    except UnknownError:
        return False
    return np.unique(np.stack(places), axis=1).shape[1] == count


def _first(places: np.ndarray, index: tirx.Expr) -> np.ndarray:
    """Return the first lane of a vector; return scalars unchanged."""
    return places[..., 0] if isinstance(index, tirx.Ramp | tirx.Broadcast) else places


def _hidden(index: tirx.Expr) -> tirx.Expr:
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(_hidden(index.base), index.stride, index.lanes)
    return tirx.call_pure_extern(index.ty.dtype, _NAME, index)


@node_pass(Call)
def ShowSharedReads(call: Call) -> tirx.Expr:
    """Restore the indices of reads; runs after ``ThreadSync``."""
    hidden = op_name(call) == "tirx.call_pure_extern" and call.args[0].value == _NAME
    return call.args[1] if hidden else call
