"""Attention without a matrix of scores in memory: softmax(Q · Kᵀ · scale + masks) · V.

For any batch ``..``, S queries, T keys of D numbers, and values of E numbers::

    q[.., S, D]   k[.., D, T]   v[.., T, E]   mask[.., S or 1, T or 1], any number of them

    s[i, t] = scale * Σ over d of q[i, d] * k[d, t]  +  Σ of all mask[i, t]
    y[i, e] = Σ over t of exp(s[i, t] - peak[i]) * v[t, e]  /  Σ over t of exp(s[i, t] - peak[i])

with the batch of an operand broadcast as NumPy does, and ``peak[i]`` the largest ``s[i, t]``.  Keys
have their numbers along the rows, as a matrix product wants them.  A query that all masks exclude
(only minus infinity) has NaN for its result, as softmax has.

A part of the work, a CPU's thread or work-group, takes some queries of one batch entry.  It keeps
their scores in private memory, and both products in registers: vectors run along keys in the first,
along columns of V in the second.  Where keys are too many for that, it takes them block by block,
and keeps each query's peak, its sum and its results so far: a block with a larger peak scales these
down (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao et
al., "FlashAttention", 2022).

The last vector of a row, and the last block of keys, end where the row does, over numbers that the
one before has, too; the last queries of a tile may be the last one again.  So all vectors are
whole, nothing is padded, and no loop has tests.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from itertools import product as product_of
from math import ceil, prod

import numpy as np
from tvm import s_tir, tirx
from tvm.tirx import Buffer, Expr, ForKind

from ..devices.target import Device
from ..ir.expressions import OPAQUE
from .boxes.builder import Statements, number, schedule_of, unravel
from .common import FAMILY, Workload
from .definitions import batch_index
from .dense import ROW_TILE
from .family import Declined, Value, knob
from .sizes import LANES, power_of_2, tile_choices

NAME = "attention"
ORDER = 440

#: Annotation with the factor of all products.
_SCALE = "tvmflow.scale"
#: What scores and sums are computed in.
_DTYPE = "float32"
#: Private memory for the scores of a part, in bytes.
SCORES_BYTES = 32 << 10


# -- what it computes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Shapes of the operands, in fp32."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    #: Each of two axes or more.
    masks: tuple[tuple[int, ...], ...]
    scale: float

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes of the result."""
        return np.broadcast_shapes(self.q[:-2], self.k[:-2], self.v[:-2])

    @property
    def queries(self) -> int:
        """Rows of Q."""
        return self.q[-2]

    @property
    def depth(self) -> int:
        """Numbers of a query and of a key."""
        return self.q[-1]

    @property
    def keys(self) -> int:
        """Columns of K, rows of V."""
        return self.k[-1]

    @property
    def columns(self) -> int:
        """Columns of V."""
        return self.v[-1]

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.batch, self.queries, self.columns)


