"""Functions whose loops a family writes itself, around expressions that it takes from blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad

from .statements import sequence

Expr = Any


def loop(
    extent: Expr,
    kind: tirx.ForKind,
    body: Callable[[tirx.Var], tirx.Stmt],
    name: str = "i",
    tag: str | None = None,
) -> tirx.For:
    """A loop from 0; ``body`` makes its statement of the variable."""
    dtype = extent.ty.dtype
    var = tirx.Var(name, dtype)
    binding = None
    if tag is not None:
        binding = tirx.IterVar(None, tirx.Var(tag, dtype), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, tirx.const(0, dtype), extent, kind, body(var), binding)


def product(extents: Sequence[Expr]) -> Expr:
    """Of at least one extent."""
    total = extents[0]
    for extent in extents[1:]:
        total = total * extent
    return total


def unravel(position: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The indices of a position in a nest of loops, outermost first."""
    indices: list[Expr] = []
    # Nothing is negative, which nobody knows of an extent that is a variable.
    for extent in reversed(extents[1:]):
        indices.insert(0, tirx.truncmod(position, extent))
        position = tirx.truncdiv(position, extent)
    return [position, *indices]


def opaque(statement: tirx.Stmt) -> tirx.Stmt:
    """A block that is scheduled already."""
    read: list[Any] = []
    written: list[Any] = []
    own: list[Any] = []
    tvm_ffi.structural_walk(
        statement,
        [
            (TensorLoad, lambda load: read.append(load.source)),
            (tirx.BufferStore, lambda store: written.append(store.buffer)),
            (tirx.AllocBuffer, lambda allocation: own.append(allocation.buffer)),
        ],
    )
    regions = ([_all_of(t) for t in _others(tensors, own)] for tensors in (read, written))
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], *regions, "boxes", statement))


def with_statements(sch: s_tir.Schedule, statements: Sequence[tirx.Stmt]) -> s_tir.Schedule:
    """The function of a schedule with other statements as its body, one kernel each."""
    function = sch.mod["main"]
    root = s_tir.SBlock([], [], [], "root", sequence(statements))
    body = s_tir.SBlockRealize([], True, root)
    return s_tir.Schedule(tirx.PrimFunc(function.params, body, function.ret_type, function.attrs))


def _others(tensors: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Each tensor once, without those of the statement itself."""
    found: list[Any] = []
    for tensor in tensors:
        if not any(tensor.same_as(known) for known in (*found, *own)):
            found.append(tensor)
    return found


def _all_of(tensor: Any) -> Any:
    return tirx.BufferRegion(tensor, [Range(0, extent) for extent in tensor.shape])
