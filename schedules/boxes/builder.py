"""The builder that families of boxes, and recurrent layers, write kernels with, loop by loop.

For what schedule primitives cannot express: bounds that are read from memory, lists, barriers, and
boxes that are read and written as a whole.  A *row* is the four numbers of a box, next to each
other in memory, of which an expression takes each by a constant index: ``pred[b, j, 0]`` to
``pred[b, j, 3]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.ir import Call, Op, Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Expr, ForKind, IterVar, Stmt, Var

from ...ir.expressions import CHOICE, nodes_in, uses

#: Numbers of a row: the coordinates of a box.
COORDINATES = 4

_LAZY = Op.get(CHOICE)
_T = TypeVar("_T")


class Statements:
    """Statements, written from the first to the last; blocks of them are ``with`` blocks.

    A loop over threads must hold one block (:meth:`block`), which is opaque to schedules.
    """

    def __init__(self) -> None:
        self._open: list[list[Stmt]] = [[]]

    @property
    def written(self) -> list[Stmt]:
        """All statements."""
        (statements,) = self._open
        return statements

    def finish(self) -> Stmt:
        """All of them as one."""
        return sequence(self.written)

    def add(self, statement: Stmt) -> None:
        """Write a statement."""
        self._open[-1].append(statement)

    def name(self, name: str, value: Expr) -> Var:
        """Compute a value once; what is returned stands for it in what follows."""
        var = Var(name, value.ty.dtype)
        self.add(tirx.Bind(var, value))
        return var

    def name_stored(self, name: str, value: Expr, lanes: int = 1, lane: Expr | int = 0) -> Var:
        """The same by way of private memory, a number for each lane of a vector.

        TVM writes arithmetic wherever its name is used, over and over, but not what is read.
        """
        memory = self.alloc(f"{name}_value", (lanes,), str(value.ty.dtype))
        self.store(memory, value, lane)
        return Statements.name(self, name, memory[lane])

    def name_all(self, expression: Expr) -> Expr:
        """Compute what an expression names (`tirx.Let`) as statements; what is left of it.

        Generated C would have a name's text wherever it is used.
        """
        values: dict[Var, Expr] = {}
        while isinstance(expression, tirx.Let):
            value = replaced(expression.value, values)
            values[expression.var] = self.name(expression.var.name, value)
            expression = expression.body
        return replaced(expression, values)

    def alloc(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
        """Private memory of an item."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope="local")
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def store(self, buffer: Buffer, value: Expr, *indices: Expr | int) -> None:
        """Write an element, or a vector where the last index is a `tirx.Ramp`."""
        self.add(tirx.BufferStore(buffer, value, list(indices)))

    def barrier(self) -> None:
        """Let the items of a group wait for each other."""
        self.add(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))

    # -- blocks of statements -------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        name: str,
        extent: Expr | int,
        kind: ForKind = ForKind.SERIAL,
        thread: str | None = None,
    ) -> Iterator[Var]:
        """A loop from 0, or an axis of threads such as ``blockIdx.x``."""
        var = Var(name, "int32")
        axis = None
        if thread is not None:
            kind = ForKind.THREAD_BINDING
            axis = IterVar(None, Var("", "int32"), IterVar.ThreadIndex, thread)
        extent = number(extent) if isinstance(extent, int) else extent
        yield from self._nested(
            var, lambda body: tirx.For(var, number(0), extent, kind, body, axis)
        )

    @contextmanager
    def loops(self, extents: Sequence[Expr]) -> Iterator[list[Var]]:
        """A nest of loops."""
        with ExitStack() as stack:
            named = [self.loop(f"i{axis}", extent) for axis, extent in enumerate(extents)]
            yield [stack.enter_context(loop) for loop in named]

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Statements that run where a condition holds."""
        yield from self._nested(None, lambda body: tirx.IfThenElse(condition, body, None))

    @contextmanager
    def repeat(self, condition: Expr) -> Iterator[None]:
        """Statements that run again as long as a condition holds, which memory must change."""
        yield from self._nested(None, lambda body: tirx.While(condition, body))

    @contextmanager
    def block(
        self,
        name: str,
        memory: Sequence[Buffer] = (),
        annotations: Mapping[str, str | int] | None = None,
    ) -> Iterator[None]:
        """An opaque block, with annotations, and memory of its own, which may grow until it ends.

        It says that it touches all of each tensor that is not its own.
        """

        def close(body: Stmt) -> s_tir.SBlockRealize:
            regions = [
                [tirx.BufferRegion(t, [Range(0, extent) for extent in t.shape]) for t in tensors]
                for tensors in _touched(body, memory)
            ]
            block = s_tir.SBlock(
                [], *regions, name, body, alloc_buffers=list(memory), annotations=annotations
            )
            return s_tir.SBlockRealize([], True, block)

        yield from self._nested(None, close)

    @contextmanager
    def parts(self, name: str, count: Expr | int, launches: bool) -> Iterator[Expr]:
        """A block for each part: a thread's of the host, or a work-group's of a CPU's kernel.

        There is no loop over a single one, and no launch of none.
        """
        if launches:
            groups = count if isinstance(count, int) else tirx.Max(count, 1)
            with self.loop("group", groups, thread="blockIdx.x") as index, self.block(name):
                yield index
        elif isinstance(count, int) and count == 1:
            with self.block(name):
                yield number(0)
        else:
            with self.loop("part", count, ForKind.PARALLEL) as index, self.block(name):
                yield index

    @contextmanager
    def items(
        self, name: str, groups: Expr | int, size: int, memory: Sequence[Buffer] = ()
    ) -> Iterator[tuple[Var, Var]]:
        """A GPU's kernel: a block for each item of each group."""
        with (
            self.loop("group", groups, thread="blockIdx.x") as group,
            self.loop("item", size, thread="threadIdx.x") as item,
            self.block(name, memory),
        ):
            yield group, item

    def _nested(self, value: _T, close: Callable[[Stmt], Stmt]) -> Iterator[_T]:
        self._open.append([])
        yield value
        self.add(close(sequence(self._open.pop())))


