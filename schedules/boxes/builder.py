"""Build kernels loop by loop, for families that schedule primitives cannot express.

Such families read bounds of loops from memory, keep lists, wait at barriers, or read and write
boxes as a whole.  A *row* is the four numbers of a box, which are neighbours in memory;
expressions read each of them by a constant index: ``pred[b, j, 0]`` to ``pred[b, j, 3]``.
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

from ...ir.expressions import CHOICE, nodes_in, substitute_vars, uses

#: Coordinates of a box, which are the numbers of a row.
COORDINATES = 4

_LAZY = Op.get(CHOICE)
_T = TypeVar("_T")


class Statements:
    """A list of statements in the making; ``with`` blocks nest statements in loops and branches.

    A loop over threads must hold exactly one :meth:`block`, which is opaque to schedules.
    """

    def __init__(self) -> None:
        self._open: list[list[Stmt]] = [[]]

    @property
    def written(self) -> list[Stmt]:
        """Return all statements so far; none may be open."""
        (statements,) = self._open
        return statements

    def finish(self) -> Stmt:
        """Return all statements as one."""
        return sequence(self.written)

    def add(self, statement: Stmt) -> None:
        """Append a statement."""
        self._open[-1].append(statement)

    def name(self, name: str, value: Expr) -> Var:
        """Compute a value once, and return the variable that later statements read it by."""
        var = Var(name, value.ty.dtype)
        self.add(tirx.Bind(var, value))
        return var

    def name_stored(self, name: str, value: Expr, lanes: int = 1, lane: Expr | int = 0) -> Var:
        """Compute a value once in private memory, one number for each lane of a vector.

        TVM repeats arithmetic at each use of its name, but it does not repeat loads.
        """
        memory = self.alloc(f"{name}_value", (lanes,), str(value.ty.dtype))
        self.store(memory, value, lane)
        return Statements.name(self, name, memory[lane])

    def name_all(self, expression: Expr) -> Expr:
        """Turn the names in an expression (`tirx.Let`) into statements; return the rest of it.

        Generated C would repeat the text of a ``let`` value at each use of its name.
        """
        values: dict[Var, Expr] = {}
        while isinstance(expression, tirx.Let):
            value = substitute_vars(expression.value, values)
            values[expression.var] = self.name(expression.var.name, value)
            expression = expression.body
        return substitute_vars(expression, values)

    def alloc(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
        """Allocate private memory of a work-item."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope="local")
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def variable(self, name: str, value: Expr, dtype: str = "int32") -> Buffer:
        """Allocate private memory for one number, and store its first value."""
        memory = self.alloc(name, (1,), dtype)
        self.store(memory, value, 0)
        return memory

    def store(self, buffer: Buffer, value: Expr, *indices: Expr | int) -> None:
        """Store an element, or a vector if the last index is a `tirx.Ramp`."""
        self.add(tirx.BufferStore(buffer, value, list(indices)))

    def barrier(self) -> None:
        """Make the work-items of a group wait for each other."""
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
        """Open a loop from 0, or over an axis of threads such as ``blockIdx.x``."""
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
        """Open a nest of loops."""
        with ExitStack() as stack:
            named = [self.loop(f"i{axis}", extent) for axis, extent in enumerate(extents)]
            yield [stack.enter_context(loop) for loop in named]

    @contextmanager
    def lane_loop(self, count: int) -> Iterator[Expr]:
        """Open a loop over the lanes of a vector; a single lane needs no loop."""
        if count == 1:
            yield number(0)
            return
        with self.loop("lane", count, ForKind.VECTORIZED) as lane:
            yield lane

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Open a branch that runs if a condition holds."""
        yield from self._nested(None, lambda body: tirx.IfThenElse(condition, body, None))

    @contextmanager
    def repeat(self, condition: Expr) -> Iterator[None]:
        """Open a loop that runs while a condition on memory holds."""
        yield from self._nested(None, lambda body: tirx.While(condition, body))

    @contextmanager
    def block(
        self,
        name: str,
        memory: Sequence[Buffer] = (),
        annotations: Mapping[str, str | int] | None = None,
    ) -> Iterator[None]:
        """Open an opaque block with annotations and its own memory, which may grow until it ends.

        The block declares that it accesses the whole of each tensor that is not its own.
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
        """Open a block for each part: a thread of the host, or a work-group of a CPU's kernel.

        A single part needs no loop, and a launch has at least one work-group.
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
        """Open a kernel of a GPU, with a block for each work-item of each group."""
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


def define_extern(
    inputs: Sequence[te.Tensor],
    outputs: Sequence[tuple[str, tuple[int, ...], str]],
    marks: Mapping[str, str],
    write: Callable[[Statements, Sequence[Buffer]], None],
) -> list[te.Tensor]:
    """Define tensors, each with name, shape and dtype, by loops that one thread could run.

    The loops are the only block of their function, and its annotations name the family.
    """

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        code = Statements()
        with code.block("loops", annotations=marks):
            write(code, [*ins, *outs])
        return code.finish()

    buffers = [tirx.decl_buffer(shape, dtype, name) for name, shape, dtype in outputs]
    shapes, dtypes = [b.shape for b in buffers], [b.dtype for b in buffers]
    # The only block of a function is its root.
    found = te.extern(shapes, list(inputs), body, "root", dtypes, out_buffers=buffers)
    return list(found)


def sequence(statements: Sequence[Stmt]) -> Stmt:
    """Return statements as one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _touched(statement: Stmt, memory: Sequence[Buffer]) -> list[list[Buffer]]:
    """Return the tensors that a statement reads and those that it writes, but its own memory."""
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
    """Return a schedule of a function whose body is replaced by a statement."""
    return s_tir.Schedule(tirx.PrimFunc(function.params, body, function.ret_type, function.attrs))


