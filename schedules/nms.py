"""Non-maximum suppression: of overlapping boxes, keep those with the best scores.

For each image ``b < B`` and class ``c < C``, repeat with the boxes whose score is above a
threshold, until enough are selected or none is left::

    select the box with the best score, of equal ones the first
    drop it, and all boxes whose intersection over union with it is above another threshold

Boxes whose score is NaN are no candidates.  Boxes may have their corners in any order; if the area
of a box, of the union or of the intersection is not above zero, they do not overlap.  All is
rounded as in ONNX Runtime (`non_max_suppression_helper.h` there), because the choice of boxes
depends on it.

A thread of a CPU, or a work-group, processes a class of an image.  A thread takes candidates from a
heap, and compares each with the selected boxes, up to the first that it overlaps.  Work-items keep
lists of their own candidates, which shrink as these are dropped, and find the best of all in local
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

from tvm import s_tir, te, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from .boxes.builder import COORDINATES, Statements, define_extern, number, schedule_of
from .common import FAMILY, Workload
from .family import GROUP_FITS, Value, knob, only_block
from .sizes import power_of_2

NAME = "nms"
ORDER = 504

#: Annotations of the block: whether boxes are centred, and whether there is a score threshold.
_CENTERED, _THRESHOLD = "tvmflow.centered", "tvmflow.has_threshold"


# -- what it computes ---------------------------------------------------------------------


def compute(
    tensors: Sequence[te.Tensor], stored: int, *, centered: bool, has_threshold: bool
) -> list[te.Tensor]:
    """Define the selected boxes ``[B * C, stored]``, then 0, and their number ``[B * C]``.

    Both are int32.  The first ``stored`` boxes of a class are stored, the others are only counted.

    A third tensor is memory for the lists of candidates.

    ``tensors`` are boxes ``[B, N, 4]``, scores ``[B, C, N]``, and scalars: the most boxes to select
    of each class (int64); the threshold of the intersection over union; that of scores, which is
    ignored unless ``has_threshold``.  Boxes are two corners, or with ``centered`` the centre,
    width and height.
    """
    flags = {_CENTERED: str(int(centered)), _THRESHOLD: str(int(has_threshold))}

    def write(code: Statements, tensors: Sequence[Buffer]) -> None:
        what = _Boxes(*tensors, centered=centered, has_threshold=has_threshold)
        with code.loop("row", what.rows) as row:
            _ThreadOfClass(code, what, row).write()

    batch, classes, boxes = map(int, tensors[1].shape)
    rows = batch * classes
    outputs = [
        ("kept", (rows, stored), "int32"), ("counts", (rows,), "int32"),
        ("lists", (rows, boxes), "int32"),
    ]  # fmt: skip
    return define_extern(tensors, outputs, {FAMILY: NAME, **flags}, write)


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Classes of all images, boxes in each, and boxes that can be stored."""

    rows: int
    boxes: int
    most: int


@dataclass(frozen=True)
class Knobs:
    """Knob of the work-items that share a class."""

    group_size: int = knob("Work-items that share the boxes of a class, a power of 2.")


