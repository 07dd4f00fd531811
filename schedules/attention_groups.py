"""Attention on GPUs, in work-groups that keep blocks of scores in local memory.

:mod:`.attention` defines the computation; the operands are in rows.  A work-group takes ``along *
rows`` queries of a batch entry, and one block of keys at a time (T. Dao et al., "FlashAttention",
2022)::

    item      col = item % across, its rows = item // across * rows + (0 .. rows - 1)
    scores    [rows, keys]    vectors col, col + across .. of the block's, in registers
    weights   [queries, block]    their exponentials, in local memory
    results   [rows, E' / across]    vectors col, col + across .., in registers

In both products an item multiplies its rows with its vectors, so that each load serves many
multiply-adds; neighbours read neighbouring vectors of K and V, and the same ones of Q and of the
weights.  In each block the items of a row exchange their largest scores, scale their results down
if that is larger than any before (M. Milakov and N. Gimelshein, "Online normalizer calculation for
softmax", 2018), and share the weights: two barriers.  Each item sums the weights of its own keys;
these sums are added at the end.

Rows after the last query repeat it, and vectors after the last key or column repeat that one,
which costs less than tests; the scores of such keys are masked, and such results not written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from tvm import s_tir, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from .attention import (
    DTYPE,
    Attention,
    Shape,
    Tensors,
    attention_of,
    constant,
    finite,
    larger,
    shape_of,
)
from .boxes.builder import Statements, number, schedule_of, unravel
from .common import Workload
from .family import Declined, Value, knob, violated
from .sizes import LOCAL_BYTES, tile_choices
from .work_groups import GROUPS, MOST_ITEMS

NAME = "attention_groups"
ORDER = 441

#: Numbers in a vector.
LANES = 4
#: Depth of the deepest heads that are fused.  With 128, an Adreno 660 needs as many issue slots as
#: for products and a softmax, and nearly twice the reads.
MOST_COLUMNS = 64


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    """Knobs of an item's tiles, and the items of a work-group."""

    rows: int = knob("Queries whose scores and results an item keeps in registers.")
    keys: int = knob("Vectors of a block's scores that an item keeps for each query.")
    across: int = knob("Work-items that share these queries.")
    along: int = knob("Work-items of a work-group with different queries.")

    @property
    def items(self) -> int:
        """Return the work-items of a work-group."""
        return self.across * self.along

    @property
    def queries(self) -> int:
        """Return the queries of a work-group."""
        return self.rows * self.along

    @property
    def block(self) -> int:
        """Return the number of keys in a block."""
        return LANES * self.keys * self.across

    def columns(self, shape: Shape) -> int:
        """Return the vectors of results that an item keeps for each query."""
        return ceil(ceil(shape.columns / LANES) / self.across)

    @property
    def local_bytes(self) -> int:
        """Return the local memory of a work-group: weights, and the values that items exchange."""
        numbers = self.queries * (self.block + LANES + _whole(self.across))
        return numbers * np.dtype(DTYPE).itemsize


