"""What blocks compute box by box: outputs of the same boxes, which one loop nest writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..ir.expressions import uses
from ..ir.scope import is_texture
from .box_code import COORDINATES, Code, Expr, choice, lanes_of
from .box_loops import product
from .box_rows import scatter_of
from .masked_terms import Places, replaced
from .statements import sequence


@dataclass(frozen=True)
class Output:
    """A tensor, and what is written of a box: all of its coordinates, or one number."""

    tensor: Any
    values: list[Expr]
    #: The row that a valid box is written to, where that is not its own place.
    row: Expr | None = None

    @property
    def whole(self) -> bool:
        """Whether a box is four coordinates."""
        return len(self.values) == COORDINATES

    def place(self, box: Sequence[Expr]) -> list[Expr]:
        """The index of a box in the tensor; a nest that is flat counts on from the first row."""
        rank = len(self.tensor.shape) - (1 if self.whole else 0)
        return [*[tirx.const(0, "int32")] * (rank - len(box)), *box]

    def with_values(self, values: Places) -> Output:
        """The same with variables replaced."""
        row = None if self.row is None else replaced(self.row, values)
        return Output(self.tensor, [replaced(v, values) for v in self.values], row)


@dataclass(frozen=True)
class Nest:
    """Outputs over the same boxes, whose values depend on the variables ``box``."""

    extents: list[Expr]
    box: list[tirx.Var]
    outputs: list[Output]

    @property
    def is_flat(self) -> bool:
        """Whether all tensors have their boxes in one order, so that one index counts them.

        Images are no memory in a row.
        """
        tensors = [out.tensor for out in self.outputs]
        if any(is_texture(tensor.scope()) for tensor in tensors):
            return False
        loads: list[TensorLoad] = []
        values = [value for out in self.outputs for value in out.values]
        tvm_ffi.structural_walk(values, (TensorLoad, loads.append))
        for load in loads:
            used = [i for i in load.indices if any(uses(i, var) for var in self.box)]
            if used and (is_texture(load.source.scope()) or not self._in_order(load)):
                return False
        # What depends on the place of a box by itself, as counts do, tells samples apart.
        return not any(
            uses(value, var) for value in map(_without_indices, values) for var in self.box
        )

    def _in_order(self, load: TensorLoad) -> bool:
        """Whether a load is of the box's own row."""
        rank = len(self.box)
        same = len(load.indices) in (rank, rank + 1) and all(
            index.same_as(var) for index, var in zip(load.indices[:rank], self.box, strict=True)
        )
        equal = Analyzer().can_prove_equal
        return same and all(
            equal(_short(a), b) for a, b in zip(load.source.shape[:rank], self.extents, strict=True)
        )

    def flattened(self) -> Nest:
        """The same with one extent; earlier indices are 0, and the last one runs on."""
        *outer, last = self.box
        outputs = [out.with_values(_zeros(outer)) for out in self.outputs]
        return Nest([Analyzer().simplify(product(self.extents))], [last], outputs)

    def at(self, box: Sequence[Expr]) -> list[Output]:
        """The outputs of one box."""
        return [out.with_values(self.values(box)) for out in self.outputs]

    def values(self, box: Sequence[Expr]) -> Places:
        """What stands for the variables, which may have 64 bits; boxes are counted in 32."""
        return [(var, at.astype(var.ty.dtype)) for var, at in zip(self.box, box, strict=False)]

    def test(self) -> Expr | None:
        """The condition under which all values are computed."""
        return shared_test([value for out in self.outputs for value in out.values])

    def limit(self) -> Expr | None:
        """Up to which place in its sample a box counts, if that is all that its test says."""
        test = self.test()
        if not isinstance(test, tirx.LT) or not test.a.same_as(self.box[-1]):
            return None
        return None if uses(test.b, self.box[-1]) else test.b

    def limit_of(self, sample: Sequence[Expr]) -> Expr:
        """The limit of a sample, which there must be."""
        return replaced(self.limit(), self.values(sample)).astype("int32")

    def row_of(self, out: Output, box: Sequence[Expr]) -> Expr:
        """The row of a box."""
        return replaced(out.row, self.values(box)).astype("int32")