def define(attention: Attention) -> tirx.PrimFunc:
    """State attention by loops over batch and queries, each of which keeps its scores.

    Parameters are ``q``, ``k``, ``v``, the masks and the result.
    """
    operands = (attention.q, attention.k, attention.v, *attention.masks, attention.result)
    masks = [f"mask{index}" for index, _ in enumerate(attention.masks)]
    pairs = zip(operands, ("q", "k", "v", *masks, "y"), strict=True)
    tensors = [tirx.decl_buffer(shape, _DTYPE, name) for shape, name in pairs]
    code = Statements()
    annotations = {FAMILY: NAME, _SCALE: repr(attention.scale)}
    extents = (*attention.batch, attention.queries)
    plain = Knobs(rows=1, keys=attention.keys, vectors=1, lanes=1)
    with (
        code.block("root"),
        code.block(NAME, annotations=annotations),
        code.loops([number(extent) for extent in extents]) as (*batch, query),
    ):
        _Tile(code, attention, tensors, plain, batch, query).write()
    function = tirx.PrimFunc(tensors, code.finish())
    return function.with_attrs({"op_pattern": OPAQUE, "tirx.noalias": True})


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Extents."""

    batch: int
    queries: int
    keys: int
    depth: int
    columns: int
    _: KW_ONLY
    masks: int


@dataclass(frozen=True)
class Knobs:
    """Tiles of both products."""

    rows: int = knob("Queries that a part of the work takes.")
    keys: int = knob("Keys of a block, whose scores are in private memory.")
    vectors: int = knob("Vectors of scores, or of columns, for each query in registers.")
    lanes: int = knob("Numbers of a vector; fewer where there are fewer keys, or columns.")


CONSTRAINTS = {
    "rows is at most the queries, and keys the keys.": lambda k, s, d: (
        k.rows <= s.queries and k.keys <= s.keys
    ),
    "rows * vectors vectors must fit the device's registers.": lambda k, s, d: (
        k.rows * k.vectors <= d.accumulators
    ),
    "lanes is the width of a vector.": lambda k, s, d: k.lanes in LANES,
    f"The scores of rows * keys must fit private memory of {SCORES_BYTES >> 10} KiB.": (
        lambda k, s, d: _scores_bytes(k.rows, k.keys) <= SCORES_BYTES or k.keys == 1
    ),
}


def _scores_bytes(rows: int, keys: int) -> int:
    widest = max(LANES)
    return rows * ceil(keys / widest) * widest * np.dtype(_DTYPE).itemsize


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Six rows of four vectors as products of matrices have, fewer where rows would be empty."""

    def work(rows: int) -> float:
        # A product with one of four vectors takes 1/4 + 1/rows reads.
        return ceil(shape.queries / rows) * rows * (1.25 + 1 / rows)

    rows = min(range(1, min(shape.queries, ROW_TILE) + 1), key=lambda rows: (work(rows), -rows))
    widest = max(LANES)
    most = SCORES_BYTES // (rows * np.dtype(_DTYPE).itemsize) // widest * widest
    blocks = ceil(shape.keys / most)
    keys = shape.keys if blocks == 1 else ceil(shape.keys / blocks / widest) * widest
    vectors = min(8, device.accumulators // rows) if rows < 4 else 4
    return Knobs(rows, keys, vectors, device.channel_block)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of registers, and all keys or blocks of them."""
    return {
        "rows": tile_choices(shape.queries, 12),
        "keys": tuple({min(shape.keys, block): None for block in (64, 128, 256, 512, shape.keys)}),
        "vectors": (1, 2, 3, 4, 6, 8),
        "lanes": (4, 8, 16),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """The shape of an attention, which is a function of its own."""
    attention, _ = _attention_of(workload)
    if not workload.is_cpu:
        raise Declined("it has loops for CPUs only")
    return Shape(
        prod(attention.batch), attention.queries, attention.keys, attention.depth,
        attention.columns, masks=len(attention.masks),
    )  # fmt: skip


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the loops: a part takes a tile of queries of a batch entry."""
    attention, tensors = _attention_of(workload)
    code = Statements()
    extents = [*attention.batch, ceil(attention.queries / knobs.rows)]
    with (
        code.block("root"),
        code.parts(NAME, prod(extents), workload.target.is_gpu_kernel) as part,
    ):
        places = unravel(part, [number(extent) for extent in extents])
        *batch, tile = (code.name("place", place) for place in places)
        _Tile(code, attention, tensors, knobs, batch, tile * knobs.rows).write()
    return schedule_of(workload.function, code.finish())


def _attention_of(workload: Workload) -> tuple[Attention, list[Buffer]]:
    """What a function computes, and its parameters."""
    anchor = workload.anchor(NAME)
    if len(workload.blocks) > 1:
        raise Declined("something is computed beside it")
    tensors = list(workload.function.params)
    q, k, v, *masks, _ = (tuple(map(int, tensor.shape)) for tensor in tensors)
    scale = float(workload.annotation(anchor, _SCALE) or 1)
    return Attention(q, k, v, tuple(masks), scale), tensors


@dataclass(frozen=True)
class _Vectors:
    """A row in vectors, of which the last ends with it, over numbers that the one before has."""

    length: int
    lanes: int

    @classmethod
    def of(cls, length: int, lanes: int) -> _Vectors:
        """Vectors of so many lanes, or fewer where the row is short."""
        return cls(length, min(lanes, power_of_2(length)))

    @property
    def count(self) -> int:
        """The number of them."""
        return ceil(self.length / self.lanes)

    @property
    def slots(self) -> int:
        """Numbers of all of them."""
        return self.count * self.lanes


@dataclass(frozen=True)
class _Place:
    """A vector: where its own memory begins, and where what it is of begins in the row."""

    slot: Expr
    column: Expr


#: From a query, a vector, its number in the tile, and a lane to a number.
_Element = Callable[[int, _Place, Expr], Expr]


class _Tile:
    """Statements of attention for some queries of a batch entry, from ``first`` on."""

    def __init__(
        self,
        code: Statements,
        attention: Attention,
        tensors: Sequence[Buffer],
        knobs: Knobs,
        batch: Sequence[Expr],
        first: Expr,
    ):
        self.code, self.attention, self.knobs = code, attention, knobs
        self.q, self.k, self.v, *self.masks, self.y = tensors
        self.batch = list(batch)
        last, whole = attention.queries - 1, attention.queries % knobs.rows == 0
        self.queries = [
            code.name("query", first + row if whole else tirx.min(first + row, last))
            for row in range(knobs.rows)
        ]
        self.rows = range(knobs.rows)
        self.keys = _Vectors.of(knobs.keys, knobs.lanes)
        self.columns = _Vectors.of(attention.columns, knobs.lanes)
        self.blocks = ceil(attention.keys / knobs.keys)
        self.scores = self._alloc("scores", self.keys.slots)
        self.peaks, self.sums = (self._alloc(name, self.keys.lanes) for name in ("peaks", "sums"))

    def write(self) -> None:
        """Write all of it."""
        code = self.code
        if self.blocks == 1:
            self._score(number(0), number(0))
            self._find_peaks()
            self._exponentiate()
            self._multiply(number(0), lambda *_: _constant(0), self._write_result)
            return
        self.kept = self._alloc("kept", self.columns.slots)
        self.peak, self.sum, self.factor = (
            self._alloc(name, 1) for name in ("peak", "sum", "factor")
        )
        for row in self.rows:
            code.store(self.peak, _constant(-np.inf), row, 0)
            code.store(self.sum, _constant(0), row, 0)
            with code.loop("slot", self.columns.slots) as slot:
                code.store(self.kept, _constant(0), row, slot)
        with code.loop("block", self.blocks) as block:
            own = code.name("own", block * self.knobs.keys)
            begin = code.name("begin", tirx.min(own, self.attention.keys - self.knobs.keys))
            self._score(begin, own)
            self._find_peaks()
            self._raise_peaks()
            self._exponentiate()
            self._add_sums()
            self._multiply(begin, self._kept_result, self._keep_result)
        self._write_kept()

    # -- the first product ----------------------------------------------------------------

    def _score(self, begin: Expr, own: Expr) -> None:
        """Scores of keys from ``begin`` on; those before ``own`` were in the last block."""
        code, lanes = self.code, self.keys.lanes
        for vectors in self._tiles(self.keys):

            def product(row: int, vector: _Place, d: Expr, lane: Expr) -> Expr:
                key = begin + vector.column + lane
                return self._read(self.q, self.queries[row], d) * self._read(self.k, d, key)

            depth = self.attention.depth
            products = self._accumulate(lanes, vectors, depth, lambda *_: _constant(0), product)
            for row, (index, vector) in product_of(self.rows, enumerate(vectors)):
                with self._lanes(lanes) as lane:
                    key = begin + vector.column + lane
                    score = products[row, index, lane] * _constant(self.attention.scale)
                    for mask in self.masks:
                        score = score + self._mask(mask, self.queries[row], key)
                    if self.blocks > 1:
                        score = tirx.Select(key >= own, score, _constant(-np.inf))
                    code.store(self.scores, score, row, vector.column + lane)
        for row in self.rows:
            for slot in range(self.keys.length, self.keys.slots):
                code.store(self.scores, _constant(-np.inf), row, slot)

    # -- the softmax ----------------------------------------------------------------------

    def _find_peaks(self) -> None:
        """The largest score of each query, into the first of its ``peaks``.

        What a comparison loses, a NaN, is still among the exponentials.
        """
        code, lanes = self.code, self.keys.lanes
        for row in self.rows:
            with self._lanes(lanes) as lane:
                code.store(self.peaks, self.scores[row, lane], row, lane)
        with code.loop("vector", self.keys.count - 1) as vector:
            for row in self.rows:
                with self._lanes(lanes) as lane:
                    score = self.scores[row, (vector + 1) * lanes + lane]
                    code.store(self.peaks, _larger(score, self.peaks[row, lane]), row, lane)
        self._join(self.peaks, _larger)

    def _raise_peaks(self) -> None:
        """Let peaks be those of all keys so far; scale down what was summed up below them."""
        code = self.code
        for row in self.rows:
            peak = _larger(self.peaks[row, 0], self.peak[row, 0])
            code.store(self.peaks, peak, row, 0)
            factor = tirx.exp(self.peak[row, 0] - _finite(self.peaks[row, 0]))
            code.store(self.factor, factor, row, 0)
            code.store(self.peak, self.peaks[row, 0], row, 0)

    def _exponentiate(self) -> None:
        """Exponentials in place of scores, and their sums into the first of ``sums``."""
        code, lanes = self.code, self.keys.lanes
        for row in self.rows:
            code.store(self.peaks, _finite(self.peaks[row, 0]), row, 0)
            with self._lanes(lanes) as lane:
                code.store(self.sums, _constant(0), row, lane)
        with code.loop("vector", self.keys.count) as vector:
            for row in self.rows:
                with self._lanes(lanes) as lane:
                    at = (row, vector * lanes + lane)
                    code.store(self.scores, tirx.exp(self.scores[at] - self.peaks[row, 0]), *at)
                with self._lanes(lanes) as lane:
                    sum_ = self.sums[row, lane] + self.scores[row, vector * lanes + lane]
                    code.store(self.sums, sum_, row, lane)
        self._join(self.sums, operator.add)

    def _add_sums(self) -> None:
        """Add a block's sums to those of the blocks before it."""
        for row in self.rows:
            sum_ = self.sum[row, 0] * self.factor[row, 0] + self.sums[row, 0]
            self.code.store(self.sum, sum_, row, 0)

    def _join(self, memory: Buffer, joined: Callable[[Expr, Expr], Expr]) -> None:
        """Join the lanes of each query's vector in its first one, half by half."""
        lanes = self.keys.lanes
        while lanes := lanes // 2:
            for row in self.rows:
                with self._lanes(lanes) as lane:
                    value = joined(memory[row, lane], memory[row, lanes + lane])
                    self.code.store(memory, value, row, lane)

    # -- the second product ---------------------------------------------------------------

    def _multiply(
        self, begin: Expr, start: _Element, finish: Callable[[int, _Place, Expr, Expr], None]
    ) -> None:
        """Products with the values of a block of keys, from some start on; ends with ``finish``."""
        lanes = self.columns.lanes
        for vectors in self._tiles(self.columns):

            def product(row: int, vector: _Place, key: Expr, lane: Expr) -> Expr:
                return self.scores[row, key] * self._read(self.v, begin + key, vector.column + lane)

            sums = self._accumulate(lanes, vectors, self.keys.length, start, product)
            for row, (index, vector) in product_of(self.rows, enumerate(vectors)):
                with self._lanes(lanes) as lane:
                    finish(row, vector, lane, sums[row, index, lane])

    def _write_result(self, row: int, vector: _Place, lane: Expr, value: Expr) -> None:
        value = value / self.sums[row, 0]
        self.code.store(self.y, value, *self.batch, self.queries[row], vector.column + lane)

    def _kept_result(self, row: int, vector: _Place, lane: Expr) -> Expr:
        return self.kept[row, vector.slot + lane] * self.factor[row, 0]

    def _keep_result(self, row: int, vector: _Place, lane: Expr, value: Expr) -> None:
        self.code.store(self.kept, value, row, vector.slot + lane)

    def _write_kept(self) -> None:
        for vectors in self._tiles(self.columns):
            for row, vector in product_of(self.rows, vectors):
                with self._lanes(self.columns.lanes) as lane:
                    value = self.kept[row, vector.slot + lane] / self.sum[row, 0]
                    place = (*self.batch, self.queries[row], vector.column + lane)
                    self.code.store(self.y, value, *place)

    # -- loops and memory -----------------------------------------------------------------

    def _tiles(self, row: _Vectors) -> Iterator[list[_Place]]:
        """All vectors of a row, some at a time: a loop, and what is left over.

        What is written while one is at hand is in the loop.
        """
        most = self.knobs.vectors
        whole, rest = divmod(row.count, most)
        overlaps = row.length % row.lanes != 0

        def place(vector: Expr | int, may_be_last: bool) -> _Place:
            slot, last = number(0) + vector * row.lanes, row.length - row.lanes
            return _Place(slot, tirx.min(slot, last) if overlaps and may_be_last else slot)

        if whole == 1:
            yield [place(index, index == row.count - 1) for index in range(most)]
        elif whole:
            with self.code.loop("tile", whole) as tile:
                yield [
                    place(tile * most + index, not rest and index == most - 1)
                    for index in range(most)
                ]
        if rest:
            yield [place(whole * most + index, index == rest - 1) for index in range(rest)]

    def _accumulate(
        self,
        lanes: int,
        vectors: Sequence[_Place],
        length: int,
        start: _Element,
        product: Callable[[int, _Place, Expr, Expr], Expr],
    ) -> Buffer:
        """Sums of products for each query and vector, in registers: ``[rows, vectors, lanes]``."""
        code = self.code
        sums = code.alloc("products", (len(self.rows), len(vectors), lanes), _DTYPE)
        elements = list(product_of(self.rows, enumerate(vectors)))
        for row, (index, vector) in elements:
            with self._lanes(lanes) as lane:
                code.store(sums, start(row, vector, lane), row, index, lane)
        with code.loop("k", length) as k:
            for row, (index, vector) in elements:
                with self._lanes(lanes) as lane:
                    total = sums[row, index, lane] + product(row, vector, k, lane)
                    code.store(sums, total, row, index, lane)
        return sums

    def _alloc(self, name: str, numbers: int) -> Buffer:
        """Private memory of so many numbers for each query."""
        return self.code.alloc(name, (len(self.rows), numbers), _DTYPE)

    def _lanes(self, lanes: int) -> AbstractContextManager[Expr]:
        """The numbers of a vector."""
        if lanes == 1:
            return nullcontext(number(0))
        return self.code.loop("lane", lanes, ForKind.VECTORIZED)

    def _read(self, tensor: Buffer, row: Expr, column: Expr) -> Expr:
        return tirx.BufferLoad(tensor, [*batch_index(tensor, 2, self.batch), row, column])

    def _mask(self, mask: Buffer, query: Expr, key: Expr) -> Expr:
        """What a mask adds to a score, with broadcasting."""
        row, column = (
            place if int(extent) > 1 else number(0)
            for place, extent in zip((query, key), mask.shape[-2:], strict=True)
        )
        return self._read(mask, row, column)


def _constant(value: float) -> Expr:
    return tirx.const(value, _DTYPE)


def _larger(a: Expr, b: Expr) -> Expr:
    return tirx.Select(a > b, a, b)


def _finite(peak: Expr) -> Expr:
    """A peak to subtract: of minus infinities, all exponentials are 0 and not NaN.

    Without any other key, so is their sum, and the result NaN.
    """
    return tirx.Select(peak == _constant(-np.inf), _constant(0), peak)
