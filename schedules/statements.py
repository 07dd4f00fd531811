"""Statements of a function that a family writes itself, loop by loop.

For what schedule primitives cannot express: bounds that are read from memory, lists, barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import ForKind, IterVar

Value = Any
Buffer = Any


class Statements:
    """Statements, written from the first to the last; blocks of them are ``with`` blocks.

    A loop over threads must hold one block (:meth:`block`), which is opaque to schedules.
    """

    def __init__(self) -> None:
        self._open: list[list[tirx.Stmt]] = [[]]

    def finish(self) -> tirx.Stmt:
        """All that was written."""
        (statements,) = self._open
        return sequence(statements)

    def add(self, statement: tirx.Stmt) -> None:
        """Write a statement."""
        self._open[-1].append(statement)

    def name(self, name: str, value: Value) -> tirx.Var:
        """Compute a value once; what is returned stands for it in what follows."""
        var = tirx.Var(name, value.ty.dtype)
        self.add(tirx.Bind(var, value))
        return var

    def alloc(self, name: str, shape: Sequence[int], dtype: str) -> Buffer:
        """Private memory of an item."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope="local")
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def store(self, buffer: Buffer, value: Value, *indices: Value) -> None:
        """Write an element, or a vector where the last index is a `tirx.Ramp`."""
        self.add(tirx.BufferStore(buffer, value, list(indices)))

    def barrier(self) -> None:
        """Let the items of a group wait for each other."""
        self.add(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))

    @contextmanager
    def loop(
        self, name: str, extent: Value, kind: ForKind = ForKind.SERIAL, thread: str | None = None
    ) -> Iterator[tirx.Var]:
        """A loop from 0, or an axis of threads such as ``blockIdx.x``."""
        var = tirx.Var(name, "int32")
        axis = None
        if thread is not None:
            kind = ForKind.THREAD_BINDING
            axis = IterVar(None, tirx.Var("", "int32"), IterVar.ThreadIndex, thread)
        yield from self._nested(
            var, lambda body: tirx.For(var, number(0), _expr(extent), kind, body, axis)
        )

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Statements that run where a condition holds."""
        yield from self._nested(None, lambda body: tirx.IfThenElse(condition, body, None))

    @contextmanager
    def block(self, name: str, memory: Sequence[Buffer]) -> Iterator[None]:
        """An opaque block, with memory of its own, which may grow until it is closed."""
        yield from self._nested(
            None,
            lambda body: s_tir.SBlockRealize(
                [], True, s_tir.SBlock([], [], [], name, body, alloc_buffers=list(memory))
            ),
        )

    def _nested(self, value: Any, close: Any) -> Iterator[Any]:
        self._open.append([])
        yield value
        self.add(close(sequence(self._open.pop())))


def number(value: int) -> tirx.IntImm:
    """An index."""
    return tirx.IntImm("int32", value)


def _expr(extent: Value) -> Value:
    return number(extent) if isinstance(extent, int) else extent


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Statements as one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