CONSTRAINTS = {
    **GROUP_FITS,
    "group_size is a power of 2, and 1 on a CPU.": lambda k, s, d: (
        k.group_size & (k.group_size - 1) == 0 and (k.group_size == 1) == d.is_cpu
    ),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return an item for each box, up to a limit; for GPUs this is an assumption."""
    if device.is_cpu:
        return Knobs(1)
    return Knobs(power_of_2(max(2, min(shape.boxes, 4 * device.group_size, device.max_group_size))))


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return powers of 2."""
    return {"group_size": (1,) if device.is_cpu else (8, 16, 32, 64, 128, 256, 512, 1024)}


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of a function that computes nothing else."""
    what = _of(workload, only_block(workload, NAME))
    return Shape(what.rows, what.boxes, what.most)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the kernel."""
    function, code = workload.function, Statements()
    what = _of(workload, workload.anchor(NAME))
    size = knobs.group_size
    with code.block("root"):
        if workload.is_cpu:
            launches = workload.target.is_gpu_kernel
            with code.parts("nms", what.rows, launches) as row:
                _ThreadOfClass(code, what, row).write()
        else:
            shared = [
                tirx.decl_buffer((size,), dtype, name, scope="shared")
                for dtype, name in (("float32", "best_scores"), ("int32", "best_boxes"))
            ]
            with code.items("nms", what.rows, size, shared) as (row, item):
                scores, boxes = shared
                _GroupOfClass(code, what, row, item, size, scores=scores, boxes=boxes).write()
    return schedule_of(function, code.finish())


@dataclass(frozen=True)
class _Boxes:
    """The function's tensors."""

    coordinates: Buffer
    scores: Buffer
    limit: Buffer
    overlap: Buffer
    threshold: Buffer
    kept: Buffer
    counts: Buffer
    lists: Buffer
    _: KW_ONLY
    centered: bool
    has_threshold: bool

    @property
    def rows(self) -> int:
        return int(self.kept.shape[0])

    @property
    def most(self) -> int:
        return int(self.kept.shape[1])

    @property
    def boxes(self) -> int:
        return int(self.scores.shape[2])

    @property
    def classes(self) -> int:
        return int(self.scores.shape[1])


def _of(workload: Workload, anchor: s_tir.schedule.SBlockRV) -> _Boxes:
    flags = [workload.annotation(anchor, key) == "1" for key in (_CENTERED, _THRESHOLD)]
    return _Boxes(*workload.function.params, centered=flags[0], has_threshold=flags[1])


class _Corners:
    """A box of an image; each value of it is named in the kernel at its first use."""

    def __init__(self, code: Statements, what: _Boxes, image: Expr, box: Expr, name: str):
        self._code, self._name, self._centered = code, name, what.centered
        self._numbers = [what.coordinates[image, box, corner] for corner in range(COORDINATES)]
        self._sides: dict[int, tuple[Expr, Expr]] = {}

    def side(self, axis: int) -> tuple[Expr, Expr]:
        """Return the limits of the box along an axis."""
        if axis not in self._sides:
            a, b = (
                self._code.name_stored(f"{self._name}_{corner}", self._numbers[corner])
                for corner in (axis, axis + COORDINATES // 2)
            )
            if self._centered:
                half = b * tirx.const(0.5, "float32")
                low, high = a - half, a + half
            else:
                # NaN must propagate, which `min` and `max` do not promise; in this form each of
                # the two is one instruction on x86.
                low, high = tirx.Select(b < a, b, a), tirx.Select(b < a, a, b)
            self._sides[axis] = (
                self._code.name_stored(f"{self._name}_l{axis}", low),
                self._code.name_stored(f"{self._name}_h{axis}", high),
            )
        return self._sides[axis]

    @cached_property
    def area(self) -> Expr:
        """Return the product of both sides."""
        lengths = [high - low for low, high in map(self.side, range(2))]
        return self._code.name_stored(f"{self._name}_area", _product(*lengths))


@dataclass
class _Class:
    """Writer of the suppression in a row, which is a class of an image."""

    code: Statements
    what: _Boxes
    row: Expr
    #: The first of this thread's candidates; the others follow at a fixed stride.
    first: Expr = field(default_factory=lambda: number(0))
    step: int = 1

    def __post_init__(self) -> None:
        #: The number of candidates in the list, and of selected boxes.
        self.left = self.code.alloc("left", (1,), "int32")
        self.taken = self.code.alloc("taken", (1,), "int32")

    def _limit(self) -> Expr:
        """Return the largest number of boxes to select."""
        asked = tirx.Min(self.what.limit[()], tirx.const(self.what.boxes, "int64"))
        return self.code.name_stored("most", tirx.Max(asked.astype("int32"), number(0)))

    def _score(self, box: Expr) -> Expr:
        classes = number(self.what.classes)
        image, kind = tirx.truncdiv(self.row, classes), tirx.truncmod(self.row, classes)
        return self.what.scores[image, kind, box]

    def _corners(self, box: Expr, name: str) -> _Corners:
        image = tirx.truncdiv(self.row, number(self.what.classes))
        return _Corners(self.code, self.what, image, box, name)

    def _gather(self) -> None:
        """Write a loop that lists the candidates."""
        code, what = self.code, self.what
        code.store(self.left, number(0), 0)
        turns = -(-what.boxes // self.step)
        with code.loop("turn", turns) as turn:
            box = code.name("box", turn * self.step + self.first)
            with code.when(box < what.boxes):
                score = code.name_stored("score", self._score(box))
                lowest = tirx.const(float("-inf"), "float32")
                # Both comparisons are false for NaN.
                candidate = score > what.threshold[()] if what.has_threshold else score >= lowest
                with code.when(candidate):
                    self._keep(self.left, box, score)

    def _keep(self, kept: Buffer, box: Expr, score: Expr) -> None:
        """Append a candidate to the list."""
        self._place(kept[0], box)
        self.code.store(kept, kept[0] + 1, 0)

    def _place(self, index: Expr, box: Expr) -> None:
        self.code.store(self.what.lists, box, self.row, index * self.step + self.first)

    def _listed(self, index: Expr) -> Expr:
        return self.what.lists[self.row, index * self.step + self.first]

    def _append_selected(self, winner: Expr) -> None:
        """Store a selected box."""
        with self.code.when(self.taken[0] < self.what.most):
            self.code.store(self.what.kept, winner, self.row, self.taken[0])

    def _finish(self, most: int) -> None:
        """Store zeros after the boxes, and their number."""
        code = self.code
        with code.loop("j", tirx.Max(number(most) - self.taken[0], number(0))) as j:
            code.store(self.what.kept, number(0), self.row, self.taken[0] + j)
        code.store(self.what.counts, self.taken[0], self.row)

    def _overlap(self, taken: _Corners, box: _Corners, result: Buffer) -> None:
        """Store 1 if a box overlaps a selected one by more than the threshold.

        Most boxes do not overlap: an axis is compared only if the boxes overlap along the previous
        one, and only then is anything divided.  The conditions are nested instead of negated: TVM
        would turn a negated comparison into the opposite one, which is also false for NaN.
        """
        code, shared = self.code, []
        with ExitStack() as conditions:
            for axis in (1, 0):
                (low_a, high_a), (low_b, high_b) = taken.side(axis), box.side(axis)
                low = code.name_stored(f"low{axis}", tirx.Select(low_a < low_b, low_b, low_a))
                high = code.name_stored(f"high{axis}", tirx.Select(high_b < high_a, high_b, high_a))
                conditions.enter_context(code.when(high > low))
                shared.append(high - low)
            intersection = code.name_stored("intersection", _product(*shared))
            union = code.name_stored("union", taken.area + box.area - intersection)
            areas = [
                each > tirx.const(0, "float32")
                for each in (intersection, taken.area, box.area, union)
            ]
            ratio = tirx.call_intrin("float32", "tirx.tvmflow_quotient", intersection, union)
            with code.when(tirx.all(*areas, ratio > self.what.overlap[()])):
                code.store(result, number(1), 0)


class _ThreadOfClass(_Class):
    """Writer of the suppression by one thread.

    The list is a heap (J. W. J. Williams 1964) whose first candidate is the best one; selected
    boxes, which are no more than those that left it, are stored from its end.
    """

    def write(self) -> None:
        """Write the row's boxes and their number."""
        code, what = self.code, self.what
        most = self._limit()
        self._gather()
        with code.loop("start", tirx.truncdiv(self.left[0], number(2))) as start:
            self._sink(tirx.truncdiv(self.left[0], number(2)) - 1 - start)
        code.store(self.taken, number(0), 0)
        overlap = code.alloc("overlap", (1,), "int32")
        other = code.alloc("other", (1,), "int32")
        with code.repeat(tirx.all(self.left[0] > 0, self.taken[0] < most)):
            candidate = code.name_stored("candidate", self._listed(number(0)))
            code.store(self.left, self.left[0] - 1, 0)
            self._place(number(0), self._listed(self.left[0]))
            self._sink(number(0))
            box = self._corners(candidate, "box")
            _ = box.area
            code.store(overlap, number(0), 0)
            code.store(other, number(0), 0)
            with code.repeat(tirx.all(overlap[0] == 0, other[0] < self.taken[0])):
                index = code.name_stored("taken_box", self._listed(what.boxes - 1 - other[0]))
                self._overlap(self._corners(index, "taken"), box, overlap)
                code.store(other, other[0] + 1, 0)
            with code.when(overlap[0] == 0):
                self._append_selected(candidate)
                self._place(what.boxes - 1 - self.taken[0], candidate)
                code.store(self.taken, self.taken[0] + 1, 0)
        self._finish(what.most)

    def _sink(self, start: Expr) -> None:
        """Swap a candidate with the better of its two children until neither is better."""
        code = self.code
        place = code.alloc("place", (1,), "int32")
        below = code.alloc("below", (1,), "int32")
        code.store(place, start, 0)
        code.store(below, 2 * place[0] + 1, 0)
        with code.repeat(below[0] < self.left[0]):
            with code.when(below[0] + 1 < self.left[0]):
                left, right = self._pair(below[0], below[0] + 1)
                with code.when(self._is_better(right, left)):
                    code.store(below, below[0] + 1, 0)
            above, found = self._pair(place[0], below[0])
            sinks = tirx.Select(self._is_better(found, above), number(1), number(0))
            sinks = code.name_stored("sinks", sinks)
            with code.when(sinks == 1):
                self._place(place[0], found)
                self._place(below[0], above)
                code.store(place, below[0], 0)
            code.store(below, tirx.Select(sinks == 1, 2 * below[0] + 1, self.left[0]), 0)

    def _pair(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        return tuple(self.code.name_stored("listed", self._listed(index)) for index in (a, b))

    def _is_better(self, a: Expr, b: Expr) -> Expr:
        """Return whether a box is to be selected before another one."""
        scores = [self.code.name_stored("score", self._score(box)) for box in (a, b)]
        return tirx.any(scores[0] > scores[1], tirx.all(scores[0] == scores[1], a < b))


@dataclass
class _GroupOfClass(_Class):
    """Writer of the suppression by a work-group, whose items take boxes in turn."""

    _: KW_ONLY
    scores: Buffer
    boxes: Buffer

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The best of the item's candidates, -1 if it has none.
        self.best = self.code.alloc("best", (1,), "int32")
        self.best_score = self.code.alloc("best_score", (1,), "float32")

    def write(self) -> None:
        """Write the row's boxes and their number."""
        code, what = self.code, self.what
        most = self._limit()
        self._forget()
        self._gather()
        self._find_best()
        code.store(self.taken, number(0), 0)
        with code.repeat(tirx.all(self.best[0] >= 0, self.taken[0] < most)):
            winner = code.name_stored("winner", self.best[0])
            with code.when(self.first == 0):
                self._append_selected(winner)
            self._drop(winner)
            code.store(self.taken, self.taken[0] + 1, 0)
            self._find_best()
        with code.when(self.first == 0):
            self._finish(what.most)

    def _find_best(self) -> None:
        """Reduce the best candidate over all items."""
        code, item, distance = self.code, self.first, self.step
        # Items exchange their best candidate with an item at half the previous distance, until all
        # have the same.
        while distance > 1:
            distance //= 2
            code.barrier()
            code.store(self.scores, self.best_score[0], item)
            code.store(self.boxes, self.best[0], item)
            code.barrier()
            other = tirx.bitwise_xor(item, number(distance))
            box = code.name_stored("other_box", self.boxes[other])
            score = code.name_stored("other_score", self.scores[other])
            mine = self.best_score[0]
            better = tirx.any(score > mine, tirx.all(score == mine, box < self.best[0]))
            with code.when(tirx.all(box >= 0, tirx.any(self.best[0] < 0, better))):
                code.store(self.best, box, 0)
                code.store(self.best_score, score, 0)

    def _drop(self, winner: Expr) -> None:
        """Drop the winner, and candidates that overlap it, from the list."""
        code = self.code
        corners = self._corners(winner, "winner")
        _ = corners.area
        kept = code.alloc("kept_here", (1,), "int32")
        overlap = code.alloc("overlap", (1,), "int32")
        code.store(kept, number(0), 0)
        self._forget()
        with code.loop("turn", self.left[0]) as turn:
            box = code.name_stored("box", self._listed(turn))
            code.store(overlap, number(0), 0)
            self._overlap(corners, self._corners(box, "box"), overlap)
            with code.when(tirx.all(box != winner, overlap[0] == 0)):
                self._keep(kept, box, code.name_stored("score", self._score(box)))
        code.store(self.left, kept[0], 0)

    def _forget(self) -> None:
        self.code.store(self.best, number(-1), 0)
        self.code.store(self.best_score, tirx.const(0, "float32"), 0)

    def _keep(self, kept: Buffer, box: Expr, score: Expr) -> None:
        """Append a candidate to the list, and remember it if it is the best one."""
        super()._keep(kept, box, score)
        with self.code.when(tirx.any(self.best[0] < 0, score > self.best_score[0])):
            self.code.store(self.best, box, 0)
            self.code.store(self.best_score, score, 0)


def _product(a: Expr, b: Expr) -> Expr:
    """Return a product that is rounded before anything is added to it."""
    return tirx.call_intrin("float32", "tirx.tvmflow_product", a, b)