def stated(
    inputs: Sequence[te.Tensor],
    outputs: Sequence[tuple[str, tuple[int, ...], str]],
    marks: Mapping[str, str],
    write: Callable[[Statements, Sequence[Buffer]], None],
) -> list[te.Tensor]:
    """State tensors, each with name, shape and dtype, by loops that one thread could run.

    They are one block, the only one of its function, that is marked for its family.
    """

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        code = Statements()
        with code.block("loops", annotations=marks):
            write(code, [*ins, *outs])
        return code.finish()

    buffers = [tirx.decl_buffer(shape, dtype, name) for name, shape, dtype in outputs]
    shapes, dtypes = [b.shape for b in buffers], [b.dtype for b in buffers]
    # What is the only block of a function is its root.
    found = te.extern(shapes, list(inputs), body, "root", dtypes, out_buffers=buffers)
    return list(found)


def sequence(statements: Sequence[Stmt]) -> Stmt:
    """Statements as one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _touched(statement: Stmt, memory: Sequence[Buffer]) -> list[list[Buffer]]:
    """The tensors that a statement reads, and those that it writes, without its own memory."""
    read: dict[Buffer, None] = {}
    written: dict[Buffer, None] = {}
    own = dict.fromkeys(memory)
    tvm_ffi.structural_walk(
        statement,
        [
            (TensorLoad, lambda load: read.setdefault(load.source)),
            (tirx.BufferStore, lambda store: written.setdefault(store.buffer)),
            (tirx.AllocBuffer, lambda allocation: own.setdefault(allocation.buffer)),
            (s_tir.SBlock, lambda block: own.update(dict.fromkeys(block.alloc_buffers))),
        ],
    )
    return [[tensor for tensor in found if tensor not in own] for found in (read, written)]


def schedule_of(function: tirx.PrimFunc, body: Stmt) -> s_tir.Schedule:
    """A function with statements instead of its body."""
    return s_tir.Schedule(tirx.PrimFunc(function.params, body, function.ret_type, function.attrs))


# -- expressions --------------------------------------------------------------------------


def arithmetic(dtype: str) -> str:
    """What numbers of a dtype are computed in: doubles in their own, all others in fp32."""
    return dtype if dtype == "float64" else "float32"


def number(value: int, dtype: str = "int32") -> tirx.IntImm:
    """An index."""
    return tirx.IntImm(dtype, value)


def in_32_bits(extent: Expr) -> Expr:
    """An extent as kernels count."""
    return number(int(extent)) if isinstance(extent, tirx.IntImm) else extent.astype("int32")


def places_of(variables: Sequence[Var], values: Sequence[Expr]) -> dict[Var, Expr]:
    """What stands for the first variables, which may have 64 bits; boxes are counted in 32."""
    return {v: value.astype(v.ty.dtype) for v, value in zip(variables, values, strict=False)}


def replaced(expression: Expr, values: Mapping[Var, Expr]) -> Expr:
    """An expression, or statements, with values in place of variables."""
    return tvm_ffi.structural_map(expression, (Var, lambda var: values.get(var, var)))


def follows(place: Sequence[Expr], var: Var) -> bool:
    """Tell whether the last index counts with a variable, and the others do not depend on it."""
    *outer, last = place
    return not any(uses(index, var) for index in [*outer, Analyzer().simplify(last - var)])


def loads_of(expressions: Expr | Sequence[Expr]) -> list[TensorLoad]:
    """All that expressions read."""
    return nodes_in(expressions, TensorLoad)


def choice(expression: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Condition and both values of an expression that computes one of them only."""
    lazy = isinstance(expression, Call) and expression.op.same_as(_LAZY)
    return tuple(expression.args) if lazy else None