CONSTRAINTS = {
    "rows * (keys and vectors of results) must fit the device's registers.": lambda k, s, d: (
        k.rows * (k.keys + k.columns(s)) <= d.accumulators
    ),
    "across * along is at most what the device accepts.": lambda k, s, d: (
        k.items <= d.max_group_size
    ),
    "The weights of a block must fit local memory of 32 KiB.": lambda k, s, d: (
        k.local_bytes <= LOCAL_BYTES
    ),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the cheapest group by :func:`_cost` of at most the usual size.

    An item has one vector of scores at a time: with two, fewer waves fit a core.
    """
    most = device.group_size
    columns = ceil(shape.columns / LANES)
    found = [
        knobs
        for rows in (1, 2, 4)
        for each in tile_choices(columns, max(1, device.accumulators // rows - 1))
        for across in [ceil(columns / each)]
        for along in _powers(max(1, most // across))
        if violated(CONSTRAINTS, knobs := Knobs(rows, 1, across, along), shape, device) is None
    ]
    return min(found, key=lambda knobs: _cost(knobs, shape, device), default=Knobs(1, 1, 1, 1))


def _cost(knobs: Knobs, shape: Shape, device: Device) -> float:
    """Return the issue slots of all lanes, in vectors.

    The costs of a block besides its products are read off machine code for Adreno.
    """
    columns, blocks = knobs.columns(shape), ceil(shape.keys / knobs.block)
    scores, results = blocks * shape.depth, shape.keys
    products = knobs.rows * (scores * knobs.keys + results * columns)
    reads = scores * (knobs.keys + knobs.rows / LANES) + results * (columns + knobs.rows / LANES)
    rest = blocks * (100 + knobs.rows * (25 * knobs.keys + 2 * knobs.across + columns))
    lanes = ceil(knobs.items / device.wave) * device.wave
    # A group reads its operands once from memory, or from the cache that all groups share.
    shared = 4 * shape.keys * (shape.depth + shape.columns)
    groups = _groups(knobs, shape)
    idle = max(1.0, enough_groups(device) / groups)
    return idle * groups * (lanes * (products + 2 * reads + rest) + shared)


def _groups(knobs: Knobs, shape: Shape) -> int:
    return shape.batch * ceil(shape.queries / knobs.queries)


def _powers(most: int) -> tuple[int, ...]:
    """Return the powers of 2 below a number, and the number."""
    return (*(1 << n for n in range(most.bit_length()) if 1 << n < most), most)


def enough_groups(device: Device) -> int:
    """Return the number of groups, of a wave each, below which much of a GPU is idle.

    NVIDIA's multiprocessors have four schedulers, each of which needs two waves.
    """
    processors = device.multiprocessors
    return GROUPS if processors is None else 8 * processors.count


def is_faster(attention: Attention, device: Device, *, half: bool) -> bool:
    """Return whether one kernel takes less time than products and a softmax.

    It needs 0.2 to 0.95 of their issue slots (once 1.1, Intel), and moves fewer bytes
    (``docs/notes.md``: Adreno, Mali, Intel), if heads are not deep, tiles fit registers and local
    memory, and there is a wave for three quarters of the groups that keep the device busy: two for
    each of six cores, as an Adreno 740 and a Mali G610 have.  Products of halves run on tensor
    cores, if the device has them, which this kernel does not use.
    """
    processors = device.multiprocessors
    if half and processors is not None and processors.tensor_cores:
        return False
    shape = shape_of(attention)
    knobs = heuristic(shape, device)
    fits = violated(CONSTRAINTS, knobs, shape, device) is None
    is_deep = max(shape.depth, shape.columns) > MOST_COLUMNS
    items = _groups(knobs, shape) * knobs.items
    return fits and not is_deep and 4 * items >= 3 * enough_groups(device) * device.wave


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of both products, and groups of any form."""
    columns = ceil(shape.columns / LANES)
    most = min(MOST_ITEMS, device.max_group_size)
    return {
        "rows": tuple(rows for rows in (1, 2, 4, 6, 8) if rows <= device.accumulators // 2),
        "keys": (1, 2, 3, 4),
        "across": tuple(sorted({min(most, ceil(columns / n)) for n in range(1, 9)})),
        "along": _powers(most),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of an attention, which is a function by itself."""
    attention, _ = attention_of(workload)
    if attention.panels:
        raise Declined("its operands are in a CPU's form")
    if not workload.target.is_gpu_kernel or attention.lanes != LANES:
        raise Declined(f"it has work-groups of GPUs, and vectors of {LANES}")
    return shape_of(attention)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the kernel."""
    attention, tensors = attention_of(workload)
    code = Statements()
    extents = [*attention.batch, ceil(attention.queries / knobs.queries)]
    weights = _shared("weights", knobs.queries, knobs.block + LANES)
    exchanged = _shared("exchanged", knobs.queries, _whole(knobs.across))
    with (
        code.block("root"),
        code.items(NAME, prod(extents), knobs.items, [weights, exchanged]) as (group, item),
    ):
        places = unravel(group, [number(extent) for extent in extents])
        *batch, tile = (code.name("place", place) for place in places)
        kernel = _Item(code, Tensors(attention, tensors, batch), knobs, weights, exchanged, item)
        kernel.write(tile * knobs.queries)
    return schedule_of(workload.function, code.finish())


def _shared(name: str, rows: int, columns: int) -> Buffer:
    return tirx.decl_buffer((rows, columns), DTYPE, name, scope="shared")


def _whole(length: int) -> int:
    """Round a length up to whole vectors."""
    return ceil(length / LANES) * LANES


class _Item:
    """Writer of a work-item's statements."""

    def __init__(
        self,
        code: Statements,
        tensors: Tensors,
        knobs: Knobs,
        weights: Buffer,
        exchanged: Buffer,
        item: Expr,
    ):
        self.code, self.tensors, self.knobs = code, tensors, knobs
        self.attention: Attention = tensors.attention
        self.weights, self.exchanged = weights, exchanged
        self.col = code.name("col", tirx.truncmod(item, number(knobs.across)))
        along = tirx.truncdiv(item, number(knobs.across))
        self.row = code.name("row", along * knobs.rows)
        self.rows = range(knobs.rows)
        self.columns = range(knobs.columns(shape_of(self.attention)))
        alloc = code.alloc
        self.scores = alloc("scores", (knobs.rows, knobs.keys, LANES), DTYPE)
        self.results = alloc("results", (knobs.rows, len(self.columns), LANES), DTYPE)
        self.peaks, self.sums, self.factors, self.joined = (
            alloc(name, (knobs.rows,), DTYPE) for name in ("peaks", "sums", "factors", "joined")
        )
        # Operands of the multiplications: vectors of rows, and of keys or values.
        self.left = alloc("left", (knobs.rows, LANES), DTYPE)
        widest = max(knobs.keys, len(self.columns))
        self.right = alloc("right", (widest, LANES), DTYPE)

    def write(self, first: Expr) -> None:
        """Write the whole computation, for the group's queries starting at ``first``."""
        code, keys, block = self.code, self.attention.keys, self.knobs.block
        last = self.attention.queries - 1
        self.places = [code.name("place", first + self.row + row) for row in self.rows]
        whole = self.attention.queries % self.knobs.queries == 0
        self.queries = [
            place if whole else code.name("query", tirx.min(place, last)) for place in self.places
        ]
        for row in self.rows:
            code.store(self.peaks, constant(-np.inf), row)
            code.store(self.sums, constant(0), row)
            for column in self.columns:
                self._clear(self.results, row, column)
        with code.loop("block", ceil(keys / block)) as index:
            self._score(index)
            self._exponentiate()
            self._weigh(index)
        self._divide()
        for row in self.rows:
            with nullcontext() if whole else code.when(self.places[row] <= last):
                self._write_results(row)

    # -- steps ----------------------------------------------------------------------------

    def _score(self, block: Expr) -> None:
        """Compute scores of a block; minus infinity after the last key."""
        code, attention, knobs = self.code, self.attention, self.knobs
        vectors = ceil(attention.keys / LANES)
        own = [
            code.name("own", (block * knobs.keys + v) * knobs.across + self.col)
            for v in range(knobs.keys)
        ]
        uneven = vectors % (knobs.keys * knobs.across) != 0
        read = [code.name("read", tirx.min(v, vectors - 1)) if uneven else v for v in own]
        for row in self.rows:
            for vector in range(knobs.keys):
                self._clear(self.scores, row, vector)

        def multiply(d: Expr, count: int) -> None:
            for row in self.rows:
                with self._lanes() as lane:
                    value = self.tensors.queries(self.queries[row], d, lane)
                    code.store(self.left, value, row, lane)
            for step in range(count):
                for vector, place in enumerate(read):
                    with self._lanes() as lane:
                        value = self.tensors.key(d * LANES + step, place, lane)
                        code.store(self.right, value, vector, lane)
                self._add_products(self.scores, knobs.keys, step)

        whole, rest = divmod(attention.depth, LANES)
        if whole:
            with code.loop("d", whole) as d:
                multiply(d, LANES)
        if rest:
            multiply(number(whole), rest)
        for row in self.rows:
            for vector in range(knobs.keys):
                with self._lanes() as lane:
                    score = self.tensors.score(
                        self.scores[row, vector, lane],
                        self.queries[row],
                        read[vector] * LANES + lane,
                    )
                    if attention.keys % knobs.block:
                        there = own[vector] * LANES + lane < attention.keys
                        score = tirx.Select(there, score, constant(-np.inf))
                    code.store(self.scores, score, row, vector, lane)

    def _exponentiate(self) -> None:
        """Turn a block's scores into weights, and scale down the results so far."""
        code, knobs = self.code, self.knobs
        for row in self.rows:
            self._join_lanes(row, larger)
        self._reduce_across(larger)
        for row in self.rows:
            code.store(self.joined, larger(self.joined[row], self.peaks[row]), row)
            peak = code.name_stored("finite", finite(self.joined[row]))
            code.store(self.factors, tirx.exp(self.peaks[row] - peak), row)
            code.store(self.peaks, self.joined[row], row)
            for vector in range(knobs.keys):
                with self._lanes() as lane:
                    weight = tirx.exp(self.scores[row, vector, lane] - peak)
                    code.store(self.scores, weight, row, vector, lane)
                with self._lanes() as lane:
                    place = (self.col + vector * knobs.across) * LANES + lane
                    weight = self.scores[row, vector, lane]
                    code.store(self.weights, weight, self.row + row, place)
            for column in self.columns:
                with self._lanes() as lane:
                    value = self.results[row, column, lane] * self.factors[row]
                    code.store(self.results, value, row, column, lane)
            self._join_lanes(row, operator.add)
            code.store(self.sums, self.sums[row] * self.factors[row] + self.joined[row], row)
        code.barrier()

    def _weigh(self, block: Expr) -> None:
        """Add the values of a block's keys, by their weights, to the results."""
        code, attention, knobs = self.code, self.attention, self.knobs
        vectors = ceil(attention.columns / LANES)
        own = [self.col + c * knobs.across for c in self.columns]
        if vectors % knobs.across:
            own = [code.name("column", tirx.min(place, vectors - 1)) for place in own]

        def multiply(place: Expr, first: Expr, count: int) -> None:
            for row in self.rows:
                with self._lanes() as lane:
                    value = self.weights[self.row + row, place * LANES + lane]
                    code.store(self.left, value, row, lane)
            for step in range(count):
                for column, vector in enumerate(own):
                    with self._lanes() as lane:
                        value = self.tensors.value(first + step, vector, lane)
                        code.store(self.right, value, column, lane)
                self._add_products(self.results, len(self.columns), step)

        first = block * knobs.block
        blocks, rest = divmod(attention.keys, knobs.block)
        count: Expr | int = knobs.block // LANES
        if rest:
            last = rest // LANES
            count = last if not blocks else tirx.Select(block < blocks, number(count), number(last))
        with code.loop("k", count) as k:
            multiply(k, first + k * LANES, LANES)
        if left := rest % LANES:
            with code.when(block == blocks) if blocks else nullcontext():
                multiply(number(last), first + last * LANES, left)

    def _divide(self) -> None:
        """Divide results by the sums of their queries' weights."""
        code = self.code
        for row in self.rows:
            code.store(self.joined, self.sums[row], row)
        self._reduce_across(operator.add)
        for row in self.rows:
            for column in self.columns:
                with self._lanes() as lane:
                    value = self.results[row, column, lane] / self.joined[row]
                    code.store(self.results, value, row, column, lane)

    def _write_results(self, row: int) -> None:
        """Write an item's results of a query, number by number if rows are not aligned."""
        code, columns, y = self.code, self.attention.columns, self.tensors.y
        place, whole = (*self.tensors.batch, self.places[row]), columns % LANES == 0
        for column in self.columns:
            begin = (self.col + column * self.knobs.across) * LANES
            covered = (column + 1) * self.knobs.across * LANES <= columns
            if whole:
                there = nullcontext() if covered else code.when(begin < columns)
                with there, self._lanes() as lane:
                    code.store(y, self._result(row, column, lane), *place, begin + lane)
                continue
            for lane in range(LANES):
                with nullcontext() if covered else code.when(begin + lane < columns):
                    code.store(y, self._result(row, column, lane), *place, begin + lane)

    def _result(self, row: int, column: int, lane: Expr | int) -> Expr:
        return self.results[row, column, lane].astype(self.tensors.y.dtype)

    # -- parts of steps -------------------------------------------------------------------

    def _join_lanes(self, row: int, joined: Callable[[Expr, Expr], Expr]) -> None:
        """Reduce the item's scores of a row into ``joined``.

        They go through ``left``: an array that is read number by number is not kept in registers.
        """
        code = self.code
        for vector in range(self.knobs.keys):
            with self._lanes() as lane:
                value = self.scores[row, vector, lane]
                value = joined(value, self.left[row, lane]) if vector else value
                code.store(self.left, value, row, lane)
        pairs = (joined(self.left[row, lane], self.left[row, lane + 2]) for lane in (0, 1))
        for lane, value in enumerate(pairs):
            code.store(self.left, value, row, lane)
        code.store(self.joined, joined(self.left[row, 0], self.left[row, 1]), row)

    def _reduce_across(self, joined: Callable[[Expr, Expr], Expr]) -> None:
        """Reduce ``joined`` across all items of a row, through local memory."""
        code, across = self.code, self.knobs.across
        for row in self.rows:
            code.store(self.exchanged, self.joined[row], self.row + row, self.col)
        code.barrier()
        for row in self.rows:
            code.store(self.joined, self.exchanged[self.row + row, 0], row)
        if across > 1:
            with code.loop("other", across - 1) as other:
                for row in self.rows:
                    value = joined(self.exchanged[self.row + row, other + 1], self.joined[row])
                    code.store(self.joined, value, row)

    def _add_products(self, sums: Buffer, vectors: int, step: int) -> None:
        """Add one lane of each row's ``left`` times the vectors in ``right``."""
        for vector in range(vectors):
            for row in self.rows:
                with self._lanes() as lane:
                    product = self.left[row, step] * self.right[vector, lane]
                    self.code.store(sums, sums[row, vector, lane] + product, row, vector, lane)

    def _clear(self, memory: Buffer, *place: int) -> None:
        with self._lanes() as lane:
            self.code.store(memory, constant(0), *place, lane)

    def _lanes(self) -> AbstractContextManager[Expr]:
        """Open a loop over the lanes of a vector."""
        return self.code.lane_loop(LANES)
