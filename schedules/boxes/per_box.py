"""Compute functions of boxes box by box: one evaluation yields all coordinates of a box.

Computes, for boxes ``b, m`` and coordinates ``k``::

    y[b, m, k] = f_k(x[b, m, 0:4], ...)      or one number per box, y[b, m] = f(x[b, m, 0:4], ...)

Several outputs over the same boxes are one loop nest.  A work-item of a GPU computes whole boxes,
each of them a vector of four or a texel; a work-item of a CPU computes a stretch of boxes, 16 at a
time.  Extents may be variables.

A block that computes one coordinate of a box, with shared values as ``let`` expressions and an
index for the coordinate, becomes statements that compute all four::

    out[b, m, k] = let w = x[b, m, 2] - x[b, m, 0] in select(k == 0, -w, select(k == 1, 0, ...))

    box[0:4] = x[b, m, 0:4]
    w = box[2] - box[0]
    result[0] = -w;  result[1] = 0.0;  ...
    out[b, m, 0:4] = result[0:4]

The lanes of a CPU's vector are 16 boxes.  Coordinates of a box are neighbours in memory, which four
vectors load in this order; two steps of shuffles turn them into a vector for each coordinate, and
results back into the order in memory::

    x0 y0 u0 v0  x1 y1 u1 v1        x0 x1 y0 y1                x0 x1 x2 x3
    x2 y2 u2 v2  x3 y3 u3 v3   ->   u0 u1 v0 v1, x2 x3 ..  ->  y0 y1 y2 y3  ..

A sample with fewer boxes than a vector has lanes is computed box by box, and so are boxes that are
not valid.  Otherwise the last vector begins earlier, and some boxes are computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Expr, ForKind, Stmt, Var

from ...devices.target import Device
from ...ir.expressions import nodes_in, substitute_vars, uses
from ...ir.scope import is_texture
from ..common import FAMILY, Workload, is_injective
from ..family import GROUP_FITS, Declined, Value, knob
from ..sizes import LANES, group_sizes
from .builder import (
    COORDINATES,
    Row,
    Statements,
    arithmetic,
    choice,
    follows,
    in_32_bits,
    number,
    places_of,
    ramp,
    schedule_of,
    sequence,
    shuffle,
    shuffled_pairs,
    static_extent,
    unravel,
)

NAME = "boxes"
ORDER = 100

#: Annotation of blocks whose last axis counts the coordinates of a box.
WHOLE = "tvmflow.whole_boxes"
#: Annotation of blocks that write boxes to the rows of a packed tensor.
_ROWS = "tvmflow.rows"


# -- what it computes ---------------------------------------------------------------------


def compute(
    shape: Sequence[Expr], body: Callable[..., Expr], name: str, *, whole: bool
) -> te.Tensor:
    """Define a tensor with a number for each box, or with ``whole`` its coordinates as last axis.

    Values that coordinates share should be ``let`` expressions; values that only some boxes have
    should be inside an ``if_then_else``.
    """
    marks = {FAMILY: NAME, **({WHOLE: "yes"} if whole else {})}
    return te.compute(shape, body, name=name, attrs=marks)


def compute_rows(boxes: te.Tensor, row: te.Tensor, rows: Expr) -> te.Tensor:
    """Define a packed tensor with boxes at the rows in ``row``, negative for a box without a row.

    Computes, for boxes ``b, m`` and coordinates ``k``::

        y[p, k] = 0;    y[row[b, m], k] = x[b, m, k] where row[b, m] >= 0

    No two boxes may have the same row.
    """

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        (source, index), (target,), code = ins, outs, Statements()
        with code.loops(target.shape) as place:
            code.store(target, tirx.const(0, target.dtype), *place)
        with code.loops(source.shape) as place:
            *box, lane = place
            at = tirx.BufferLoad(index, box)
            with code.when(at >= 0):
                code.store(target, tirx.BufferLoad(source, place), at, lane)
        return code.finish()

    buffers = [tirx.decl_buffer(t.shape, t.dtype, t.op.name) for t in (boxes, row)]
    result = tirx.decl_buffer((rows, COORDINATES), boxes.dtype, "grad_rows")
    return te.extern(
        [result.shape], [boxes, row], body, "grad_rows", [boxes.dtype], buffers, [result],
        attrs={_ROWS: "yes"},
    )  # fmt: skip


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The number of boxes and of outputs."""

    #: Samples, and boxes per sample; 0 if it is known only at run time.
    samples: int
    boxes: int
    outputs: int
    #: True if an output has four coordinates per box.
    whole: bool


