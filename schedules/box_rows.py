"""Boxes that are written to rows of a packed tensor, which their index says.

Computes, for boxes ``b, m`` and coordinates ``k``::

    y[p, k] = 0;    y[row[b, m], k] = x[b, m, k] where row[b, m] >= 0

No two boxes have one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, te, tirx

from .box_code import COORDINATES, Expr, choice
from .masked_terms import replaced

#: What the loops over boxes are marked with.
_ROWS = "tvmflow.rows"


def compute(boxes: te.Tensor, row: te.Tensor, rows: Expr, name: str) -> te.Tensor:
    """The packed tensor; ``row`` is negative where a box has none."""

    def loops(ins: Sequence[Any], outs: Sequence[Any]) -> tirx.Stmt:
        source, index = ins
        (target,) = outs

        def clear(place: list[tirx.Var]) -> tirx.Stmt:
            return tirx.BufferStore(target, tirx.const(0, target.dtype), place)

        def write(place: list[tirx.Var]) -> tirx.Stmt:
            *box, lane = place
            at = tirx.BufferLoad(index, box)
            store = tirx.BufferStore(target, tirx.BufferLoad(source, place), [at, lane])
            return tirx.IfThenElse(at >= 0, store, None)

        marked = _nested(source.shape, write, {_ROWS: "yes"})
        return tirx.SeqStmt([_nested(target.shape, clear, {}), marked])

    buffers = [tirx.decl_buffer(t.shape, t.dtype, t.op.name) for t in (boxes, row)]
    result = tirx.decl_buffer((rows, COORDINATES), boxes.dtype, name)
    shapes, dtypes = [result.shape], [boxes.dtype]
    return te.extern(shapes, [boxes, row], loops, name, dtypes, buffers, [result])


def _nested(
    extents: Sequence[Expr], body: Callable[[list[tirx.Var]], tirx.Stmt], marks: dict[str, str]
) -> tirx.Stmt:
    """A loop for each extent; the outermost one has the marks."""
    variables = [tirx.Var(f"i{i}", "int32") for i in range(len(extents))]
    statement = body(variables)
    for depth, (var, extent) in reversed(list(enumerate(zip(variables, extents, strict=True)))):
        statement = tirx.For(
            var, tirx.const(0, "int32"), extent, tirx.ForKind.SERIAL, statement,
            annotations=marks if depth == 0 else {},
        )  # fmt: skip
    return statement


@dataclass(frozen=True)
class Scatter:
    """What such loops do of each box."""

    box: list[tirx.Var]
    lane: tirx.Var
    extents: list[Expr]
    tensor: Any
    value: Expr
    #: Of a box that has one.
    row: Expr
    #: The blocks that compute value and row.
    producers: list[s_tir.SBlock]


def scatter_of(block: s_tir.SBlock, others: Sequence[s_tir.SBlock]) -> Scatter | None:
    """The parts of a block that :func:`compute` stated, without what passes values to it."""
    body = block.body
    loop = body.seq[-1] if isinstance(body, tirx.SeqStmt) else None
    if not isinstance(loop, tirx.For) or _ROWS not in loop.annotations:
        return None
    variables, extents = [], []
    while isinstance(loop, tirx.For):
        variables.append(loop.loop_var)
        extents.append(loop.extent)
        loop = loop.body
    store, producers = loop.then_case, []
    inlined = []
    for load in (store.value, store.indices[0]):
        producer = next((b for b in others if _writes(b, load.source)), None)
        if producer is None:
            return None
        producers.append(producer)
        axes = [axis.var for axis in producer.iter_vars]
        places = list(zip(axes, load.indices, strict=True))
        inlined.append(replaced(producer.body.value, places))
    chosen = choice(inlined[1])
    if chosen is None:
        return None
    *box, lane = variables
    return Scatter(box, lane, extents[:-1], store.buffer, inlined[0], chosen[1], producers)


def _writes(block: s_tir.SBlock, tensor: Any) -> bool:
    return isinstance(block.body, tirx.BufferStore) and block.body.buffer.same_as(tensor)
