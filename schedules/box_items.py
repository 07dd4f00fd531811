"""Statements for one box: it is read and written as one vector of four, or one texel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from .box_code import COORDINATES, Code, Expr, in_fp32, is_of_box
from .box_loops import loop
from .box_nests import Nest, Output, emit


def box_statement(nest: Nest, box: Sequence[Expr]) -> tirx.Stmt:
    """What computes one box."""

    def write(code: Code, out: Output, values: list[Expr]) -> None:
        at = out.place(box) if out.row is None else [code.lift(out.row)]
        if not out.whole:
            code.statements.append(tirx.BufferStore(out.tensor, values[0], at))
            return
        result = code.private(f"{out.tensor.name}_box", (COORDINATES,))
        for corner, value in enumerate(values):
            code.statements.append(tirx.BufferStore(result, in_fp32(value), [corner]))
        dtype = out.tensor.dtype
        code.statements.append(
            _vector(lambda k: tirx.BufferStore(out.tensor, result[k].astype(dtype), [*at, k]))
        )

    code = Code(_read_whole)
    emit(code, nest.at(box), write)
    return code.finish()


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
