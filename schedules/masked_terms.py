"""What a mean over valid boxes is about, read off its scheduled block.

A *row* is the four numbers of a box, next to each other in memory, of which the term takes each
by a constant index: ``pred[b, j, 0]`` to ``pred[b, j, 3]``.  Whoever computes the term reads rows
as a whole, and puts what was read in the place of the single numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..ir.expressions import uses
from .common import Block, Workload
from .statements import Statements, number

Value = Any
#: Variables and their values.
Places = Sequence[tuple[Any, Value]]
#: Numbers of a row.
CORNERS = 4


@dataclass(frozen=True)
class Row:
    """A tensor ``[..., 4]`` and where in it a box's row is."""

    tensor: Any
    #: All but the last index.
    place: tuple[Value, ...]

    def read(self, lanes: int = CORNERS) -> Value:
        """The row in fp32; with more lanes, those of the boxes behind it, too."""
        dtype = self.place[-1].ty.dtype
        ramp = tirx.Ramp(tirx.const(0, dtype), tirx.const(1, dtype), lanes)
        value = tirx.BufferLoad(self.tensor, [*self.place, ramp])
        return value.astype(f"float32x{lanes}")

    def at(self, places: Places) -> Row:
        """The row of another box."""
        return Row(self.tensor, tuple(replaced(index, places) for index in self.place))

    def is_of(self, load: TensorLoad) -> bool:
        """Whether a load takes a number of this row."""
        return load.source.same_as(self.tensor) and all(
            tvm_ffi.structural_equal(mine, its)
            for mine, its in zip(self.place, load.indices, strict=False)
        )


@dataclass(frozen=True)
class Terms:
    """The parts of a mean over ``[samples, boxes]``.

    Everything is an expression of the variables ``sample`` and ``box``, which may have 64 bits;
    what is written about it counts in 32.
    """

    sample: tirx.Var
    box: tirx.Var
    samples: Value
    boxes: Value
    #: Of a valid box.
    term: Value
    valid: Value
    #: Where ``valid`` is ``box < limit``: the limit, from 0 to ``boxes``, else ``None``.
    limit: Value | None
    #: Scalars that the block writes.
    total: Any
    number: Any

    def places(self, sample: Value, box: Value) -> Places:
        """What stands for the variables, of one box."""
        return [
            (var, value.astype(var.ty.dtype))
            for var, value in ((self.sample, sample), (self.box, box))
        ]

    def limit_of(self, sample: Value) -> Value:
        """The limit of a sample."""
        return replaced(self.limit, self.places(sample, number(0)))

    @property
    def rows(self) -> list[Row]:
        """The rows that the term takes numbers of."""
        return rows_of(self.term)

    def is_of_rows(self) -> bool:
        """Whether the term depends on its box by rows alone, one behind the other in memory."""
        if not self.rows:
            return False
        rest = tvm_ffi.structural_map(
            self.term, (TensorLoad, lambda load: load if row_of(load) is None else _NOTHING)
        )
        return not uses(rest, self.box) and all(self._steps_by_one(row) for row in self.rows)

    def _steps_by_one(self, row: Row) -> bool:
        *outer, last = row.place
        rest = Analyzer().simplify(last - self.box)
        return not any(uses(index, self.box) for index in [*outer, rest])

    def is_packed(self) -> bool:
        """Whether what boxes that are not valid would read may not exist."""
        analyzer = Analyzer()
        for var, extent in ((self.sample, self.samples), (self.box, self.boxes)):
            dtype = var.ty.dtype
            analyzer.bind(var, Range(tirx.const(0, dtype), extent.astype(dtype)))
        loads: list[TensorLoad] = []
        tvm_ffi.structural_walk(self.term, (TensorLoad, loads.append))
        return not all(
            analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
            for load in loads
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )


#: Stands for a number of a row.
_NOTHING = tirx.const(0, "float32")
_CHOICE = Op.get("prim.if_then_else")


def row_of(load: TensorLoad) -> Row | None:
    """The row that a load takes a number of, ``None`` where it is none."""
    *place, corner = load.indices
    whole = (
        tirx.is_buffer_var(load.source)
        and place
        and isinstance(corner, tirx.IntImm)
        and isinstance(load.source.shape[-1], tirx.IntImm)
        and int(load.source.shape[-1]) == CORNERS
    )
    return Row(load.source, tuple(place)) if whole else None