def _zeros(variables: Sequence[tirx.Var]) -> Places:
    return [(var, tirx.const(0, var.ty.dtype)) for var in variables]


def _short(extent: Expr) -> Expr:
    """An extent in 32 bits."""
    short = isinstance(extent, tirx.IntImm)
    return tirx.const(int(extent), "int32") if short else extent.astype("int32")


def _without_indices(value: Expr) -> Expr:
    """An expression with every load replaced by a number."""
    return tvm_ffi.structural_map(value, (TensorLoad, lambda load: tirx.const(1, load.ty.dtype)))


def nests_of(blocks: Sequence[s_tir.SBlock], whole: bool) -> list[Nest] | None:
    """The nests of blocks that write an element an iteration; ``None`` where they do more."""
    nests: list[Nest] = []
    scatters = [scatter for b in blocks if (scatter := scatter_of(b, blocks)) is not None]
    done = [block for scatter in scatters for block in scatter.producers]
    for block in blocks:
        if any(block.same_as(producer) for producer in done):
            continue
        found = _nest(block, blocks, whole)
        if found is None:
            return None
        nest = next((n for n in nests if _equal(n.extents, found.extents)), None)
        if nest is None:
            nests.append(found)
        else:
            renamed = list(zip(found.box, nest.box, strict=True))
            nest.outputs.extend(out.with_values(renamed) for out in found.outputs)
    return nests


def _nest(block: s_tir.SBlock, blocks: Sequence[s_tir.SBlock], whole: bool) -> Nest | None:
    """The nest of one block."""
    rows = scatter_of(block, blocks)
    if rows is not None:
        values = lanes_of(rows.value, rows.lane)
        return Nest(
            list(map(_short, rows.extents)), rows.box, [Output(rows.tensor, values, rows.row)]
        )
    store, box = block.body, [axis.var for axis in block.iter_vars]
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != len(box):
        return None
    if not all(index.same_as(var) for index, var in zip(store.indices, box, strict=True)):
        return None
    extents = [axis.dom.extent for axis in block.iter_vars]
    lane = box.pop() if whole else None
    if lane is not None and not _is(extents.pop(), COORDINATES):
        return None
    return Nest(
        list(map(_short, extents)), box, [Output(store.buffer, lanes_of(store.value, lane))]
    )


def _is(extent: Expr, number: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == number


def _equal(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    equal = Analyzer().can_prove_equal
    return len(some) == len(others) and all(map(equal, some, others))


def emit(code: Code, outputs: Sequence[Output], write: Any) -> None:
    """Compute outputs of a box; ``write(code, output, values)`` stores what there is of one.

    What they have in common is computed once; a condition that they share is a branch.
    """
    peeled = [Output(out.tensor, [code.peel(v) for v in out.values], out.row) for out in outputs]
    test = shared_test([value for out in peeled for value in out.values])
    if test is None:
        for out in peeled:
            write(code, out, [code.lift(value) for value in out.values])
        return
    condition = code.lift(test)
    branches = []
    for at in (1, 2):
        branch = code.nested()
        # A box without a row has nowhere to be written.
        chosen = [
            Output(out.tensor, [value.args[at] for value in out.values], out.row)
            for out in peeled
            if at == 1 or out.row is None
        ]
        emit(branch, chosen, write)
        branches.append(sequence(branch.statements) if branch.statements else None)
    code.statements.append(tirx.IfThenElse(condition, *branches))


def shared_test(values: Sequence[Expr]) -> Expr | None:
    """The condition of values that are all computed under the same one."""
    tests = [None if found is None else found[0] for found in map(choice, values)]
    if not tests or tests[0] is None:
        return None
    first = tests[0]
    same = all(test is not None and tvm_ffi.structural_equal(test, first) for test in tests)
    return first if same else None
