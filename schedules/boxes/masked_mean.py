"""Compute the mean of a function of boxes over the valid boxes, in one pass.

In a first kernel each work-group sums up its share; a second one adds these sums in a fixed order.
A single group needs no second kernel, nor do the threads of a CPU.

Computes::

    sum    = Σ over b < B, j < M with valid(b, j) of term(b, j)
    number = Σ over b < B, j < M with valid(b, j) of 1
    mean   = sum / max(number, 1)

The term of a box that is not valid has no effect, even if it is NaN; for packed tensors it is not
computed at all, as its rows may not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass

import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Buffer, Expr, ForKind, Var

from ...devices.target import Device
from ...ir.expressions import nodes_in, substitute_vars, uses
from ...ir.scope import is_texture
from ..common import FAMILY, Block, Workload, is_injective
from ..family import GROUP_HALVES, Declined, Value, knob
from ..partial_sums import radices
from ..sizes import power_of_2
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
    rows_of,
    schedule_of,
    shuffle,
    shuffled_pairs,
    static_extent,
)

NAME = "masked_mean"
ORDER = 500

#: Work-items that run in step, on NVIDIA's GPUs.
WARP = 32
#: An expression of a box, from its sample and its place in the sample.
_OfBox = Callable[[tirx.IterVar, tirx.IterVar], Expr]


# -- what it computes ---------------------------------------------------------------------


def compute(
    term: _OfBox, valid: _OfBox, boxes: Sequence[Expr], dtype: str
) -> tuple[te.Tensor, te.Tensor]:
    """Define the mean of terms, rounded to a dtype, and the number of valid boxes, an int32.

    Sums have the terms' dtype, fp32 or fp64.

    ``boxes`` are the numbers of samples and of boxes per sample, ``B`` and ``M``, or variables.  A
    condition of the form ``j < limit(b)`` is recognised: boxes starting at ``limit(b)`` are not
    even tested.
    """
    b, j = (te.reduce_axis((0, extent), name) for extent, name in zip(boxes, "bj", strict=True))
    both = te.comm_reducer(
        lambda some, more: (some[0] + more[0], some[1] + more[1]),
        lambda *dtypes: tuple(tirx.const(0, dtype) for dtype in dtypes),
        name="sum_and_number",
    )

    def chosen() -> tuple[Expr, ...]:
        value = term(b, j)
        value = tirx.if_then_else(valid(b, j), value, tirx.const(0, value.ty.dtype))
        return both((value, tirx.Cast("int32", valid(b, j))), axis=[b, j])

    total, number = te.compute((), chosen, name="masked_sum", attrs={FAMILY: NAME})
    divisor = tirx.Cast(total.dtype, tirx.max(number(), tirx.const(1, "int32")))
    mean = te.compute((), lambda: tirx.Cast(dtype, total() / divisor), name="masked_mean")
    return mean, number


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The extents, 0 if they are known only at run time, and the form of validity."""

    samples: int
    boxes: int
    _: KW_ONLY
    #: True if the valid boxes of a sample are those below a limit.
    limited: bool
    #: True if boxes that are not valid must not be read.
    packed: bool


@dataclass(frozen=True)
class Knobs:
    """The division of the sum among work-items."""

    groups: int = knob("Work-groups that share the sum, or parts of it for threads of a CPU.")
    group_size: int = knob("Work-items of a group, a power of 2.")
    boxes: int = knob("Boxes that an item takes in a step; on a CPU, at most, of one sample.")
    skip: str = knob("What skips boxes that are not valid: none, element, warp or list.")


SKIPS = ("none", "element", "warp", "list")

#: Boxes that are worth a part, and the number of parts that keeps a CPU's threads busy.
CPU_CHUNK, CPU_PARTS = 4096, 16
#: Work-groups on a GPU whose multiprocessors are not known.
GPU_GROUPS = 512
#: Boxes in a chunk of a sample, on a CPU.
CPU_BOXES = 1024

