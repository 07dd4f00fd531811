"""Stream compaction: the positions of the marked elements of a list, in their order.

For any number n of marks, and room for ``m`` positions::

    count = Σ over i < n with marks[i] ≠ 0 of 1
    positions[j] = the j-th i with marks[i] ≠ 0, 0 for count ≤ j < m

CPU threads, or work-groups, take contiguous parts of the list.  One launch counts the marks of each
part; in a second each part adds up the counts before its own, and writes its positions after them.
Work-items find their places by prefix sums in local memory (Hillis and Steele, "Data Parallel
Algorithms", 1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, te, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from .boxes.builder import Statements, define_extern, number, schedule_of
from .common import FAMILY, Workload
from .family import GROUP_HALVES, Value, knob, only_block
from .sizes import power_of_2

NAME = "compaction"
ORDER = 502


# -- what it computes ---------------------------------------------------------------------


def compute(marks: te.Tensor, most: int) -> list[te.Tensor]:
    """Define ``most`` positions, int32, and the count, an int64, of int32 marks ``[n]``."""

    def write(code: Statements, tensors: Sequence[Buffer]) -> None:
        _Part(code, _List(*tensors), number(0), 1).write(number(0))

    outputs = [("positions", (most,), "int32"), ("count", (), "int64")]
    return define_extern([marks], outputs, {FAMILY: NAME}, write)


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Elements of the list, and positions that can be stored."""

    elements: int
    most: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the division of the list into parts."""

    groups: int = knob("Work-groups that share the list, or parts of it for threads of a CPU.")
    group_size: int = knob("Work-items of a group, a power of 2.")


CONSTRAINTS = GROUP_HALVES

#: Least elements worth a thread, and parts that keep a CPU's threads busy.
CPU_CHUNK, CPU_PARTS = 4096, 16
#: Most work-groups; each adds up the counts of all others, one by one.
GPU_GROUPS = 64


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return parts that are worth a thread; for GPUs this is an assumption."""
    if device.is_cpu:
        return Knobs(max(1, min(shape.elements // CPU_CHUNK, CPU_PARTS)), 1)
    size = power_of_2(min(4 * device.group_size, device.max_group_size))
    return Knobs(max(1, min(-(-shape.elements // (4 * size)), GPU_GROUPS)), size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return numbers of groups and items in powers of 2."""
    sizes = (1,) if device.is_cpu else (32, 64, 128, 256, 512)
    return {"groups": (1, 2, 4, 8, 16, 32, 64), "group_size": sizes}


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of a function that computes nothing else."""
    only_block(workload, NAME)
    marks, positions, _ = workload.function.params
    return Shape(int(marks.shape[0]), int(positions.shape[0]))


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the kernels."""
    function, code = workload.function, Statements()
    what = _List(*function.params)
    counts = tirx.decl_buffer((knobs.groups,), "int32", "counts")
    with code.block("root", [counts]):
        if workload.is_cpu:
            launches = workload.target.is_gpu_kernel
            with code.parts("count_parts", knobs.groups, launches) as index:
                code.store(counts, _Part(code, what, index, knobs.groups).count(), index)
            with code.parts("write_parts", knobs.groups, launches) as index:
                part = _Part(code, what, index, knobs.groups)
                before, total = part.add_up(counts)
                part.write(before, total)
        else:
            for name in ("count_groups", "write_groups"):
                shared = [tirx.decl_buffer((knobs.group_size,), "int32", "sums", scope="shared")]
                with code.items(name, knobs.groups, knobs.group_size, shared) as (group, item):
                    mine = _Group(code, what, group, knobs.groups, item, knobs.group_size, *shared)
                    if name == "count_groups":
                        mine.count(counts)
                    else:
                        mine.write(counts)
    return schedule_of(function, code.finish())


@dataclass(frozen=True)
class _List:
    """The function's tensors."""

    marks: Buffer
    positions: Buffer
    total: Buffer

    @property
    def elements(self) -> int:
        return int(self.marks.shape[0])

    @property
    def most(self) -> int:
        return int(self.positions.shape[0])


@dataclass(frozen=True)
class _Part:
    """One of several contiguous parts of a list, for one thread."""

    code: Statements
    what: _List
    index: Expr
    parts: int

    def _range(self, extent: int) -> tuple[Expr, Expr]:
        """Return where the part of an axis begins, and how many elements it has."""
        size = -(-extent // self.parts)
        begin = self.index * size
        return begin, tirx.Max(tirx.Min(number(extent) - begin, number(size)), number(0))

    def count(self) -> Expr:
        """Return the number of marks."""
        code, found = self.code, self.code.variable("found", number(0))
        begin, extent = self._range(self.what.elements)
        with code.loop("i", extent) as i:
            code.store(found, found[0] + _is_marked(self.what.marks[begin + i]), 0)
        return found[0]

    def add_up(self, counts: Buffer) -> tuple[Expr, Expr]:
        """Return the number of marks before this part, and that of all."""
        code = self.code
        before, total = code.variable("before", number(0)), code.variable("total_marks", number(0))
        with code.loop("part", self.parts) as part:
            with code.when(part < self.index):
                code.store(before, before[0] + counts[part], 0)
            code.store(total, total[0] + counts[part], 0)
        return before[0], total[0]

    def write(self, before: Expr, total: Expr | None = None) -> None:
        """Write the positions of the marks, and zeros of this part of the rest."""
        code, what = self.code, self.what
        place = code.variable("place", before)
        begin, extent = self._range(what.elements)
        with code.loop("i", extent) as i, code.when(what.marks[begin + i] != 0):
            with code.when(place[0] < what.most):
                code.store(what.positions, begin + i, place[0])
            code.store(place, place[0] + 1, 0)
        total = place[0] if total is None else total
        begin, extent = self._range(what.most)
        with code.loop("j", extent) as j, code.when(begin + j >= total):
            code.store(what.positions, number(0), begin + j)
        with code.when(self.index == 0):
            code.store(what.total, total.astype("int64"))


@dataclass(frozen=True)
class _Group:
    """One of several contiguous parts of a list, for a work-group whose items take neighbours."""

    code: Statements
    what: _List
    group: Expr
    groups: int
    item: Expr
    items: int
    #: Local memory with a number for each item.
    shared: Buffer

    @property
    def _turns(self) -> int:
        return -(-self.what.elements // (self.groups * self.items))

    def _mark(self, turn: Expr) -> tuple[Expr, Expr]:
        """Return the item's element in a turn, and whether it is marked, 0 after the list."""
        at = (self.group * self._turns + turn) * self.items + self.item
        inside = at < self.what.elements
        load = self.what.marks[tirx.Min(at, number(self.what.elements - 1))]
        return at, tirx.Select(inside, _is_marked(load), number(0))

    def count(self, counts: Buffer) -> None:
        """Store the number of this group's marks."""
        code, shared = self.code, self.shared
        found = code.variable("found", number(0))
        with code.loop("turn", self._turns) as turn:
            code.store(found, found[0] + self._mark(turn)[1], 0)
        code.store(shared, found[0], self.item)
        left = self.items
        while left > 1:
            left //= 2
            code.barrier()
            with code.when(self.item < left):
                code.store(shared, shared[self.item] + shared[self.item + left], self.item)
        with code.when(self.item == 0):
            code.store(counts, shared[0], self.group)

    def write(self, counts: Buffer) -> None:
        """Write the positions of this group's marks, and zeros of its part of the rest."""
        code, what, shared = self.code, self.what, self.shared
        before, total = _Part(code, what, self.group, self.groups).add_up(counts)
        begin = code.variable("begin", before)
        with code.loop("turn", self._turns) as turn:
            at, mark = self._mark(turn)
            mark = code.name_stored("mark", mark)
            code.barrier()
            code.store(shared, mark, self.item)
            code.barrier()
            distance = 1
            while distance < self.items:
                behind = tirx.Max(self.item - distance, number(0))
                nearer = tirx.Select(self.item >= distance, shared[behind], number(0))
                nearer = code.name_stored(f"sum_{distance}", nearer)
                code.barrier()
                code.store(shared, shared[self.item] + nearer, self.item)
                code.barrier()
                distance *= 2
            place = code.name_stored("place", begin[0] + shared[self.item] - mark)
            with code.when(tirx.all(mark != 0, place < what.most)):
                code.store(what.positions, at, place)
            code.store(begin, begin[0] + shared[self.items - 1], 0)
        each = self.groups * self.items
        with code.loop("turn", -(-what.most // each)) as turn:
            j = code.name("j", turn * each + self.group * self.items + self.item)
            with code.when(tirx.all(j >= total, j < what.most)):
                code.store(what.positions, number(0), j)
        with code.when(tirx.all(self.group == 0, self.item == 0)):
            code.store(what.total, total.astype("int64"))


def _is_marked(mark: Expr) -> Expr:
    """Return 1 for a mark, else 0."""
    return tirx.Select(mark != 0, number(1), number(0))
