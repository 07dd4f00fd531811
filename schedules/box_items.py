"""Statements for one box: it is read and written as one vector of four, or one texel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from .box_code import COORDINATES, Code, Expr, is_of_box
from .box_loops import loop, product, unravel
from .box_nests import Nest, Output, emit
from .statements import sequence


def box_statement(nest: Nest, box: Sequence[Expr]) -> tirx.Stmt:
    """What computes one box."""

    def write(code: Code, out: Output, values: list[Expr]) -> None:
        at = out.place(box) if out.row is None else [code.lift(out.row)]
        if not out.whole:
            value = values[0].astype(out.tensor.dtype)
            code.statements.append(tirx.BufferStore(out.tensor, value, at))
            return
        _write_whole(code, out.tensor, at, values)

    code = Code(_read_whole)
    emit(code, nest.at(box), write)
    return code.finish()


def unowned_rows(nest: Nest, out: Output) -> tuple[Expr, Callable[[Expr], tirx.Stmt]]:
    """What makes rows 0 that no box has: an extent, and a statement of each index below it.

    Such rows are before those of the first sample, behind those of the last one, and at the end
    of samples that are longer than there are boxes.
    """
    rows, zero = out.tensor.shape[0].astype("int32"), tirx.const(0, "int32")
    if nest.limit() is None:
        return rows, lambda row: _zeroed(out.tensor, row)
    *outer, boxes = nest.extents
    samples = product(outer) if outer else tirx.const(1, "int32")

    def end(sample: list[Expr]) -> Expr:
        return nest.row_of(out, [*sample, nest.limit_of(sample)])

    def zeros(index: Expr) -> tirx.Stmt:
        first = nest.row_of(out, [zero] * (len(outer) + 1))
        last = Analyzer().simplify(end([extent - 1 for extent in outer]))
        outside = tirx.any(index < first, index >= last)
        sample = unravel(index, outer) if outer else []
        begin = nest.row_of(out, [*sample, boxes])
        too_long = loop(
            tirx.Max(nest.limit_of(sample) - boxes, 0),
            tirx.ForKind.SERIAL,
            lambda i: _zeroed(out.tensor, begin + i),
        )
        return sequence(
            [
                tirx.IfThenElse(tirx.all(index < rows, outside), _zeroed(out.tensor, index), None),
                tirx.IfThenElse(index < samples, too_long, None),
            ]
        )

    return tirx.Max(rows, samples), zeros


def _zeroed(tensor: Any, row: Expr) -> tirx.Stmt:
    code = Code(_read_whole)
    _write_whole(code, tensor, [row], [tirx.const(0, "float32")] * COORDINATES)
    return code.finish()


def _write_whole(code: Code, tensor: Any, at: list[Expr], values: Sequence[Expr]) -> None:
    """Write a box as a whole."""
    result = code.private(f"{tensor.name}_box", (COORDINATES,))
    for corner, value in enumerate(values):
        code.statements.append(tirx.BufferStore(result, value.astype("float32"), [corner]))
    code.statements.append(
        _vector(lambda k: tirx.BufferStore(tensor, result[k].astype(tensor.dtype), [*at, k]))
    )


def _read_whole(code: Code, load: TensorLoad) -> Expr:
    """A coordinate of a copy of the whole box."""
    if not is_of_box(load):
        return load
    *box, corner = load.indices
    copy = code.copied(load)
    if copy is None:
        copy = code.private(f"{load.source.name}_box", (COORDINATES,))
        code.statements.append(
            _vector(
                lambda k: tirx.BufferStore(
                    copy, tirx.BufferLoad(load.source, [*box, k]).astype("float32"), [k]
                )
            )
        )
        code.copies.append((load.source, box, copy))
    return tirx.BufferLoad(copy, [corner])


def _vector(body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """All coordinates at once."""
    return loop(tirx.const(COORDINATES, "int32"), tirx.ForKind.VECTORIZED, body, "k")
