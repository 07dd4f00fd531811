"""Non-maximum suppression: of boxes that overlap, those with the best scores.

What it computes, for each image ``b < B`` and class ``c < C``, of boxes whose score is above a
threshold, until there are enough, or none is left::

    take the box with the best score, of equal ones the first
    drop it, and all whose intersection over union with it is above another threshold

Scores that are NaN are no candidates.  Boxes may have their corners in any order; where the area of
one, of both together, or of what they share is not above zero, they do not overlap.  All is rounded
as in ONNX Runtime (`non_max_suppression_helper.h` there), which the choice of boxes depends on.

A thread of a CPU, or a work-group, has a class of an image.  Work-items keep lists of their own
candidates, which get shorter as these are dropped, and find the best of all in local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from .boxes.builder import COORDINATES, Statements, number, schedule_of, stated
from .common import FAMILY, Workload
from .family import GROUP_FITS, Declined, Value, knob
from .sizes import power_of_2

NAME = "nms"
ORDER = 504

#: Annotations of its block.
_CENTERED, _THRESHOLD = "tvmflow.centered", "tvmflow.has_threshold"


# -- what it computes ---------------------------------------------------------------------


def compute(
    tensors: Sequence[te.Tensor], stored: int, *, centered: bool, has_threshold: bool
) -> list[te.Tensor]:
    """State boxes ``[B * C, stored]``, 0 behind the last, and how many are taken, ``[B * C]``.

    Both are int32.  Of a class the first ``stored`` boxes are kept, the others are only counted.

    A third tensor is memory for the lists of candidates.

    ``tensors`` are boxes ``[B, N, 4]``, scores ``[B, C, N]``, and scalars: how many boxes to take,
    at most, of each class (int64); the threshold of the intersection over union; that of scores,
    which is ignored unless ``has_threshold``.  Boxes are two corners, or with ``centered`` the
    middle, width and height.
    """
    flags = {_CENTERED: str(int(centered)), _THRESHOLD: str(int(has_threshold))}

    def write(code: Statements, tensors: Sequence[Buffer]) -> None:
        what = _Boxes(*tensors, centered=centered, has_threshold=has_threshold)
        with code.loop("row", what.rows) as row:
            _Class(code, what, row).write()

    batch, classes, boxes = map(int, tensors[1].shape)
    rows = batch * classes
    outputs = [
        ("kept", (rows, stored), "int32"), ("counts", (rows,), "int32"),
        ("lists", (rows, boxes), "int32"),
    ]  # fmt: skip
    return stated(tensors, outputs, {FAMILY: NAME, **flags}, write)


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Classes of all images, boxes of each, and room for those that are taken."""

    rows: int
    boxes: int
    most: int


@dataclass(frozen=True)
class Knobs:
    """Who looks at what."""

    group_size: int = knob("Work-items that share the boxes of a class, a power of 2.")


