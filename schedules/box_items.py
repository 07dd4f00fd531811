"""Loops over boxes: a box is read and written as one vector of four (a texel)."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from .box_code import COORDINATES, Code, Expr
from .box_loops import loop, sequence
from .box_nests import Nest, Output, emit


def box_statement(nest: Nest, box: Sequence[Expr]) -> tirx.Stmt:
    """What computes one box."""

    def write(code: Code, out: Output, values: list[Expr]) -> None:
        at = _place(out, box) if out.row is None else [code.lift(out.row)]
        if not out.whole:
            code.statements.append(tirx.BufferStore(out.tensor, values[0], at))
            return
        result = code.private(f"{out.tensor.name}_box", COORDINATES, out.tensor.dtype)
        for corner, value in enumerate(values):
            code.statements.append(tirx.BufferStore(result, value, [corner]))
        code.statements.append(
            loop(
                tirx.const(COORDINATES, "int32"),
                tirx.ForKind.VECTORIZED,
                lambda k: tirx.BufferStore(out.tensor, tirx.BufferLoad(result, [k]), [*at, k]),
                "k",
            )
        )

    code = Code(_read_whole)
    emit(code, nest.at(box), write)
    return sequence(code.statements)


def stretch(nest: Nest, outer: Sequence[Expr], begin: Expr, length: Expr, vector: int) -> tirx.Stmt:
    """The boxes of a sample from ``begin`` on."""
    return loop(length, tirx.ForKind.SERIAL, lambda i: box_statement(nest, [*outer, begin + i]))


def _place(out: Output, box: Sequence[Expr]) -> list[Expr]:
    """The index of a box in an output; a nest that is flat counts on from the first row."""
    rank = len(out.tensor.shape) - (1 if out.whole else 0)
    return [*[tirx.const(0, "int32")] * (rank - len(box)), *box]


def _read_whole(code: Code, load: TensorLoad) -> Expr:
    """A coordinate of a copy of the whole box."""
    if len(load.indices) < 2:
        return load
    *box, corner = load.indices
    extent = load.source.shape[-1]
    if not (isinstance(corner, tirx.IntImm) and isinstance(extent, tirx.IntImm)):
        return load
    if int(extent) != COORDINATES:
        return load
    for tensor, index, copy in code.copies:
        if tensor.same_as(load.source) and tvm_ffi.structural_equal(index, box):
            return tirx.BufferLoad(copy, [corner])
    copy = code.private(f"{load.source.name}_box", COORDINATES, load.source.dtype)
    code.statements.append(
        loop(
            tirx.const(COORDINATES, "int32"),
            tirx.ForKind.VECTORIZED,
            lambda k: tirx.BufferStore(copy, tirx.BufferLoad(load.source, [*box, k]), [k]),
            "k",
        )
    )
    code.copies.append((load.source, box, copy))
    return tirx.BufferLoad(copy, [corner])
