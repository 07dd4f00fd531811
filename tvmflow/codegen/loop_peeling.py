"""Two copies of a kernel's body: one for its border, and one without tests for the interior.

A padded convolution tests for every texel or element that it reads whether it is inside the
picture.  In most work-groups all of them are.  :func:`PeelBorders` finds the condition under
which no test of a work-group can fail; it depends only on the group's index, so that all
work-items take the same branch.  Before::

    for p in range(3):
        local[p] = T.if_then_else(1 <= y + p and y + p < 57, x[y + p - 1], 0)

After, with ``y = block * 8 + thread``::

    if 1 <= block * 8 and block * 8 + 9 < 57:
        for p in range(3):
            local[p] = x[y + p - 1]
    else:
        ...                                     # as before

A schedule requests it by the pragma :data:`.PEEL_BORDERS` on the innermost thread loop.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, IntervalSet

from ..ir.annotations import PEEL_BORDERS
from ..ir.expressions import CHOICE, conjuncts, nodes_in, substitute_vars
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name

#: Comparisons as a difference that is not negative, or positive, when they hold.
_DIFFERENCES = {
    tirx.LE: (tirx.GE, lambda c: c.b - c.a),
    tirx.GE: (tirx.GE, lambda c: c.a - c.b),
    tirx.LT: (tirx.GT, lambda c: c.b - c.a),
    tirx.GT: (tirx.GT, lambda c: c.a - c.b),
}


@prim_func_pass()
def PeelBorders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split the body of every such pragma; runs on loops, before tests become vectors."""
    attributes = nodes_in(function.body, tirx.AttrStmt)
    marked = [statement for statement in attributes if statement.attr_key == PEEL_BORDERS]
    if not marked:
        return function
    # TVM's own scans have computed launch extents; they have no such pragma.
    threads = [
        (str(statement.node.thread_tag), statement.node.var, int(statement.value))
        for statement in attributes
        if statement.attr_key == "thread_extent" and isinstance(statement.value, tirx.IntImm)
    ]
    items, groups = (
        {var: extent for tag, var, extent in threads if tag.startswith(kind)}
        for kind in ("threadIdx", "blockIdx")
    )
    split = [_split(statement.body, items, groups) for statement in marked]

    def replace(statement: tirx.AttrStmt) -> tirx.Stmt:
        return next(
            (n for o, n in zip(marked, split, strict=True) if statement.same_as(o)), statement
        )

    return map_nodes(function, (tirx.AttrStmt, replace))


def _split(
    body: tirx.Stmt, items: Mapping[tirx.Var, int], groups: Mapping[tirx.Var, int]
) -> tirx.Stmt:
    """Return both copies; ``items`` and ``groups`` are extents of a launch's variables."""
    # Choices between an element and a constant, by tests of indices only.
    choices = [
        call
        for call in nodes_in(body, Call)
        if op_name(call) == CHOICE
        and isinstance(call.args[2], (tirx.IntImm, tirx.FloatImm))
        and not nodes_in(call.args[0], TensorLoad)
    ]
    if not choices:
        return body
    inner = {var: IntervalSet(0, extent - 1) for var, extent in items.items()}
    for loop in nodes_in(body, tirx.For):
        inner[loop.loop_var] = IntervalSet(loop.min, loop.min + loop.extent - 1)
    analyzer = Analyzer()
    for var, extent in groups.items():
        analyzer.bind(var, ir.Range.from_min_extent(0, extent))
    conditions = []
    for test in (test for choice in choices for test in conjuncts(choice.args[0])):
        least = _least(test, inner, analyzer)
        if least is None:
            return body
        if not analyzer.can_prove(least):
            conditions.append(least)

    def inside(call: Call) -> tirx.Expr:
        return call.args[1] if any(call.same_as(choice) for choice in choices) else call

    plain = tvm_ffi.structural_map(body, (Call, inside))
    if not conditions:
        return plain
    if not all(_is_possible(conditions, var, extent) for var, extent in groups.items()):
        return body
    condition = tirx.all(*conditions) if len(conditions) > 1 else conditions[0]
    return tirx.IfThenElse(analyzer.simplify(condition), plain, body)


def _is_possible(conditions: list[tirx.Expr], var: tirx.Var, extent: int) -> bool:
    """Return whether some value of a variable meets all conditions on this variable alone."""
    on_var = [c for c in conditions if set(nodes_in(c, tirx.Var)) == {var}]
    analyzer = Analyzer()
    values = ({var: tirx.IntImm("int32", value)} for value in range(extent))
    return any(all(analyzer.can_prove(substitute_vars(c, at)) for c in on_var) for at in values)


def _least(
    test: tirx.Expr, inner: Mapping[tirx.Var, IntervalSet], analyzer: Analyzer
) -> tirx.Expr | None:
    """Return the condition for ``test`` to hold for all values of ``inner``, if it is known."""
    if type(test) not in _DIFFERENCES:
        return None
    compare, difference = _DIFFERENCES[type(test)]
    least = analyzer.int_set(analyzer.simplify(difference(test)), inner).min_value
    if any(v.name in ("neg_inf", "pos_inf") for v in nodes_in(least, tirx.Var)):
        return None
    return analyzer.simplify(compare(least, tirx.IntImm(least.ty.dtype, 0)))