CONSTRAINTS = {
    **GROUP_HALVES,
    "skip is none, element, warp or list.": lambda k, s, d: k.skip in SKIPS,
    "Lanes of a vector cannot part ways: on a CPU, skip is not element.": lambda k, s, d: (
        not (d.is_cpu and k.skip == "element")
    ),
    "Packed boxes that are not valid may not be read: skip is not none.": lambda k, s, d: (
        not s.packed or k.skip != "none"
    ),
    "On a GPU, warps skip boxes after a limit, by 32 items of a group.": lambda k, s, d: (
        d.is_cpu or k.skip != "warp" or (s.limited and k.group_size >= WARP)
    ),
    "A list of group_size * boxes and its prefix sums must fit local memory.": lambda k, s, d: (
        d.is_cpu or k.skip != "list" or k.group_size * (k.boxes + 4) <= 8192
    ),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Choose knobs that keep the device busy.

    CPUs skip vectors after a limit; without a limit they compute all boxes, so that memory is
    prefetched.  GPUs take two boxes per item, which keeps enough loads in flight; each item tests
    its box, or a warp tests once where samples are long.  The choice for GPUs is not measured.
    """
    total = shape.samples * shape.boxes
    if device.is_cpu:
        parts = max(1, min(total // CPU_CHUNK, CPU_PARTS)) if total else CPU_PARTS
        skip = "warp" if shape.limited or shape.packed else "none"
        return Knobs(parts, 1, CPU_BOXES, skip)
    size = power_of_2(min(4 * device.group_size, device.max_group_size))
    gpu = device.multiprocessors
    most = GPU_GROUPS if gpu is None else 8 * gpu.count
    boxes = 2
    groups = min(most, -(-total // (size * boxes))) if total else most
    long = shape.limited and shape.boxes >= 4 * WARP and size >= WARP
    return Knobs(max(1, groups), size, boxes, "warp" if long else "element")


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """List the values of each knob."""
    if device.is_cpu:
        return {
            "groups": (1, 2, 4, 8, 16, 32, 64),
            "group_size": (1,),
            "boxes": (256, 1024, 4096),
            "skip": SKIPS,
        }
    return {
        "groups": (1, 8, 32, 64, 128, 256, 512, 1024, 2048),
        "group_size": (32, 64, 128, 256, 512, 1024),
        "boxes": (1, 2, 4, 8),
        "skip": SKIPS,
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of a function around the mean; inline the blocks before it."""
    sch, anchor = workload.sch, workload.anchor(NAME)
    if not all(is_injective(sch, block) for block in workload.before(anchor)):
        raise Declined("what it reads is computed by sums")
    if any(axis.dom.extent != 1 for b in workload.after(anchor) for axis in sch.get(b).iter_vars):
        raise Declined("more than numbers follow it")
    for block in workload.before(anchor):
        workload.inline(block)
    terms = _read_terms(workload, anchor)
    samples, boxes = static_extent(terms.samples), static_extent(terms.boxes)
    return Shape(samples, boxes, limited=terms.limit is not None, packed=terms.is_packed())


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the kernels."""
    anchor = workload.anchor(NAME)
    terms = _read_terms(workload, anchor)
    function, code = workload.function, Statements()
    after = [workload.sch.get(block) for block in workload.after(anchor)]
    partial = [
        tirx.decl_buffer((knobs.groups,), dtype, name)
        for dtype, name in ((terms.dtype, "partial_sums"), ("int32", "partial_numbers"))
        if knobs.groups > 1
    ]
    results = _Results(terms, after, set(function.params), partial)
    with code.block("root", partial):
        if workload.is_cpu:
            _write_parts(code, results, knobs, workload.target.is_gpu_kernel)
        else:
            _write_groups(code, results, knobs)
    return schedule_of(function, code.finish())


def _write_parts(code: Statements, results: _Results, knobs: Knobs, launches: bool) -> None:
    """Write kernels for a CPU: one sums up parts in threads, one adds these sums in order."""
    terms = results.terms
    chunks = tirx.truncdiv(terms.boxes + (knobs.boxes - 1), number(knobs.boxes))
    total = terms.samples * chunks
    with code.parts("sums_of_parts", knobs.groups, launches) as index:
        part = _Part(code, terms, knobs.skip)
        begin, end = (
            code.name(name, tirx.truncdiv(total * place, number(knobs.groups)))
            for name, place in (("begin", index), ("end", index + 1))
        )
        with code.loop("place", end - begin) as place:
            chunk = code.name("chunk", begin + place)
            sample = code.name("sample", tirx.truncdiv(chunk, chunks))
            first = code.name("first", tirx.truncmod(chunk, chunks) * knobs.boxes)
            last = code.name("last", tirx.Min(first + knobs.boxes, terms.boxes))
            part.add_chunk(sample, first, last)
        part.finish()
        results.write_partial(code, index, part.total(), part.count[0])
    if not results.partial:
        return
    with code.parts("sum_of_parts", 1, launches):
        kinds = (("sum", results.terms.dtype), ("all", "int32"))
        sums = [code.alloc(name, (1,), dtype) for name, dtype in kinds]
        for mine in sums:
            code.store(mine, tirx.const(0, mine.dtype), 0)
        with code.loop("part", knobs.groups) as index:
            for mine, parts in zip(sums, results.partial, strict=True):
                code.store(mine, mine[0] + parts[index], 0)
        results.write(code, sums[0][0], sums[1][0])


def _write_groups(code: Statements, results: _Results, knobs: Knobs) -> None:
    """Write kernels for a GPU: work-groups, and one that adds their sums in a fixed order."""
    dtype = results.terms.dtype
    with _group(code, "sums_of_groups", knobs.groups, knobs.group_size, dtype) as group:
        group.add_boxes(results.terms, knobs.skip, knobs.boxes)
        total, count = group.reduce()
        with code.when(group.item == 0):
            results.write_partial(code, group.group, total, count)
    if not results.partial:
        return
    items = min(knobs.group_size, 1 << (knobs.groups - 1).bit_length())
    with _group(code, "sum_of_groups", 1, items, dtype) as group:
        with code.loop("turn", -(-knobs.groups // items)) as turn:
            index = code.name("index", turn * items + group.item)
            with code.when(index < knobs.groups):
                group.add(*(memory[index] for memory in results.partial))
        total, count = group.reduce()
        with code.when(group.item == 0):
            results.write(code, total, count)


@contextmanager
def _group(code: Statements, name: str, count: int, size: int, dtype: str) -> Iterator[_Group]:
    """Open a kernel of ``count`` work-groups of a size, whose sums have a dtype."""
    shared: list[Buffer] = []
    with code.items(name, count, size, shared) as (group, item):
        yield _Group(code, group, item, count, size, dtype, shared)


@dataclass(frozen=True)
class _Results:
    """The results of the function, and the partial sums of several parts or groups."""

    terms: Terms
    #: Blocks that compute other scalars from the sum and the number.
    after: Sequence[s_tir.SBlock]
    #: Parameters of the function.
    params: set[Buffer]
    #: Memory for the sums and the numbers of parts or groups, if there are several.
    partial: Sequence[Buffer]

    def write_partial(self, code: Statements, index: Expr, total: Expr, count: Expr) -> None:
        """Store the sums of one part, or the results if it is the only one."""
        if not self.partial:
            self.write(code, total, count)
        for memory, value in zip(self.partial, (total, count), strict=False):
            code.store(memory, value, index)

    def write(self, code: Statements, total: Expr, count: Expr) -> None:
        """Compute and store the results."""
        pairs = ((self.terms.total, total), (self.terms.number, count))
        known = {buffer: code.name(buffer.name, value) for buffer, value in pairs}
        for buffer, value in known.items():
            if buffer in self.params:
                code.store(buffer, value)
        for block in self.after:
            body = tvm_ffi.structural_map(
                block.body, (TensorLoad, lambda load: known.get(load.source, load))
            )
            body = substitute_vars(body, {axis.var: number(0) for axis in block.iter_vars})
            target = block.writes[0].source
            if target in self.params:
                code.add(body)
            else:
                known[target] = code.name(target.name, body.value)


# -- the terms ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """The parts of a mean over ``[samples, boxes]``.

    They are expressions of the variables ``sample`` and ``box``, which may have 64 bits; kernels
    count in 32.
    """

    sample: Var
    box: Var
    samples: Expr
    boxes: Expr
    #: The term of a valid box.
    term: Expr
    valid: Expr
    #: The limit, from 0 to ``boxes``, if ``valid`` is ``box < limit``; else ``None``.
    limit: Expr | None
    #: Scalars that the block writes.
    total: Buffer
    number: Buffer

    @property
    def dtype(self) -> str:
        """Return the dtype of terms and sums."""
        return str(self.total.dtype)

    @property
    def zero(self) -> Expr:
        """Return the term that leaves a sum unchanged."""
        return tirx.const(0, self.dtype)

    def places(self, sample: Expr, box: Expr) -> dict[Var, Expr]:
        """Return the values of the variables for one box."""
        return places_of((self.sample, self.box), (sample, box))

    def limit_of(self, sample: Expr) -> Expr:
        """Return the limit of a sample."""
        return substitute_vars(self.limit, self.places(sample, number(0)))

    def rows_in_memory(self) -> list[Row]:
        """Return the rows that the term reads, if it depends on its box only through rows.

        The rows of neighbouring boxes are neighbours; otherwise there are none.
        """
        rows = rows_of(self.term)
        rest = _with_rows(self.term, rows, lambda row, corner: self.zero)
        fits = not uses(rest, self.box) and all(follows(row.place, self.box) for row in rows)
        return rows if fits else []

    def is_packed(self) -> bool:
        """Return whether the term of a box that is not valid may read outside of a tensor."""
        analyzer = Analyzer()
        for var, extent in ((self.sample, self.samples), (self.box, self.boxes)):
            dtype = var.ty.dtype
            analyzer.bind(var, Range(tirx.const(0, dtype), extent.astype(dtype)))
        return not all(
            analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
            for load in nodes_in(self.term, TensorLoad)
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )


def _with_rows(
    expression: Expr, rows: Sequence[Row], number_of: Callable[[int, int], Expr]
) -> Expr:
    """Return an expression with ``number_of(row, corner)`` for the numbers of rows.

    These numbers have the dtype of `arithmetic`.
    """

    def visit(load: TensorLoad) -> Expr:
        row = Row.of(load)
        if row is None or row not in rows:
            return load
        return number_of(rows.index(row), int(load.indices[-1]))

    def is_done(cast: tirx.Cast) -> Expr:
        return cast.value if cast.value.ty.dtype == cast.ty.dtype else cast

    return tvm_ffi.structural_map(expression, [(TensorLoad, visit), (tirx.Cast, is_done)])


def _read_terms(workload: Workload, anchor: Block) -> Terms:
    """Return the parts of the block that :func:`compute` defined."""
    block = workload.sch.get(anchor)
    loops = [workload.sch.get(loop) for loop in workload.sch.get_loops(anchor)]
    # The block adds to a sum and to a number.
    sums = nodes_in(block.body, tirx.Bind)
    two = len(sums) == len(loops) == len(block.iter_vars) == 2
    added = choice(sums[0].value.b) if two else None
    if added is None:
        raise Declined("its block is not the one that it defined")
    valid, term, _ = added
    sample, box = (axis.var for axis in block.iter_vars)
    samples, boxes = (in_32_bits(loop.extent) for loop in loops)
    limit = _limit(valid, box)
    if limit is not None:
        dtype = limit.ty.dtype
        limit = tirx.Max(tirx.Min(limit, boxes.astype(dtype)), tirx.const(0, dtype))
        limit = limit.astype("int32")
    total, count = (region.source for region in block.writes)
    return Terms(
        sample=sample, box=box, samples=samples, boxes=boxes, term=term, valid=valid, limit=limit,
        total=total, number=count,
    )  # fmt: skip


def _limit(condition: Expr, box: Var) -> Expr | None:
    """Return the limit of ``box < limit``; ``None`` for other conditions.

    TVM writes ``box < min(a, b)`` as ``box < a and box < b``.
    """
    if isinstance(condition, (tirx.And, tirx.Or)):
        a, b = (_limit(side, box) for side in (condition.a, condition.b))
        if a is None or b is None:
            return None
        return tirx.Min(a, b) if isinstance(condition, tirx.And) else tirx.Max(a, b)
    if not isinstance(condition, tirx.LT):
        return None
    left = condition.a.value if isinstance(condition.a, tirx.Cast) else condition.a
    return condition.b if left.same_as(box) and not uses(condition.b, box) else None


# -- on a GPU: a box per item, and trees in local memory -----------------------------------


@dataclass
class _Group:
    """The statements of one work-group, inside of the loops over groups and items.

    Neighbouring items take neighbouring boxes, a row of four numbers in one load.  An item sums up
    its boxes, and a group the sums of its items in a tree of radix 8, always in the same order.

    The knob ``skip`` says what happens to boxes that are not valid:

    ``none``
        All are read and computed, and those that are not valid are dropped.
    ``element``
        Each item tests its box first.  Items of a warp may diverge.
    ``warp``
        32 items take neighbours of one sample, and skip those after its limit together.
    ``list``
        A group lists its valid boxes by a prefix sum in local memory, and its items take boxes
        from the list: items are idle only at the end of a list.
    """

    code: Statements
    group: Expr
    item: Expr
    groups: int
    items: int
    #: The dtype of sums.
    dtype: str
    #: Local memory of the group, which grows.
    shared: list[Buffer]

    def __post_init__(self) -> None:
        self.sums = self._share("group_sums", self.dtype, self.items)
        self.numbers = self._share("group_numbers", "int32", self.items)
        self.sum = self.code.alloc("item_sum", (1,), self.dtype)
        self.number = self.code.alloc("item_number", (1,), "int32")
        self.code.store(self.sum, tirx.const(0, self.dtype), 0)
        self.code.store(self.number, number(0), 0)

    def _share(self, name: str, dtype: str, extent: int) -> Buffer:
        self.shared.append(tirx.decl_buffer((extent,), dtype, name, scope="shared"))
        return self.shared[-1]

    def add(self, value: Expr, count: Expr) -> None:
        """Add to the sum and number of this item."""
        self.code.store(self.sum, self.sum[0] + value, 0)
        self.code.store(self.number, self.number[0] + count, 0)

    def reduce(self) -> tuple[Expr, Expr]:
        """Return the sum and number of the group, for its first item."""
        code, item = self.code, self.item
        code.store(self.sums, self.sum[0], item)
        code.store(self.numbers, self.number[0], item)
        left = self.items
        for radix in radices(self.items):
            code.barrier()
            left //= radix
            # No item reads what another one writes: those below ``left`` write their own element.
            with code.when(item < left):
                for shared in (self.sums, self.numbers):
                    total = shared[item]
                    for part in range(1, radix):
                        total = total + shared[item + part * left]
                    code.store(shared, total, item)
        return self.sums[0], self.numbers[0]

    # -- boxes ----------------------------------------------------------------------------

    def add_boxes(self, terms: Terms, skip: str, boxes: int) -> None:
        """Sum up the boxes of this group; each item takes ``boxes`` of them in a step."""
        total = terms.samples * terms.boxes
        if skip == "list":
            self._add_listed(terms, total, boxes)
        elif skip == "warp":
            self._add_tiles(terms, boxes)
        else:
            with self._steps(total, self.items * boxes) as first:
                for part in range(boxes):
                    place = self.code.name("place", first + part * self.items + self.item)
                    with self.code.when(place < total):
                        self._add_box(terms, place, tested=skip == "element")

    @contextmanager
    def _steps(self, total: Expr, step: int) -> Iterator[Var]:
        """Open a loop over this group's share of a range; it yields the first place of a step."""
        steps = tirx.truncdiv(total + (self.groups * step - 1), self.groups * step)
        with self.code.loop("step", steps) as var:
            yield self.code.name("first", (var * self.groups + self.group) * step)

    def _add_box(self, terms: Terms, place: Expr, tested: bool) -> None:
        """Sum up one box, with or without a test before it is read."""
        box = _Box.at(terms, self.code, place)
        valid = box.compute(terms.valid)
        if tested:
            with self.code.when(valid):
                self.add(box.compute(terms.term), number(1))
        else:
            valid = self.code.name("valid", valid.astype("int32"))
            self.add(tirx.Select(valid != 0, box.compute(terms.term), terms.zero), valid)

    def _add_tiles(self, terms: Terms, boxes: int) -> None:
        """Sum up tiles of 32 neighbours of a sample, as far as its limit."""
        code, warps = self.code, self.items // WARP
        tiles = tirx.truncdiv(terms.boxes + (WARP - 1), number(WARP))
        total = terms.samples * tiles
        with self._steps(total, warps * boxes) as first:
            for part in range(boxes):
                tile = code.name("tile", first + part * warps + self.item // WARP)
                with code.when(tile < total):
                    sample = code.name("sample", tirx.truncdiv(tile, tiles))
                    begin = code.name("begin", tirx.truncmod(tile, tiles) * WARP)
                    limit = code.name("limit", terms.limit_of(sample))
                    with code.when(begin < limit):
                        place = code.name("place", begin + self.item % WARP)
                        # Items of the last tile beyond the limit recompute its last box, unused.
                        last = code.name("box", tirx.Min(place, limit - 1))
                        term = _Box(terms, code, sample, last).compute(terms.term)
                        valid = place < limit
                        self.add(tirx.Select(valid, term, terms.zero), valid.astype("int32"))

    def _add_listed(self, terms: Terms, total: Expr, boxes: int) -> None:
        """Sum up the valid boxes, which the group lists in each step."""
        code, item, tile = self.code, self.item, self.items * boxes
        found = self._share("listed", "int32", tile)
        ends = [self._share(f"ends{i}", "int32", self.items) for i in range(2)]
        with self._steps(total, tile) as first:
            chosen = code.alloc("chosen", (boxes,), "int32")
            mine: Expr = number(0)
            for part in range(boxes):
                code.store(chosen, number(0), part)
                place = code.name("place", first + part * self.items + item)
                with code.when(place < total):
                    valid = _Box.at(terms, code, place).compute(terms.valid)
                    code.store(chosen, valid.astype("int32"), part)
                mine = mine + chosen[part]
            mine = code.name("mine", mine)
            end, listed = self._prefix_sum(mine, ends)
            at = code.variable("at", end - mine)
            for part in range(boxes):
                with code.when(chosen[part] != 0):
                    code.store(found, part * self.items + item, at[0])
                    code.store(at, at[0] + 1, 0)
            code.barrier()
            with code.loop("turn", tirx.truncdiv(listed + (self.items - 1), self.items)) as turn:
                entry = code.name("entry", turn * self.items + item)
                with code.when(entry < listed):
                    place = code.name("place", first + found[entry])
                    self.add(_Box.at(terms, code, place).compute(terms.term), number(1))
            # The next step writes its list only after all items have read this one.
            code.barrier()

    def _prefix_sum(self, value: Expr, buffers: Sequence[Buffer]) -> tuple[Expr, Expr]:
        """Return the sum of the values up to this item's, and the sum of all.

        The steps double, after Hillis and Steele (Data parallel algorithms, 1986).
        """
        code, item = self.code, self.item
        source, result = buffers
        code.store(source, value, item)
        step = 1
        while step < self.items:
            code.barrier()
            before = tirx.if_then_else(item >= step, source[item - step], number(0))
            code.store(result, source[item] + before, item)
            source, result = result, source
            step *= 2
        code.barrier()
        return code.name("end", source[item]), code.name("listed", source[self.items - 1])


class _Box:
    """A box whose rows are read once, when they are needed."""

    def __init__(self, terms: Terms, code: Statements, sample: Expr, box: Expr):
        self.code = code
        self.places = terms.places(sample, box)
        self.rows: list[Row] = []
        self.texels: list[Var] = []

    @classmethod
    def at(cls, terms: Terms, code: Statements, place: Expr) -> _Box:
        """Return the box at a place of the flattened ``[samples, boxes]``."""
        sample = code.name("sample", tirx.truncdiv(place, terms.boxes))
        box = code.name("box", tirx.truncmod(place, terms.boxes))
        return cls(terms, code, sample, box)

    def compute(self, expression: Expr) -> Expr:
        """Return an expression of the variables for this box."""
        for row in rows_of(expression):
            if row not in self.rows:
                self.rows.append(row)
                self.texels.append(self.code.name("box", row.at(self.places).read()))
        numbers = _with_rows(
            expression, self.rows, lambda row, corner: shuffle([self.texels[row]], [corner])
        )
        return self.code.name_all(substitute_vars(numbers, self.places))


# -- on a CPU: 16 boxes at a time, in the lanes of a vector -------------------------------

#: Boxes of a vector, and of each of the four vectors that load them.
LANES = 16
_QUARTERS = LANES // COORDINATES
_ALL = ramp(0, LANES)

#: A condition for lanes of a vector that count; ``None`` if all do.
_Chosen = Callable[[Expr], Expr] | None


def _lane_of_neighbour(place: Expr | int) -> Expr | int:
    """Return the lane of the ``place``-th of 16 neighbours in memory; it is its own inverse."""
    return place % _QUARTERS * _QUARTERS + place // _QUARTERS


class _Part:
    """The statements that sum up the chunks of one part.

    Samples are cut into chunks, and chunks are distributed to parts, each the work of a thread or
    work-item.  A chunk is summed up by vectors of neighbouring boxes.  With the knob ``skip``

    ``none``
        all are computed, and lanes that are not valid are dropped;
    ``warp``
        vectors without a valid box are skipped;
    ``list``
        all lanes are valid: the boxes of other vectors wait in a list until they fill a vector,
        whose rows may be anywhere.  Loading them costs more than half a vector of neighbours.

    The last boxes of a tensor, or of a chunk without a limit, wait in that list, too, if they do
    not fill a vector.
    """

    def __init__(self, code: Statements, terms: Terms, skip: str):
        self.code, self.terms, self.skip = code, terms, skip
        self.rows = terms.rows_in_memory()
        self.sums = code.alloc("sums", (LANES,), terms.dtype)
        self.count = code.alloc("count", (1,), "int32")
        code.store(self.sums, tirx.Broadcast(terms.zero, LANES), _ALL)
        code.store(self.count, number(0), 0)
        if self.rows:
            # Fewer boxes than a vector wait, and at most one vector more before they are drained.
            self.waiting = code.alloc("waiting", (1,), "int32")
            self.samples, self.boxes = (
                code.alloc(f"waiting_{name}", (2 * LANES,), "int32")
                for name in ("samples", "boxes")
            )
            code.store(self.waiting, number(0), 0)

    # -- a chunk --------------------------------------------------------------------------

    def add_chunk(self, sample: Expr, begin: Expr, end: Expr) -> None:
        """Sum up the boxes from ``begin`` to ``end`` of a sample."""
        code, terms = self.code, self.terms
        stop = end
        if terms.limit is not None:
            limit = tirx.Min(terms.limit_of(sample), end)
            stop = code.name("stop", tirx.Max(limit, begin))
            code.store(self.count, self.count[0] + (stop - begin), 0)
        vectors = code.name("vectors", self._vectors(begin, end, stop))
        with code.loop("vector", vectors) as vector:
            first = code.name("first", begin + vector * LANES)
            if terms.limit is None:
                self._add_chosen(sample, first)
            else:
                self._add_limited(sample, first, stop)
        self._add_rest(sample, code.name("rest", begin + vectors * LANES), stop)

    def _vectors(self, begin: Expr, end: Expr, stop: Expr) -> Expr:
        """Return the number of vectors of neighbours; the other boxes wait."""
        if self.terms.limit is None or self.skip == "list" or not self.rows:
            return tirx.truncdiv(stop - begin, number(LANES))
        last = end if self.skip == "none" else stop
        return tirx.truncdiv(last - begin + (LANES - 1), number(LANES))

    def _add_limited(self, sample: Expr, first: Expr, stop: Expr) -> None:
        """Sum up neighbours below a limit."""
        code = self.code
        if self.skip == "list" or not self.rows:
            self._add(sample, first, None)
            return
        left = code.name("left", stop - first)
        # A vector may reach into the next sample, but not beyond the end of a tensor.
        inside = [self._reaches(row.at(self.terms.places(sample, first))) for row in self.rows]
        inside = code.name("inside", tirx.all(*inside).astype("int32"))
        with code.when(inside != 0):
            self._add(sample, first, lambda lane: _lane_of_neighbour(lane) < left)
        with code.when(inside == 0):
            self._add_rest(sample, first, stop)

    @staticmethod
    def _reaches(row: Row) -> Expr:
        """Return whether a tensor has a vector of rows starting at one."""
        position: Expr = number(0)
        total: Expr = number(1)
        for index, extent in zip(row.place, row.tensor.shape, strict=False):
            position = position * extent.astype("int32") + index.astype("int32")
            total = total * extent.astype("int32")
        return position + LANES <= total

    def _add_chosen(self, sample: Expr, first: Expr) -> None:
        """Sum up neighbours whose validity is tested one by one."""
        code = self.code
        mask = code.alloc("mask", (LANES,), "int32")
        found: Expr = number(0)
        lanes = [_lane_of_neighbour(place) if self.rows else place for place in range(LANES)]
        for place, lane in enumerate(lanes):
            chosen = code.name("chosen", self._valid(sample, first + place))
            code.store(mask, chosen, lane)
            found = found + chosen
        found = code.name("found", found)
        code.store(self.count, self.count[0] + found, 0)
        if self.skip != "list":
            with nullcontext() if self.skip == "none" else code.when(found > 0):
                self._add(sample, first, lambda lane: mask[lane] != 0)
        else:
            with code.when(found == LANES):
                self._add(sample, first, None)
            with code.when(tirx.all(found > 0, found < LANES)):
                for place, lane in enumerate(lanes):
                    self._append(sample, first + place, mask[lane])
                self._drain()

    def _add_rest(self, sample: Expr, first: Expr, stop: Expr) -> None:
        """Append boxes that do not fill a vector to the list."""
        code = self.code
        with code.loop("left", tirx.Max(stop - first, number(0))) as left:
            box = code.name("box", first + left)
            chosen = None
            if self.terms.limit is None:
                chosen = code.name("chosen", self._valid(sample, box))
                code.store(self.count, self.count[0] + chosen, 0)
            self._append(sample, box, chosen)
        self._drain()

    def _valid(self, sample: Expr, box: Expr) -> Expr:
        return substitute_vars(self.terms.valid, self.terms.places(sample, box)).astype("int32")

    def _add(self, sample: Expr, first: Expr, chosen: _Chosen) -> None:
        """Sum up the chosen lanes of a vector of neighbours."""
        quarters = (self._neighbours(row, sample, first) for row in self.rows)
        self._accumulate(quarters, lambda lane: self.terms.places(sample, first + lane), chosen)

    def _neighbours(self, row: Row, sample: Expr, first: Expr) -> list[Var]:
        """Load vectors of four neighbours each, in the order of :meth:`_transposed`."""
        rows = [row.at(self.terms.places(sample, first + place)) for place in range(LANES)]
        if is_texture(row.tensor.scope()):
            parts = (rows[start : start + _QUARTERS] for start in range(0, LANES, _QUARTERS))
            return [self._joined([each.read() for each in part]) for part in parts]
        return [self.code.name("quarter", each.read(LANES)) for each in rows[::_QUARTERS]]

    # -- the list -------------------------------------------------------------------------

    def _append(self, sample: Expr, box: Expr, chosen: Expr | None) -> None:
        """Append a box to the list if ``chosen`` is 1; without a list, sum it up at once."""
        code, terms = self.code, self.terms
        if self.rows:
            last = self.waiting[0]
            code.store(self.samples, sample, last)
            code.store(self.boxes, box, last)
            code.store(self.waiting, last + (1 if chosen is None else chosen), 0)
            return
        with nullcontext() if chosen is None else code.when(chosen != 0):
            term = substitute_vars(terms.term, terms.places(sample, box))
            code.store(self.sums, self.sums[0] + code.name_all(term), 0)

    def _drain(self) -> None:
        """Sum up a vector of waiting boxes, if there are enough."""
        if not self.rows:
            return
        code = self.code
        with code.when(self.waiting[0] >= LANES):
            self._add_waiting(None)
            for entries in (self.samples, self.boxes):
                code.store(entries, tirx.BufferLoad(entries, [ramp(LANES, LANES)]), _ALL)
            code.store(self.waiting, self.waiting[0] - LANES, 0)

    def finish(self) -> None:
        """Sum up the boxes that still wait."""
        if not self.rows:
            return
        code = self.code
        with code.when(self.waiting[0] > 0):
            # Lanes without a box compute the term of the first one, which is dropped.
            with code.loop("lane", LANES - self.waiting[0]) as lane:
                for entries in (self.samples, self.boxes):
                    code.store(entries, entries[0], self.waiting[0] + lane)
            self._add_waiting(lambda lane: lane < self.waiting[0])

    def _add_waiting(self, chosen: _Chosen) -> None:
        """Sum up the first vector of the list."""

        def places(lane: Expr) -> dict[Var, Expr]:
            return self.terms.places(self.samples[lane], self.boxes[lane])

        texels = (
            [row.at(places(number(lane))).read() for lane in range(LANES)] for row in self.rows
        )
        quarters = ([self._joined(rows[q::_QUARTERS]) for q in range(_QUARTERS)] for rows in texels)
        self._accumulate(quarters, places, chosen)

    def total(self) -> Expr:
        """Return the sum of the lanes, pair by pair."""
        lanes: list[Expr] = [self.sums[lane] for lane in range(LANES)]
        while half := len(lanes) // 2:
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    # -- vectors --------------------------------------------------------------------------

    def _joined(self, rows: Sequence[Expr]) -> Var:
        """Return a vector of four rows."""
        rows = [self.code.name("row", row) for row in rows]
        return self.code.name("quarter", shuffle(rows, range(LANES)))

    def _transposed(self, row: int, quarters: Sequence[Var]) -> Buffer:
        """Transpose four vectors of rows to numbers ``[4, 16]``.

        Both steps of shuffles stay within quarters of vectors, where shuffles are cheap.  Lane
        ``4 i + k`` has row ``i`` of vector ``k``; the order does not matter to a sum::

            a0 a1 a2 a3 | ..      a0 b0 a1 b1 | ..      a0 b0 c0 d0 | ..
            b0 b1 b2 b3 | ..  ->  a2 b2 a3 b3 | ..  ->  a1 b1 c1 d1 | ..
            c0 c1 c2 c3 | ..      c0 d0 c1 d1 | ..      a2 b2 c2 d2 | ..
            d0 d1 d2 d3 | ..      c2 d2 c3 d3 | ..      a3 b3 c3 d3 | ..
        """
        code, starts = self.code, range(0, LANES, COORDINATES)
        low = [lane for q in starts for lane in (q, LANES + q, q + 1, LANES + q + 1)]
        first = [lane for q in starts for lane in (q, q + 1, LANES + q, LANES + q + 1)]
        pairs = [shuffled_pairs(code, quarters, [lane + up for lane in low]) for up in (0, 2)]
        dtype = arithmetic(self.rows[row].tensor.dtype)
        staged = code.alloc(f"row{row}", (COORDINATES, LANES), dtype)
        for corner in range(COORDINATES):
            lanes = [lane + corner % 2 * 2 for lane in first]
            code.store(staged, shuffle(pairs[corner // 2], lanes), corner, _ALL)
        return staged

    def _accumulate(
        self,
        quarters: Iterable[Sequence[Var]],
        places: Callable[[Expr], dict[Var, Expr]],
        chosen: _Chosen,
    ) -> None:
        """Add terms to the sums, lane by lane, from four vectors for each row."""
        code = self.code
        staged = [self._transposed(index, vectors) for index, vectors in enumerate(quarters)]
        with code.loop("lane", LANES, ForKind.VECTORIZED) as lane:
            term = _with_rows(
                self.terms.term, self.rows, lambda row, corner: staged[row][corner, lane]
            )
            value = code.name_all(substitute_vars(term, places(lane)))
            if chosen is not None:
                value = tirx.Select(chosen(lane), value, self.terms.zero)
            code.store(self.sums, self.sums[lane] + value, lane)