def rows_of(expression: Value) -> list[Row]:
    """The rows that an expression takes numbers of, each once."""
    found: list[Row] = []

    def visit(load: TensorLoad) -> None:
        row = row_of(load)
        if row is not None and not any(known.is_of(load) for known in found):
            found.append(row)

    tvm_ffi.structural_walk(expression, (TensorLoad, visit))
    return found


def replaced(expression: Value, values: Places) -> Value:
    """An expression with values in place of variables."""

    def visit(var: tirx.Var) -> Any:
        return next((value for known, value in values if var.same_as(known)), var)

    return tvm_ffi.structural_map(expression, (tirx.Var, visit))


def with_rows(
    expression: Value, rows: Sequence[Row], number_of: Callable[[int, int], Value]
) -> Value:
    """An expression with ``number_of(row, corner)``, in fp32, in place of the numbers of rows."""

    def visit(load: TensorLoad) -> Any:
        for index, row in enumerate(rows):
            if row_of(load) is not None and row.is_of(load):
                return number_of(index, int(load.indices[-1]))
        return load

    def is_done(cast: tirx.Cast) -> Any:
        return cast.value if cast.value.ty.dtype == cast.ty.dtype else cast

    return tvm_ffi.structural_map(expression, [(TensorLoad, visit), (tirx.Cast, is_done)])


def named(code: Statements, expression: Value) -> Value:
    """Compute what an expression names (`tirx.Let`) as statements; what is left of it.

    Generated C would have a name's text wherever it is used.
    """
    values: list[tuple[Any, Value]] = []
    while isinstance(expression, tirx.Let):
        value = replaced(expression.value, values)
        values.append((expression.var, code.name(expression.var.name, value)))
        expression = expression.body
    return replaced(expression, values)


def read_terms(workload: Workload, anchor: Block) -> Terms | None:
    """The parts of the block that :func:`.masked_mean.compute` stated, or ``None``."""
    block = workload.sch.get(anchor)
    loops = [workload.sch.get(loop) for loop in workload.sch.get_loops(anchor)]
    # A sum that starts from what is there, and the same of numbers.
    sums: list[tirx.Bind] = []
    tvm_ffi.structural_walk(block.body, (tirx.Bind, sums.append))
    if len(sums) != 2 or len(loops) != 2 or len(block.iter_vars) != 2:
        return None
    added = sums[0].value.b
    if not (isinstance(added, Call) and added.op.same_as(_CHOICE)):
        return None
    valid, term, _ = added.args
    sample, box = (axis.var for axis in block.iter_vars)
    samples, boxes = (_short(loop.extent) for loop in loops)
    total, count = (region.source for region in block.writes)
    return Terms(sample, box, samples, boxes, term, valid, _limit(valid, box, boxes), total, count)


def _short(extent: Value) -> Value:
    """An extent in 32 bits."""
    return number(int(extent)) if isinstance(extent, tirx.IntImm) else extent.astype("int32")


def _limit(valid: Value, box: tirx.Var, boxes: Value) -> Value | None:
    """The ``limit`` of ``box < limit``, clamped to what there is."""
    found = _last(valid, box)
    if found is None:
        return None
    dtype = found.ty.dtype
    return tirx.Max(tirx.Min(found, boxes.astype(dtype)), tirx.const(0, dtype)).astype("int32")


def _last(valid: Value, box: tirx.Var) -> Value | None:
    """The same, as it is; TVM writes ``box < min(a, b)`` as ``box < a and box < b``."""
    if isinstance(valid, (tirx.And, tirx.Or)):
        a, b = (_last(side, box) for side in (valid.a, valid.b))
        if a is None or b is None:
            return None
        return tirx.Min(a, b) if isinstance(valid, tirx.And) else tirx.Max(a, b)
    if not isinstance(valid, tirx.LT):
        return None
    left = valid.a.value if isinstance(valid.a, tirx.Cast) else valid.a
    return valid.b if left.same_as(box) and not uses(valid.b, box) else None
