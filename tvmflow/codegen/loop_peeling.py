"""Two copies of a kernel's body: one for its border, one without tests for everywhere else.

A padded convolution tests for every texel or element that it reads whether it lies in the
picture.  In most work-groups all of them do.  :func:`PeelBorders` finds the condition under
which no test of a work-group can fail; it depends on nothing but the group's index, so that
all work-items take the same way.  Before::

    for p in range(3):
        local[p] = T.if_then_else(1 <= y + p and y + p < 57, x[y + p - 1], 0)

After, with ``y = block * 8 + thread``::

    if 1 <= block * 8 and block * 8 + 9 < 57:
        for p in range(3):
            local[p] = x[y + p - 1]
    else:
        ...                                     # as before

A schedule asks for it with the pragma :data:`PRAGMA` on the innermost loop that is a thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, IntervalSet

from ..ir.expressions import conjuncts, nodes_in
from ..ir.passes import map_nodes, prim_func_pass

#: Annotation of a loop by its schedule, and the attribute that it is once blocks are lowered.
PRAGMA = "pragma_tvmflow_borders"

_CHOICE = ir.Op.get("prim.if_then_else")
#: Comparisons, with what is not negative (or positive) when they hold.
_NOT_NEGATIVE = {tirx.LE: lambda c: c.b - c.a, tirx.GE: lambda c: c.a - c.b}
_POSITIVE = {tirx.LT: lambda c: c.b - c.a, tirx.GT: lambda c: c.a - c.b}


@prim_func_pass("PeelBorders")
def PeelBorders(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Split what is below every such pragma; runs on loops, before tests become vectors."""
    attributes = nodes_in(function.body, tirx.AttrStmt)
    marked = [statement for statement in attributes if statement.attr_key == PRAGMA]
    if not marked:
        return function
    threads = {
        statement.node.var: (str(statement.node.thread_tag), int(statement.value))
        for statement in attributes
        # Scans of TVM's own have launches whose extents are computed; none is marked.
        if statement.attr_key == "thread_extent" and isinstance(statement.value, tirx.IntImm)
    }
    split = [_split(statement.body, threads) for statement in marked]

    def replace(statement: tirx.AttrStmt) -> tirx.Stmt:
        for old, new in zip(marked, split, strict=True):
            if statement.same_as(old):
                return new
        return statement

    return map_nodes(function, (tirx.AttrStmt, replace))


def _split(body: tirx.Stmt, threads: Mapping[tirx.Var, tuple[str, int]]) -> tirx.Stmt:
    choices = _border_choices(body)
    if not choices:
        return body
    inner = {
        var: IntervalSet(0, extent - 1)
        for var, (tag, extent) in threads.items()
        if tag.startswith("threadIdx")
    }
    for loop in nodes_in(body, tirx.For):
        inner[loop.loop_var] = IntervalSet(loop.min, loop.min + loop.extent - 1)
    analyzer = Analyzer()
    for var, (tag, extent) in threads.items():
        if tag.startswith("blockIdx"):
            analyzer.bind(var, ir.Range.from_min_extent(0, extent))
    conditions = []
    for choice in choices:
        for test in conjuncts(choice.args[0]):
            least = _least(test, inner, analyzer)
            if least is None:
                return body
            if not analyzer.can_prove(least):
                conditions.append(least)
    inside = _without(body, choices)
    if not conditions:
        return inside
    groups = {v: extent for v, (tag, extent) in threads.items() if tag.startswith("blockIdx")}
    if not all(_is_possible(conditions, var, extent) for var, extent in groups.items()):
        return body
    condition = tirx.all(*conditions) if len(conditions) > 1 else conditions[0]
    return tirx.IfThenElse(analyzer.simplify(condition), inside, body)


def _is_possible(conditions: list[tirx.Expr], var: tirx.Var, extent: int) -> bool:
    """True if some value of a variable meets all conditions on it alone."""
    on_var = [c for c in conditions if set(nodes_in(c, tirx.Var)) == {var}]
    analyzer = Analyzer()

    def holds(value: int) -> bool:
        def replace(used: tirx.Var) -> tirx.Expr:
            return tirx.IntImm("int32", value) if used.same_as(var) else used

        placed = (tvm_ffi.structural_map(c, (tirx.Var, replace)) for c in on_var)
        return all(analyzer.can_prove(condition) for condition in placed)

    return any(holds(value) for value in range(extent))


def _border_choices(body: tirx.Stmt) -> list[Call]:
    """Choices between an element and a constant by tests of indices alone."""
    return [
        call
        for call in nodes_in(body, Call)
        if call.op.same_as(_CHOICE)
        and isinstance(call.args[2], (tirx.IntImm, tirx.FloatImm))
        and not nodes_in(call.args[0], TensorLoad)
    ]


def _least(
    test: tirx.Expr, inner: Mapping[tirx.Var, IntervalSet], analyzer: Analyzer
) -> tirx.Expr | None:
    """The condition under which ``test`` holds for all values of ``inner``; ``None``: unknown."""
    for table, compare in ((_NOT_NEGATIVE, tirx.GE), (_POSITIVE, tirx.GT)):
        for kind, difference in table.items():
            if isinstance(test, kind):
                values = analyzer.int_set(analyzer.simplify(difference(test)), inner)
                least = values.min_value
                if any(v.name in ("neg_inf", "pos_inf") for v in nodes_in(least, tirx.Var)):
                    return None
                return analyzer.simplify(compare(least, tirx.IntImm(least.ty.dtype, 0)))
    return None


def _without(body: tirx.Stmt, choices: list[Call]) -> tirx.Stmt:
    """``body`` with the elements in place of the choices."""

    def replace(call: Call) -> tirx.Expr:
        return call.args[1] if any(call.same_as(choice) for choice in choices) else call

    return tvm_ffi.structural_map(body, (Call, replace))