# -- expressions --------------------------------------------------------------------------


def arithmetic(dtype: str) -> str:
    """Return the dtype of arithmetic on a dtype: float64 for itself, float32 for all others."""
    return dtype if dtype == "float64" else "float32"


def number(value: int, dtype: str = "int32") -> tirx.IntImm:
    """Return an index as a constant."""
    return tirx.IntImm(dtype, value)


def in_32_bits(extent: Expr) -> Expr:
    """Return an extent in 32 bits, as kernels count."""
    return number(int(extent)) if isinstance(extent, tirx.IntImm) else extent.astype("int32")


def static_extent(extent: Expr) -> int:
    """Return an extent; 0 if it is known only at run time."""
    return int(extent) if isinstance(extent, tirx.IntImm) else 0


def places_of(variables: Sequence[Var], values: Sequence[Expr]) -> dict[Var, Expr]:
    """Return values for the first variables, in their dtypes: indices in TE may have 64 bits."""
    return {v: value.astype(v.ty.dtype) for v, value in zip(variables, values, strict=False)}


def follows(place: Sequence[Expr], var: Var) -> bool:
    """Return whether the last index advances with a variable, and the others do not use it."""
    *outer, last = place
    return not any(uses(index, var) for index in [*outer, Analyzer().simplify(last - var)])


def choice(expression: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return condition and values of an ``if_then_else``; ``None`` for other expressions."""
    lazy = isinstance(expression, Call) and expression.op.same_as(_LAZY)
    return tuple(expression.args) if lazy else None


def unravel(position: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """Return the indices of a position in a nest of loops, outermost first."""
    indices: list[Expr] = []
    # No index is negative, which TVM cannot prove where an extent is a variable.
    for extent in reversed(extents[1:]):
        indices.insert(0, tirx.truncmod(position, extent))
        position = tirx.truncdiv(position, extent)
    return [position, *indices]


# -- rows of numbers ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """The row of a box in a tensor ``[..., 4]``."""

    tensor: Buffer
    #: Indices of the row: all but the last one of a load.
    place: tuple[Expr, ...]

    @classmethod
    def of(cls, load: TensorLoad) -> Row | None:
        """Return the row that a load reads a number of; ``None`` if it reads no row."""
        if len(load.indices) < 2 or not tirx.is_buffer_var(load.source):
            return None
        (*place, corner), extent = load.indices, load.source.shape[-1]
        is_number = isinstance(corner, tirx.IntImm) and static_extent(extent) == COORDINATES
        return cls(load.source, tuple(place)) if is_number else None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Row)
            and self.tensor.same_as(other.tensor)
            and tvm_ffi.structural_equal(self.place, other.place)
        )

    def __hash__(self) -> int:
        return int(tvm_ffi.structural_hash(self.place))

    def at(self, values: Mapping[Var, Expr]) -> Row:
        """Return the row with other values for the variables of its indices."""
        return Row(self.tensor, tuple(substitute_vars(index, values) for index in self.place))

    def read(self, lanes: int = COORDINATES, first: int = 0) -> Expr:
        """Load ``lanes`` numbers starting at ``first``, beyond the row those of the next boxes."""
        value = tirx.BufferLoad(self.tensor, [*self.place, ramp(first, lanes, self.place)])
        return value.astype(f"{arithmetic(self.tensor.dtype)}x{lanes}")


def rows_of(expression: Expr) -> list[Row]:
    """Return the rows that an expression reads numbers of, each once."""
    found: list[Row] = []
    for load in nodes_in(expression, TensorLoad):
        row = Row.of(load)
        if row is not None and row not in found:
            found.append(row)
    return found


def ramp(first: int, lanes: int, place: Sequence[Expr] = ()) -> tirx.Ramp:
    """Return the index of neighbours, in the dtype of a tensor's other indices."""
    dtype = str(place[-1].ty.dtype) if place else "int32"
    return tirx.Ramp(number(first, dtype), number(1, dtype), lanes)


def shuffle(vectors: Sequence[Expr], places: Sequence[int]) -> tirx.Shuffle:
    """Return lanes of vectors; places count through all vectors."""
    return tirx.Shuffle(list(vectors), [number(place) for place in places])


def shuffled_pairs(code: Statements, vectors: Sequence[Expr], places: Sequence[int]) -> list[Var]:
    """Return the same lanes of the first two of four vectors, and of the last two."""
    return [code.name("pair", shuffle(two, places)) for two in (vectors[:2], vectors[2:])]