@dataclass(frozen=True)
class Knobs:
    """The work of a work-item."""

    boxes: int = knob("Boxes that a work-item computes, at most; on a CPU a stretch of them.")
    vector: int = knob("Boxes that a CPU computes at once, in the lanes of a vector.")
    group_size: int = knob("Work-items of a work-group.")


CONSTRAINTS = {
    "vector is 1 or the width of a vector type; on a GPU 1.": lambda k, s, d: (
        k.vector == 1 or (d.is_cpu and k.vector in LANES)
    ),
    **GROUP_FITS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Choose a stretch that hides the start of a work-group; on GPUs one box per work-item."""
    if device.is_cpu:
        return Knobs(boxes=1024, vector=max(LANES), group_size=device.group_size)
    return Knobs(boxes=1, vector=1, group_size=device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """List stretches and vectors on a CPU; on GPUs a few boxes per work-item."""
    return {
        "boxes": (128, 256, 512, 1024, 2048, 4096, 8192) if device.is_cpu else (1, 2, 3, 4, 6, 8),
        "vector": (1, 8, 16) if device.is_cpu else (1,),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """Return the shape of a function whose anchors are this family's blocks."""
    anchors = workload.anchors(NAME)
    if not anchors:
        return None
    whole = _whole(workload)
    extents = [axis.dom.extent for axis in workload.sch.get(anchors[0]).iter_vars]
    if whole:
        extents.pop()
    *outer, boxes = map(static_extent, extents)
    return Shape(samples=prod(outer), boxes=boxes, outputs=len(anchors), whole=whole)


def _whole(workload: Workload) -> bool:
    """Return whether the last axis counts coordinates."""
    return any(workload.annotation(block, WHOLE) for block in workload.blocks)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Inline the blocks around the anchors, and write loops around the remaining ones."""
    sch, whole = workload.sch, _whole(workload)
    for block in list(workload.blocks):
        if is_injective(sch, block) and sch.get_consumers(block):
            workload.inline(block)
    nests = _nests_of([sch.get(block) for block in workload.blocks], whole)
    packed = [(nest, out) for nest in nests for out in nest.outputs if out.row is not None]
    nests = [nest.flattened() if nest.is_flat else nest for nest in nests]
    code, launches = Statements(), workload.target.is_gpu_kernel

    def places(total: Expr) -> Iterator[Expr]:
        if workload.is_cpu:
            return _stretches(code, total, knobs.boxes, launches)
        return _items(code, total, knobs)

    with code.block("root"):
        for nest in nests:
            if workload.is_cpu:
                _write_stretches(code, nest, knobs, launches)
            else:
                for place in places(prod(nest.extents)):
                    _write_box(code, nest, unravel(place, nest.extents))
        for nest, out in packed:
            _clear_unowned_rows(code, nest, out, places)
    return schedule_of(sch.mod["main"], code.finish())


def _items(code: Statements, total: Expr, knobs: Knobs) -> Iterator[Expr]:
    """Yield the place of each work-item of a GPU, or a few places that are far apart."""
    groups = tirx.Max(tirx.ceildiv(total, knobs.group_size * knobs.boxes), 1)
    with code.items("boxes", groups, knobs.group_size) as (group, item):
        for part in range(knobs.boxes):
            place = (group * knobs.boxes + part) * knobs.group_size + item
            with code.when(place < total):
                yield place


def _stretches(code: Statements, total: Expr, size: int, launches: bool) -> Iterator[Expr]:
    """Yield the places of a stretch, for each work-item of a CPU."""
    with code.parts("boxes", tirx.ceildiv(total, size), launches) as part:
        begin = part * size
        with code.loop("i", tirx.Min(total - begin, size)) as i:
            yield begin + i


def _write_stretches(code: Statements, nest: Nest, knobs: Knobs, launches: bool) -> None:
    """Write a stretch of boxes of one sample for each work-item of a CPU."""
    *outer, last = nest.extents
    stretches, lanes = [*outer, tirx.ceildiv(last, knobs.boxes)], knobs.vector
    with code.parts("boxes", prod(stretches), launches) as part:
        *sample, place = unravel(part, stretches)
        begin = place * knobs.boxes
        length = tirx.Min(last - begin, knobs.boxes)
        done: Expr = number(0)
        if lanes > 1 and _is_vector(nest):
            counted = length
            if nest.limit() is not None:
                # TVM's OpenCL code is wrong for loads in the bounds of loops: name the limit first.
                limit = tirx.Max(tirx.Min(nest.limit_of(sample) - begin, length), 0)
                counted = code.name_stored("counted", limit)
            enough = counted >= lanes
            with code.loop("i", tirx.Select(enough, tirx.ceildiv(counted, lanes), 0)) as i:
                first = begin + tirx.Min(i * lanes, counted - lanes)
                vector = _VectorCode([*sample, first], lanes)
                vector.compute_vector(nest)
                code.add(vector.finish())
            done = tirx.Select(enough, counted, 0)
        with code.loop("i", length - done) as i:
            _write_box(code, nest, [*sample, begin + done + i])


# -- outputs of the same boxes ------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """A tensor, and the values of a box in it: all coordinates, or one number."""

    tensor: Buffer
    values: list[Expr]
    #: The row of a valid box in a packed tensor; ``None`` if boxes keep their places.
    row: Expr | None = None

    @property
    def whole(self) -> bool:
        """True if a box has four coordinates."""
        return len(self.values) == COORDINATES

    def place(self, box: Sequence[Expr]) -> list[Expr]:
        """Return the index of a box; in a flat nest, it counts on from the first row."""
        rank = len(self.tensor.shape) - (1 if self.whole else 0)
        return [*[number(0)] * (rank - len(box)), *box]

    def with_variables(self, values: dict[Var, Expr]) -> Output:
        """Return the output with variables replaced."""
        row = None if self.row is None else substitute_vars(self.row, values)
        return replace(self, values=[substitute_vars(v, values) for v in self.values], row=row)

    def with_values(self, value: Callable[[Expr], Expr]) -> Output:
        """Return the output with a function of each value."""
        return replace(self, values=[value(v) for v in self.values])

    def branch(self, at: int) -> Output:
        """Return the output for one branch of its values: 1 if their condition holds, else 2."""
        return self.with_values(lambda value: value.args[at])


@dataclass(frozen=True)
class Nest:
    """Outputs over the same boxes; their values depend on the variables ``box``."""

    extents: list[Expr]
    box: list[Var]
    outputs: list[Output]

    @property
    def is_flat(self) -> bool:
        """True if all tensors have their boxes in one order, so that one index counts them.

        Images are not contiguous.
        """
        if any(is_texture(out.tensor.scope()) for out in self.outputs):
            return False
        values = _values_of(self.outputs)
        for load in nodes_in(values, TensorLoad):
            used = any(uses(i, var) for i in load.indices for var in self.box)
            if used and (is_texture(load.source.scope()) or not self._in_order(load)):
                return False
        # Values that use the place of a box itself, as counts do, depend on the sample.
        one = (TensorLoad, lambda load: tirx.const(1, load.ty.dtype))
        by_place = [tvm_ffi.structural_map(value, one) for value in values]
        return not any(uses(value, var) for value in by_place for var in self.box)

    def _in_order(self, load: TensorLoad) -> bool:
        """Return whether a load reads the box's own row."""
        rank = len(self.box)
        return (
            len(load.indices) in (rank, rank + 1)
            and all(i.same_as(var) for i, var in zip(load.indices[:rank], self.box, strict=True))
            and _equal([in_32_bits(extent) for extent in load.source.shape[:rank]], self.extents)
        )

    def flattened(self) -> Nest:
        """Return the nest with one extent: earlier indices are 0, and the last one runs on."""
        *outer, last = self.box
        outputs = self.at([number(0)] * len(outer))
        return Nest([Analyzer().simplify(prod(self.extents))], [last], outputs)

    def at(self, box: Sequence[Expr]) -> list[Output]:
        """Return the outputs of one box."""
        return [out.with_variables(places_of(self.box, box)) for out in self.outputs]

    def test(self) -> Expr | None:
        """Return the condition under which all values are computed; ``None`` without one."""
        return _shared_test(_values_of(self.outputs))

    def limit(self) -> Expr | None:
        """Return the place in a sample from which boxes do not count, if nothing else decides."""
        test = self.test()
        if not isinstance(test, tirx.LT) or not test.a.same_as(self.box[-1]):
            return None
        return None if uses(test.b, self.box[-1]) else test.b

    def limit_of(self, sample: Sequence[Expr]) -> Expr:
        """Return the limit of a sample; the nest must have one."""
        limit = self.limit()
        assert limit is not None
        return substitute_vars(limit, places_of(self.box, sample)).astype("int32")


def _values_of(outputs: Sequence[Output]) -> list[Expr]:
    return [value for out in outputs for value in out.values]


def _shared_test(values: Sequence[Expr]) -> Expr | None:
    """Return the condition that all values share; ``None`` if they do not."""
    tests = [found and found[0] for found in map(choice, values)]
    if not tests or tests[0] is None:
        return None
    equal = tvm_ffi.structural_equal
    return tests[0] if all(test is not None and equal(test, tests[0]) for test in tests) else None


def _equal(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    equal = Analyzer().can_prove_equal
    return len(some) == len(others) and all(map(equal, some, others))


def _nests_of(blocks: Sequence[s_tir.SBlock], whole: bool) -> list[Nest]:
    """Return the nests of blocks that write one element per iteration."""
    nests: list[Nest] = []
    scatters = [_scatter_of(block, blocks) for block in blocks]
    passed_on = [producer for scatter in scatters if scatter for producer in scatter[1]]
    for block, scatter in zip(blocks, scatters, strict=True):
        if any(block.same_as(producer) for producer in passed_on):
            continue
        found = scatter[0] if scatter else _nest_of(block, whole)
        nest = next((n for n in nests if _equal(n.extents, found.extents)), None)
        if nest is None:
            nests.append(found)
        else:
            renamed = dict(zip(found.box, nest.box, strict=True))
            nest.outputs.extend(out.with_variables(renamed) for out in found.outputs)
    return nests


def _nest_of(block: s_tir.SBlock, whole: bool) -> Nest:
    store, box = block.body, [axis.var for axis in block.iter_vars]
    single = isinstance(store, tirx.BufferStore) and len(store.indices) == len(box)
    if not (single and all(i.same_as(var) for i, var in zip(store.indices, box, strict=True))):
        raise Declined("a block computes more than one element an iteration")
    extents = [in_32_bits(axis.dom.extent) for axis in block.iter_vars]
    lane = box.pop() if whole else None
    if lane is not None and static_extent(extents.pop()) != COORDINATES:
        raise Declined("a box has four coordinates")
    return Nest(extents, box, [Output(store.buffer, _values_by_lane(store.value, lane))])


def _scatter_of(
    block: s_tir.SBlock, others: Sequence[s_tir.SBlock]
) -> tuple[Nest, list[s_tir.SBlock]] | None:
    """Return the nest of a block of :func:`compute_rows`, and the blocks that pass values to it."""
    if _ROWS not in block.annotations:
        return None
    loop, variables, extents = block.body.seq[-1], [], []
    while isinstance(loop, tirx.For):
        variables.append(loop.loop_var)
        extents.append(loop.extent)
        loop = loop.body
    store, producers, inlined = loop.then_case, [], []
    for load in (store.value, store.indices[0]):
        stores = [b for b in others if isinstance(b.body, tirx.BufferStore)]
        producer = next((b for b in stores if b.body.buffer.same_as(load.source)), None)
        if producer is None:
            return None
        producers.append(producer)
        axes = [axis.var for axis in producer.iter_vars]
        inlined.append(
            substitute_vars(producer.body.value, dict(zip(axes, load.indices, strict=True)))
        )
    value, row = inlined[0], choice(inlined[1])
    if row is None:
        return None
    *box, lane = variables
    output = Output(store.buffer, _values_by_lane(value, lane), row[1])
    return Nest(list(map(in_32_bits, extents[:-1])), box, [output]), producers


def _values_by_lane(body: Expr, lane: Var | None) -> list[Expr]:
    """Return the expression of each coordinate before rounding; of the box without a lane."""
    if isinstance(body, tirx.Cast) and str(body.value.ty.dtype) == "float32":
        body = body.value
    if lane is None:
        return [body]
    simplify = Analyzer().simplify
    lanes = (number(k, lane.ty.dtype) for k in range(COORDINATES))
    return [simplify(substitute_vars(body, {lane: k})) for k in lanes]


# -- straight code for one box ------------------------------------------------------------


class _BoxCode(Statements):
    """Statements for one box, which is read and written as a vector of four or a texel.

    Values with common parts compute these once.
    """

    def __init__(self, box: Sequence[Expr]):
        super().__init__()
        self.box = box
        #: Number of lanes of a vector, and the current lane, as further indices of private memory.
        self.lanes: tuple[int, ...] = ()
        self.lane: tuple[Var, ...] = ()
        #: Allocations of private memory, which precede all statements.
        self.memory: list[Stmt] = []
        #: Values that have a variable, and expressions for the names in code to come.
        self.values: list[tuple[Expr, Var]] = []
        self.names: dict[Var, Expr] = {}
        #: Rows that were copied, and their copies.
        self.copies: list[tuple[Row, Buffer]] = []

    def nested(self) -> _BoxCode:
        """Return code for a branch: it has the values of this code, and keeps its own to itself."""
        inner = copy(self)
        inner._open = [[]]
        inner.values, inner.names = [*self.values], {**self.names}
        inner.copies = [*self.copies]
        return inner

    def finish(self) -> Stmt:
        """Return all statements after the allocations."""
        return sequence([*self.memory, *self.written])

    def alloc(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
        """Allocate private memory before all statements."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope="local")
        self.memory.append(tirx.AllocBuffer(buffer))
        return buffer

    def name(self, name: str, value: Expr) -> Var:
        """Return the variable that has a value already, or a new one."""
        if isinstance(value, (Var, tirx.IntImm, tirx.FloatImm)):
            return value
        for known, var in self.values:
            if tvm_ffi.structural_equal(known, value):
                return var
        var = (
            super().name(name, value) if isinstance(value, TensorLoad)
            else self.name_stored(name, value, *self.lanes, *self.lane)
        )  # fmt: skip
        self.values.append((value, var))
        return var

    # -- expressions ----------------------------------------------------------------------

    def lift(self, expression: Expr) -> Expr:
        """Return the expression without ``let``, whose values become statements.

        A branch of a condition keeps the loads that only it needs.
        """

        def cast(found: tirx.Cast, mutator: tvm_ffi.StructuralMutator) -> Expr:
            found = mutator.default_mutate(found)
            return found.value if found.value.ty == found.ty else found

        def call(found: Call, mutator: tvm_ffi.StructuralMutator) -> Expr:
            lazy = choice(found) is not None
            return substitute_vars(found, self.names) if lazy else mutator.default_mutate(found)

        return tvm_ffi.structural_mutate(
            expression,
            [
                (tirx.Let, lambda let, _: self.lift(self.peel(let))),
                (Var, lambda var, _: self.names.get(var, var)),
                (TensorLoad, lambda load, mutator: self.read(mutator.default_mutate(load))),
                (tirx.Cast, cast),
                (Call, call),
            ],
        )

    def peel(self, expression: Expr) -> Expr:
        """Return the expression without its outermost ``let``, whose values become statements."""
        while isinstance(expression, tirx.Let):
            var = expression.var
            self.names[var] = self.name(var.name, self.lift(expression.value))
            expression = expression.body
        return expression

    def compute(self, outputs: Sequence[Output]) -> None:
        """Compute outputs; a condition that they share becomes a branch."""
        peeled = [out.with_values(self.peel) for out in outputs]
        test = _shared_test(_values_of(peeled))
        if test is None:
            for out in peeled:
                self.write(out, [self.lift(value) for value in out.values])
            return
        condition = self.lift(test)
        branches = []
        for at in (1, 2):
            # A box without a row has nowhere to be written.
            chosen = [out for out in peeled if at == 1 or out.row is None]
            branch = self.nested()
            branch.compute([out.branch(at) for out in chosen])
            branches.append(sequence(branch.written) if chosen else None)
        self.add(tirx.IfThenElse(condition, *branches))

    # -- boxes ----------------------------------------------------------------------------

    def read(self, load: TensorLoad) -> Expr:
        """Return a coordinate of a copy of the whole box; other loads are unchanged."""
        row = Row.of(load)
        if row is None or not self._is_copied(row):
            return load
        found = next((memory for known, memory in self.copies if known == row), None)
        if found is None:
            found = self._private(row.tensor)
            self._copy_in(row, found)
            self.copies.append((row, found))
        return tirx.BufferLoad(found, [load.indices[-1], *self.lane])

    def write(self, out: Output, values: Sequence[Expr]) -> None:
        """Store all coordinates of a box, or its number."""
        place = out.place(self.box) if out.row is None else [self.lift(out.row)]
        if out.whole:
            self.write_whole(out.tensor, place, values)
        else:
            self.store(out.tensor, values[0].astype(out.tensor.dtype), *place)

    def write_whole(self, tensor: Buffer, place: list[Expr], values: Sequence[Expr]) -> None:
        """Store all coordinates."""
        result = self._private(tensor)
        for corner, value in enumerate(values):
            self.store(result, value.astype(result.dtype), corner, *self.lane)
        self._copy_out(Row(tensor, tuple(place)), result)

    def _private(self, tensor: Buffer) -> Buffer:
        name = f"{tensor.name}_box{'es' * len(self.lanes)}"
        return self.alloc(name, (COORDINATES, *self.lanes), arithmetic(tensor.dtype))

    def _is_copied(self, row: Row) -> bool:
        return True

    def _copy_in(self, row: Row, memory: Buffer) -> None:
        with self.loop("k", COORDINATES, ForKind.VECTORIZED) as k:
            value = tirx.BufferLoad(row.tensor, [*row.place, k])
            self.store(memory, value.astype(memory.dtype), k)

    def _copy_out(self, row: Row, memory: Buffer) -> None:
        with self.loop("k", COORDINATES, ForKind.VECTORIZED) as k:
            self.store(row.tensor, memory[k].astype(row.tensor.dtype), *row.place, k)


def _write_box(code: Statements, nest: Nest, box: Sequence[Expr]) -> None:
    inner = _BoxCode(box)
    inner.compute(nest.at(box))
    code.add(inner.finish())


def _clear_unowned_rows(
    code: Statements, nest: Nest, out: Output, places: Callable[[Expr], Iterator[Expr]]
) -> None:
    """Set the rows of a packed tensor that belong to no box to 0; ``places`` counts up to a number.

    Such rows are before those of the first sample, after those of the last one, and at the end of
    samples that have more rows than there are boxes.
    """
    rows = out.tensor.shape[0].astype("int32")
    *outer, boxes = nest.extents
    samples = prod(outer)

    def row_of(box: Sequence[Expr]) -> Expr:
        assert out.row is not None
        return substitute_vars(out.row, places_of(nest.box, box)).astype("int32")

    def clear(row: Expr) -> None:
        inner = _BoxCode([])
        inner.write_whole(out.tensor, [row], [tirx.const(0, "float32")] * COORDINATES)
        code.add(inner.finish())

    if nest.limit() is None:
        for row in places(rows):
            clear(row)
        return
    for place in places(tirx.Max(rows, samples)):
        first = row_of([number(0)] * len(nest.extents))
        last_sample = [extent - 1 for extent in outer]
        last = Analyzer().simplify(row_of([*last_sample, nest.limit_of(last_sample)]))
        with code.when(tirx.all(place < rows, tirx.any(place < first, place >= last))):
            clear(place)
        with code.when(place < samples):
            sample = unravel(place, outer) if outer else []
            begin = row_of([*sample, boxes])
            with code.loop("i", tirx.Max(nest.limit_of(sample) - boxes, 0)) as i:
                clear(begin + i)


# -- boxes in the lanes of a vector -------------------------------------------------------

#: Dtypes that are loaded as vectors; TVM's OpenCL code is wrong for vectors of bytes.
_FLOATS = ("float", "bfloat")


def _is_vector(nest: Nest) -> bool:
    """Return whether neighbouring boxes are neighbours in all tensors, and no value is lazy."""
    place, limited = nest.box[-1], nest.limit() is not None
    for out in nest.outputs:
        if is_texture(out.tensor.scope()):
            return False
        if out.row is not None and not (limited and follows([out.row], place)):
            return False
    values = _values_of(nest.outputs)
    if limited:
        values = [value.args[1] for value in values]
    elif nest.test() is not None:
        values = [part for value in values for part in value.args[1:]]
    lazy = any(choice(call) for call in nodes_in(values, Call))
    return not lazy and all(_is_of_neighbours(load, place) for load in nodes_in(values, TensorLoad))


def _is_of_neighbours(load: TensorLoad, place: Var) -> bool:
    """Return whether a load reads neighbours for neighbouring boxes, or the same for all."""
    if not any(uses(index, place) for index in load.indices):
        return True
    if is_texture(load.source.scope()) or not str(load.source.dtype).startswith(_FLOATS):
        return False
    row = Row.of(load)
    return follows(load.indices if row is None else row.place, place)


class _VectorCode(_BoxCode):
    """Statements for neighbouring boxes, one per lane, between their loads and their stores."""

    def __init__(self, first: Sequence[Expr], lanes: int):
        lane = Var("lane", "int32")
        super().__init__([*first[:-1], first[-1] + lane])
        self.lanes, self.lane = (lanes,), (lane,)
        self.before, self.after = Statements(), Statements()

    def compute_vector(self, nest: Nest) -> None:
        """Compute all outputs, also of boxes that are not valid, whose results are dropped."""
        outputs = nest.at(self.box)
        test = _shared_test(_values_of(outputs))
        if test is not None and nest.limit() is None:
            if not all(
                _is_of_neighbours(load, nest.box[-1]) for load in nodes_in(nest.test(), TensorLoad)
            ):
                test = self._tested(test)
            outputs = [out.with_values(lambda v: tirx.Select(test, *v.args[1:])) for out in outputs]
        elif test is not None:
            outputs = [out.branch(1) for out in outputs]
        self.compute(outputs)

    def finish(self) -> Stmt:
        """Return the allocations, the loads, the loop over lanes and the stores."""
        (lane,), (lanes,) = self.lane, self.lanes
        body = sequence(self.written)
        loop = tirx.For(lane, number(0), number(lanes), ForKind.VECTORIZED, body)
        return sequence([*self.memory, *self.before.written, loop, *self.after.written])

    def _tested(self, test: Expr) -> Expr:
        """Return a condition of lanes that is computed lane by lane before the vector."""
        (lane,) = self.lane
        flags = self.alloc("chosen", self.lanes)
        for place in range(*self.lanes):
            self.before.store(
                flags, substitute_vars(test, {lane: number(place)}).astype("float32"), place
            )
        return flags[lane] != 0

    def _is_copied(self, row: Row) -> bool:
        return uses(row.place[-1], self.lane[0])

    def _copy_in(self, row: Row, memory: Buffer) -> None:
        code, (lanes,), half = self.before, self.lanes, self.lanes[0] // 2
        row = row.at({self.lane[0]: number(0)})
        parts = [code.name("part", row.read(lanes, lanes * part)) for part in range(COORDINATES)]
        boxes = range(half)
        for corners in ((0, 1), (2, 3)):
            # Pair two coordinates of the boxes of two vectors: first ones before second ones.
            pairs = shuffled_pairs(
                code, parts, [COORDINATES * box + corner for corner in corners for box in boxes]
            )
            for corner in corners:
                begin = corner % 2 * half
                lanes_of_corner = [v * lanes + begin + box for v in range(2) for box in boxes]
                code.store(memory, shuffle(pairs, lanes_of_corner), corner, ramp(0, lanes))

    def _copy_out(self, row: Row, memory: Buffer) -> None:
        code, (lanes,), half = self.after, self.lanes, self.lanes[0] // 2
        row = row.at({self.lane[0]: number(0)})
        corners = [
            code.name("corner", tirx.BufferLoad(memory, [number(k), ramp(0, lanes)]))
            for k in range(COORDINATES)
        ]
        for boxes in (range(half), range(half, lanes)):
            both = [place for box in boxes for place in (box, lanes + box)]
            pairs = shuffled_pairs(code, corners, both)
            for quarter in (0, 1):
                begin = quarter * half
                places = [
                    place
                    for pair in range(begin, begin + half, 2)
                    for place in (pair, pair + 1, lanes + pair, lanes + pair + 1)
                ]
                value = shuffle(pairs, places).astype(f"{row.tensor.dtype}x{lanes}")
                at = ramp((2 * boxes.start // half + quarter) * lanes, lanes, row.place)
                code.store(row.tensor, value, *row.place, at)