CONSTRAINTS = {
    **GROUP_FITS,
    "group_size is a power of 2, and 1 on a CPU.": lambda k, s, d: (
        k.group_size & (k.group_size - 1) == 0 and (k.group_size == 1) == d.is_cpu
    ),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Items for all boxes, as many as there may be; what GPUs are given is an assumption."""
    if device.is_cpu:
        return Knobs(1)
    return Knobs(power_of_2(max(2, min(shape.boxes, 4 * device.group_size, device.max_group_size))))


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Items in powers of 2."""
    return {"group_size": (1,) if device.is_cpu else (8, 16, 32, 64, 128, 256, 512, 1024)}


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """The shape of a function that is nothing else."""
    anchor = workload.anchor(NAME)
    if len(workload.blocks) != 1:
        raise Declined("something else is computed with it")
    what = _of(workload, anchor)
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
                _Class(code, what, row).write()
        else:
            shared = [
                tirx.decl_buffer((size,), dtype, name, scope="shared")
                for dtype, name in (("float32", "best_scores"), ("int32", "best_boxes"))
            ]
            with code.items("nms", what.rows, size, shared) as (row, item):
                _GroupOfClass(code, what, row, item, size, *shared).write()
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


@dataclass
class _Class:
    """Suppression in a row, which is a class of an image, by one thread.

    The list holds candidates in the order of boxes, so that the first of equal ones comes first.
    """

    code: Statements
    what: _Boxes
    row: Expr

    def __post_init__(self) -> None:
        #: Which candidates are this thread's: from one on every so manieth.
        self.first, self.step = number(0), 1
        code = self.code
        self.left = code.alloc("left", (1,), "int32")
        self.taken = code.alloc("taken", (1,), "int32")
        #: The best of its candidates, -1 without any.
        self.best = code.alloc("best", (1,), "int32")
        self.best_score = code.alloc("best_score", (1,), "float32")

    def write(self) -> None:
        """Write the row's boxes and their number."""
        code, what = self.code, self.what
        most = self._limit()
        self._gather()
        self._agree()
        code.store(self.taken, number(0), 0)
        with code.repeat(tirx.all(self.best[0] >= 0, self.taken[0] < most)):
            winner = code.name_stored("winner", self.best[0])
            self._leave(winner)
            self._drop(winner)
            code.store(self.taken, self.taken[0] + 1, 0)
            self._agree()
        self._finish(what.most)

    # -- what work-items do together ------------------------------------------------------

    def _agree(self) -> None:
        """Make the best candidate of all everybody's."""

    def _leave(self, winner: Expr) -> None:
        """Store a box that is taken."""
        with self.code.when(self.taken[0] < self.what.most):
            self.code.store(self.what.kept, winner, self.row, self.taken[0])

    def _finish(self, most: int) -> None:
        """Store zeros behind the boxes, and their number."""
        code = self.code
        with code.loop("j", tirx.Max(number(most) - self.taken[0], number(0))) as j:
            code.store(self.what.kept, number(0), self.row, self.taken[0] + j)
        code.store(self.what.counts, self.taken[0], self.row)

    # -- what each does by itself ---------------------------------------------------------

    def _limit(self) -> Expr:
        """How many boxes are taken at most."""
        asked = tirx.Min(self.what.limit[()], tirx.const(self.what.boxes, "int64"))
        return self.code.name_stored("most", tirx.Max(asked.astype("int32"), number(0)))

    def _score(self, box: Expr) -> Expr:
        classes = number(self.what.classes)
        image, kind = tirx.truncdiv(self.row, classes), tirx.truncmod(self.row, classes)
        return self.what.scores[image, kind, box]

    def _gather(self) -> None:
        """List the candidates."""
        code, what = self.code, self.what
        code.store(self.left, number(0), 0)
        self._forget()
        turns = -(-what.boxes // self.step)
        with code.loop("turn", turns) as turn:
            box = code.name("box", turn * self.step + self.first)
            with code.when(box < what.boxes):
                score = code.name_stored("score", self._score(box))
                lowest = tirx.const(float("-inf"), "float32")
                # Neither is true of NaN.
                candidate = score > what.threshold[()] if what.has_threshold else score >= lowest
                with code.when(candidate):
                    self._keep(self.left, box, score)

    def _drop(self, winner: Expr) -> None:
        """Drop the winner and what overlaps it from the list."""
        code, what = self.code, self.what
        winners = self._corners(winner, "winner")
        kept = code.alloc("kept_here", (1,), "int32")
        code.store(kept, number(0), 0)
        self._forget()
        with code.loop("turn", self.left[0]) as turn:
            box = code.name_stored("box", what.lists[self.row, turn * self.step + self.first])
            overlap = _overlap(code, winners, self._corners(box, "box"), what.overlap[()])
            with code.when(tirx.all(box != winner, overlap == 0)):
                self._keep(kept, box, code.name_stored("score", self._score(box)))
        code.store(self.left, kept[0], 0)

    def _forget(self) -> None:
        self.code.store(self.best, number(-1), 0)
        self.code.store(self.best_score, tirx.const(0, "float32"), 0)

    def _keep(self, kept: Buffer, box: Expr, score: Expr) -> None:
        """Append a candidate to the list, and remember it if it is the best one."""
        code = self.code
        code.store(self.what.lists, box, self.row, kept[0] * self.step + self.first)
        code.store(kept, kept[0] + 1, 0)
        with code.when(tirx.any(self.best[0] < 0, score > self.best_score[0])):
            code.store(self.best, box, 0)
            code.store(self.best_score, score, 0)

    def _corners(self, box: Expr, name: str) -> list[Expr]:
        """The limits of a box along both axes, and its area."""
        code, what = self.code, self.what
        image = tirx.truncdiv(self.row, number(what.classes))
        numbers = [
            code.name_stored(f"{name}_{corner}", what.coordinates[image, box, corner])
            for corner in range(COORDINATES)
        ]
        limits: list[Expr] = []
        for axis in range(2):
            a, b = numbers[axis], numbers[axis + 2]
            if what.centered:
                half = b * tirx.const(0.5, "float32")
                pair = a - half, a + half
            else:
                # What is NaN stays so, which `min` and `max` do not promise.
                pair = tirx.Select(a >= b, b, a), tirx.Select(a >= b, a, b)
            limits += [
                code.name_stored(f"{name}_{side}{axis}", v)
                for side, v in zip("lh", pair, strict=True)
            ]
        low0, high0, low1, high1 = limits
        area = code.name_stored(f"{name}_area", _product(high0 - low0, high1 - low1))
        return [*limits, area]


@dataclass
class _GroupOfClass(_Class):
    """The same by a work-group; an item has every so manieth box."""

    item: Expr
    items: int
    scores: Buffer
    boxes: Buffer

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first, self.step = self.item, self.items

    def _agree(self) -> None:
        code, item, distance = self.code, self.item, self.items
        # Items exchange what they have with one at half the distance of the last, until all have
        # the same.
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

    def _leave(self, winner: Expr) -> None:
        with self.code.when(self.item == 0):
            super()._leave(winner)

    def _finish(self, most: int) -> None:
        with self.code.when(self.item == 0):
            super()._finish(most)


def _overlap(code: Statements, a: Sequence[Expr], b: Sequence[Expr], threshold: Expr) -> Expr:
    """1 if two boxes overlap by more than a threshold, else 0; each is as `_corners` gives it.

    TVM would turn the opposite of a comparison into another one, which NaN fails as well.
    """
    sides, shared = [], []
    for axis in (1, 0):
        low_a, high_a, low_b, high_b = a[2 * axis], a[2 * axis + 1], b[2 * axis], b[2 * axis + 1]
        low = code.name_stored(f"low{axis}", tirx.Select(low_a < low_b, low_b, low_a))
        high = code.name_stored(f"high{axis}", tirx.Select(high_b < high_a, high_b, high_a))
        shared.append(high > low)
        sides.append(high - low)
    intersection = code.name_stored("intersection", _product(*sides))
    union = code.name_stored("union", a[4] + b[4] - intersection)
    areas = [area > tirx.const(0, "float32") for area in (intersection, a[4], b[4], union)]
    ratio = tirx.call_intrin("float32", "tirx.tvmflow_quotient", intersection, union)
    overlap = tirx.Select(tirx.all(*shared, *areas, ratio > threshold), number(1), number(0))
    return code.name_stored("overlap", overlap)


def _product(a: Expr, b: Expr) -> Expr:
    """A product that is rounded before anything is added to it."""
    return tirx.call_intrin("float32", "tirx.tvmflow_product", a, b)