def unravel(position: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The indices of a position in a nest of loops, outermost first."""
    indices: list[Expr] = []
    # Nothing is negative, which nobody knows of an extent that is a variable.
    for extent in reversed(extents[1:]):
        indices.insert(0, tirx.truncmod(position, extent))
        position = tirx.truncdiv(position, extent)
    return [position, *indices]


# -- rows of numbers ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """A tensor ``[..., 4]`` and where in it a box's row is."""

    tensor: Buffer
    #: All but the last index.
    place: tuple[Expr, ...]

    @classmethod
    def of(cls, load: TensorLoad) -> Row | None:
        """The row that a load takes a number of, ``None`` where it is none."""
        if len(load.indices) < 2 or not tirx.is_buffer_var(load.source):
            return None
        (*place, corner), extent = load.indices, load.source.shape[-1]
        known = isinstance(corner, tirx.IntImm) and isinstance(extent, tirx.IntImm)
        return cls(load.source, tuple(place)) if known and int(extent) == COORDINATES else None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Row)
            and self.tensor.same_as(other.tensor)
            and tvm_ffi.structural_equal(self.place, other.place)
        )

    def __hash__(self) -> int:
        return int(tvm_ffi.structural_hash(self.place))

    def at(self, values: Mapping[Var, Expr]) -> Row:
        """The row of another box."""
        return Row(self.tensor, tuple(replaced(index, values) for index in self.place))

    def read(self, lanes: int = COORDINATES, first: int = 0) -> Expr:
        """So many numbers to compute with, from one on; beyond the row, of the boxes behind it."""
        value = tirx.BufferLoad(self.tensor, [*self.place, ramp(first, lanes, self.place)])
        return value.astype(f"{arithmetic(self.tensor.dtype)}x{lanes}")


def rows_of(expression: Expr) -> list[Row]:
    """The rows that an expression takes numbers of, each once."""
    found: list[Row] = []
    for load in loads_of(expression):
        row = Row.of(load)
        if row is not None and row not in found:
            found.append(row)
    return found


def ramp(first: int, lanes: int, place: Sequence[Expr] = ()) -> tirx.Ramp:
    """Neighbouring numbers, behind other indices of a tensor: all are of one dtype."""
    dtype = str(place[-1].ty.dtype) if place else "int32"
    return tirx.Ramp(number(first, dtype), number(1, dtype), lanes)


def shuffle(vectors: Sequence[Expr], places: Sequence[int]) -> tirx.Shuffle:
    """Lanes of vectors, counted through all of them."""
    return tirx.Shuffle(list(vectors), [number(place) for place in places])


def shuffled_pairs(code: Statements, vectors: Sequence[Expr], places: Sequence[int]) -> list[Var]:
    """The same lanes of the first two of four vectors, and of the last two."""
    return [code.name("pair", shuffle(two, places)) for two in (vectors[:2], vectors[2:])]
