"""Attention without a matrix of scores in memory: softmax(f(Q · Kᵀ)) · V.

For any batch ``..``, S queries, T keys of D numbers, values of E numbers, c lanes of a vector, and
any number of operands of f, such as masks, whose rows are whole vectors::

    panels (CPUs)    q[.., S, D]       k[.., T', D, c]   v[.., E', T, c]
    rows (GPUs)      q[.., S, D', c]   k[.., D, T', c]   v[.., T, E', c]

    both             operand[.., S or 1, T' * c or 1]    y[.., S, E]

    s[i, t] = f(Σ over d of q[i, d] * k[d, t], operands[i, t])
    y[i, e] = Σ over t of exp(s[i, t] - peak[i]) * v[t, e] / Σ over t of exp(s[i, t] - peak[i])

A CPU reads a panel from one end to the other (:func:`.dense.pack_columns` makes them); neighbours
in a GPU's work-group read neighbouring vectors of a row.

f is a list of steps (:class:`Step`), element by element: a scale, masks, a cap.  The batch of an
operand is broadcast as NumPy does, and ``peak[i]`` is the largest ``s[i, t]``.  A query that masks
exclude from all keys (only minus infinity) has NaN for its result, as softmax has.

This family is for CPUs, :mod:`.attention_groups` for GPUs.

A part of the work, a CPU's thread or work-group, takes some queries of one batch entry.  It keeps
their scores in private memory, and sums of both products in registers: vectors run along keys in
the first, along columns of V in the second.  Where keys are too many for that, it takes them block
by block, and keeps each query's peak, its sum and its results so far: a block with a larger peak
scales these down (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018;
T. Dao et al., "FlashAttention", 2022).

The last queries of a tile may be the last one again, which costs less than tests.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, astuple, dataclass
from functools import partial
from itertools import product as product_of
from math import ceil, prod

import numpy as np
from tvm import s_tir, tirx
from tvm.tirx import Buffer, Expr, ForKind

from ..devices.target import Device
from ..ir.expressions import OPAQUE
from .boxes.builder import Statements, number, schedule_of, unravel
from .common import FAMILY, Workload
from .definitions import batch_index, exponential
from .dense import ROW_TILE
from .family import Declined, Value, knob
from .sizes import tile_choices

NAME = "attention"
ORDER = 440

#: Annotations with the steps from products to scores, and the form of the operands.
_STEPS, _PANELS = "tvmflow.steps", "tvmflow.panels"
#: What scores and sums are computed in.
DTYPE = "float32"
#: Private memory for the scores of a part, in bytes.
SCORES_BYTES = 32 << 10


# -- what it computes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What becomes of each score: an operator of :data:`OPERATORS`."""

    operator: str
    #: What it takes beside the score.
    number: float | None = None
    #: Whether it takes the next one of the operands, before the number.
    has_operand: bool = False


#: From a score, and what a step takes beside it.
OPERATORS: dict[str, Callable[..., Expr]] = {
    "add": operator.add,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "tanh": tirx.tanh,
    #: The score where the operand is not zero, or where it is zero, and a number elsewhere.
    "keep": lambda score, mask, number: tirx.Select(mask != constant(0), score, number),
    "replace": lambda score, mask, number: tirx.Select(mask != constant(0), number, score),
}


@dataclass(frozen=True)
class Attention:
    """Shapes of the operands, in fp32, in one of both forms."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    #: Of the steps, each of two axes or more.
    operands: tuple[tuple[int, ...], ...]
    columns: int
    steps: tuple[Step, ...] = ()
    #: Whether keys and columns of V are in panels.
    panels: bool = True

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes of the result."""
        q = self.q[:-2] if self.panels else self.q[:-3]
        return np.broadcast_shapes(q, self.k[:-3], self.v[:-3])

    @property
    def queries(self) -> int:
        """Rows of Q."""
        return self.q[-2] if self.panels else self.q[-3]

    @property
    def depth(self) -> int:
        """Numbers of a query and of a key."""
        return self.k[-2] if self.panels else self.k[-3]

    @property
    def keys(self) -> int:
        """Columns of K, rows of V."""
        return self.v[-2] if self.panels else self.v[-3]

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.v[-1]

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.batch, self.queries, self.columns)


@dataclass(frozen=True)
class Tensors:
    """The parameters of a function of attention, which are read for an entry of the batch."""

    attention: Attention
    parameters: Sequence[Buffer]
    batch: Sequence[Expr]

    @property
    def y(self) -> Buffer:
        """The result."""
        return self.parameters[-1]

    def query(self, row: Expr, d: Expr) -> Expr:
        """A number of a query."""
        q, lanes = self.parameters[0], self.attention.lanes
        if self.attention.panels:
            return self._read(q, row, d)
        return self._read(q, row, tirx.truncdiv(d, lanes), tirx.truncmod(d, lanes))

    def queries(self, row: Expr, vector: Expr, lane: Expr) -> Expr:
        """A number of a vector of a query, where these are in rows."""
        return self._read(self.parameters[0], row, vector, lane)

    def key(self, d: Expr, vector: Expr, lane: Expr) -> Expr:
        """A number of keys, of a vector of some."""
        return self._in_form(self.parameters[1], d, vector, lane)

    def value(self, key: Expr, vector: Expr, lane: Expr) -> Expr:
        """A number of a key's values."""
        return self._in_form(self.parameters[2], key, vector, lane)

    def score(self, product: Expr, query: Expr, key: Expr) -> Expr:
        """What the steps make of a product."""
        operands = iter(self.parameters[3:-1])
        for step in self.attention.steps:
            taken = [] if step.number is None else [constant(step.number)]
            if step.has_operand:
                taken.insert(0, self._operand(next(operands), query, key))
            product = OPERATORS[step.operator](product, *taken)
        return product

    def _operand(self, operand: Buffer, query: Expr, key: Expr) -> Expr:
        """What a step takes of an operand for a score, with broadcasting."""
        row, column = (
            place if int(extent) > 1 else number(0)
            for place, extent in zip((query, key), operand.shape[-2:], strict=True)
        )
        return self._read(operand, row, column)

    def _in_form(self, tensor: Buffer, row: Expr, vector: Expr, lane: Expr) -> Expr:
        place = (vector, row) if self.attention.panels else (row, vector)
        return self._read(tensor, *place, lane)

    def _read(self, tensor: Buffer, *place: Expr) -> Expr:
        batch = batch_index(tensor, len(place), self.batch)
        # On CUDA tensors may be of halves.
        return tirx.BufferLoad(tensor, [*batch, *place]).astype(DTYPE)


def define(attention: Attention) -> tirx.PrimFunc:
    """State attention by loops over batch and queries, each of which keeps its scores.

    Parameters are ``q``, ``k``, ``v``, the operands of steps and the result.
    """
    shapes = (attention.q, attention.k, attention.v, *attention.operands, attention.result)
    operands = [f"operand{index}" for index, _ in enumerate(attention.operands)]
    pairs = zip(shapes, ("q", "k", "v", *operands, "y"), strict=True)
    tensors = [tirx.decl_buffer(shape, DTYPE, name) for shape, name in pairs]
    code = Statements()
    steps = json.dumps([astuple(step) for step in attention.steps])
    annotations: dict[str, str | int] = {
        FAMILY: NAME,
        _STEPS: steps,
        _PANELS: int(attention.panels),
    }
    extents = [number(extent) for extent in (*attention.batch, attention.queries)]
    plain = Knobs(rows=1, keys=attention.keys, vectors=1)
    with (
        code.block("root"),
        code.block(NAME, annotations=annotations),
        code.loops(extents) as (*batch, query),
    ):
        _Tile(code, Tensors(attention, tensors, batch), plain, query).write()
    function = tirx.PrimFunc(tensors, code.finish())
    return function.with_attrs({"op_pattern": OPAQUE, "tirx.noalias": True})


def attention_of(workload: Workload) -> tuple[Attention, list[Buffer]]:
    """What a function computes, and its parameters."""
    anchor = workload.anchor(NAME)
    if len(workload.blocks) > 1:
        raise Declined("something is computed beside it")
    tensors = list(workload.function.params)
    q, k, v, *operands, y = (tuple(map(int, tensor.shape)) for tensor in tensors)
    found = json.loads(workload.annotation(anchor, _STEPS) or "[]")
    steps = tuple(Step(*step) for step in found)
    panels = workload.annotation(anchor, _PANELS) != "0"
    return Attention(q, k, v, tuple(operands), y[-1], steps, panels), tensors


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
    lanes: int
    operands: int


def shape_of(attention: Attention) -> Shape:
    """The extents of an attention."""
    return Shape(
        prod(attention.batch), attention.queries, attention.keys, attention.depth,
        attention.columns, lanes=attention.lanes, operands=len(attention.operands),
    )  # fmt: skip


@dataclass(frozen=True)
class Knobs:
    """Tiles of both products."""

    rows: int = knob("Queries that a part of the work takes.")
    keys: int = knob("Keys of a block, whose scores are in private memory.")
    vectors: int = knob("Vectors of scores, or of columns, for each query in registers.")


CONSTRAINTS = {
    "rows is at most the queries.": lambda k, s, d: k.rows <= s.queries,
    "keys is that of all, or of whole vectors.": lambda k, s, d: (
        k.keys == s.keys or (k.keys < s.keys and k.keys % s.lanes == 0)
    ),
    "rows * vectors vectors must fit the device's registers.": lambda k, s, d: (
        k.rows * k.vectors <= d.accumulators
    ),
    f"The scores of rows * keys must fit private memory of {SCORES_BYTES >> 10} KiB.": (
        lambda k, s, d: k.keys <= _keys_at_most(k.rows)
    ),
}


def _keys_at_most(rows: int, lanes: int = 1) -> int:
    """Keys whose scores fit private memory, in whole vectors."""
    return SCORES_BYTES // (rows * np.dtype(DTYPE).itemsize) // lanes * lanes


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Six rows of four vectors as products of matrices have, fewer where rows would be empty."""

    def work(rows: int) -> float:
        # A product with one of four vectors takes 1/4 + 1/rows reads.
        return ceil(shape.queries / rows) * rows * (1.25 + 1 / rows)

    most = min(shape.queries, ROW_TILE, device.accumulators)
    rows = min(range(1, most + 1), key=lambda rows: (work(rows), -rows))
    keys = min(shape.keys, _keys_at_most(rows, shape.lanes))
    return Knobs(rows, keys, min(4 if rows > 3 else 8, device.accumulators // rows))


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of registers, and all keys or blocks of them."""
    return {
        "rows": tile_choices(shape.queries, 12),
        "keys": (shape.keys, *(keys for keys in (64, 128, 256, 512) if keys < shape.keys)),
        "vectors": (1, 2, 3, 4, 6, 8),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """The shape of an attention, which is a function of its own."""
    attention, _ = attention_of(workload)
    if not attention.panels:
        raise Declined("its operands are in a GPU's form")
    return shape_of(attention)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write the loops: a part takes a tile of queries of a batch entry."""
    attention, tensors = attention_of(workload)
    code = Statements()
    extents = [*attention.batch, ceil(attention.queries / knobs.rows)]
    with (
        code.block("root"),
        code.parts(NAME, prod(extents), workload.target.is_gpu_kernel) as part,
    ):
        places = unravel(part, [number(extent) for extent in extents])
        *batch, tile = (code.name("place", place) for place in places)
        _Tile(code, Tensors(attention, tensors, batch), knobs, tile * knobs.rows).write()
    return schedule_of(workload.function, code.finish())


@dataclass(frozen=True)
class _Vector:
    """A panel's vector of a row, with what there is of it, which may be less than all lanes."""

    panel: Expr
    filled: int


#: From a lane to a number.
_Lanes = Callable[[Expr], Expr]
#: From a query, a vector and a lane to a number.
_Start = Callable[[int, _Vector, Expr], Expr]
#: From a query, a vector, a step of the sum and a lane to what is added.
_Product = Callable[[int, _Vector, Expr, Expr], Expr]


class _Tile:
    """Statements of attention for some queries of a batch entry, from ``first`` on."""

    def __init__(
        self,
        code: Statements,
        tensors: Tensors,
        knobs: Knobs,
        first: Expr,
    ):
        self.code, self.tensors, self.knobs = code, tensors, knobs
        self.attention = attention = tensors.attention
        self.lanes = attention.lanes
        self.rows = range(knobs.rows)
        last, whole = attention.queries - 1, attention.queries % knobs.rows == 0
        self.queries = [
            code.name("query", first + row if whole else tirx.min(first + row, last))
            for row in self.rows
        ]
        self.scores = self._alloc("scores", self._whole(knobs.keys))
        self.peaks, self.sums = (self._alloc(name, self.lanes) for name in ("peaks", "sums"))

    def write(self) -> None:
        """Write all of it."""
        keys = self.attention.keys
        if self.knobs.keys < keys:
            self._write_blocks()
            return
        self._score(number(0), keys)
        self._find_peaks(keys)
        self._exponentiate(keys)
        for row, vector, products in self._weigh(number(0), keys, _zero):
            self._write_result(row, vector, products, self.sums)

    def _write_blocks(self) -> None:
        """Take keys block by block."""
        code, columns, keys = self.code, self.attention.columns, self.knobs.keys
        self.kept = self._alloc("kept", self._whole(columns))
        self.peak, self.sum, self.factor = (
            self._alloc(name, 1) for name in ("peak", "sum", "factor")
        )
        for row in self.rows:
            code.store(self.peak, constant(-np.inf), row, 0)
            code.store(self.sum, constant(0), row, 0)
            with code.loop("column", self._whole(columns)) as column:
                code.store(self.kept, constant(0), row, column)
        blocks, rest = divmod(self.attention.keys, keys)
        panels = keys // self.lanes
        with code.loop("block", blocks) as block:
            self._add_block(block * panels, keys)
        if rest:
            self._add_block(number(blocks * panels), rest)
        for vectors in self._tiles(columns):
            for row, vector in product_of(self.rows, vectors):
                kept = partial(self._kept_result, row, vector)
                self._write_result(row, vector, kept, self.sum)

    def _add_block(self, first: Expr, keys: int) -> None:
        """Add so many keys, from a panel on, to what is kept, which a larger peak scales down."""
        code = self.code
        self._score(first, keys)
        self._find_peaks(keys)
        for row in self.rows:
            code.store(self.peaks, larger(self.peaks[row, 0], self.peak[row, 0]), row, 0)
            factor = exponential(self.peak[row, 0] - finite(self.peaks[row, 0]))
            code.store(self.factor, factor, row, 0)
            code.store(self.peak, self.peaks[row, 0], row, 0)
        self._exponentiate(keys)
        for row in self.rows:
            sum_ = self.sum[row, 0] * self.factor[row, 0] + self.sums[row, 0]
            code.store(self.sum, sum_, row, 0)

        def scaled(row: int, vector: _Vector, lane: Expr) -> Expr:
            return self._kept_result(row, vector, lane) * self.factor[row, 0]

        for row, vector, products in self._weigh(first, keys, scaled):
            with self._vector() as lane:
                code.store(self.kept, products(lane), row, vector.panel * self.lanes + lane)

    def _kept_result(self, row: int, vector: _Vector, lane: Expr) -> Expr:
        return self.kept[row, vector.panel * self.lanes + lane]

    # -- steps ----------------------------------------------------------------------------

    def _score(self, first: Expr, keys: int) -> None:
        """Scores of keys from a panel on; minus infinity in lanes beyond the last one."""

        def product(row: int, vector: _Vector, d: Expr, lane: Expr) -> Expr:
            panel = self.tensors.key(d, first + vector.panel, lane)
            return self.tensors.query(self.queries[row], d) * panel

        def score(row: int, vector: _Vector, products: _Lanes, lane: Expr) -> Expr:
            key = (first + vector.panel) * self.lanes + lane
            return self.tensors.score(products(lane), self.queries[row], key)

        for row, vector, products in self._sums(keys, self.attention.depth, _zero, product):
            begin = vector.panel * self.lanes
            with self._vector() as lane:
                self.code.store(self.scores, score(row, vector, products, lane), row, begin + lane)
            for lane in range(vector.filled, self.lanes):
                self.code.store(self.scores, constant(-np.inf), row, begin + lane)

    def _find_peaks(self, keys: int) -> None:
        """The largest score of each query, into the first of its ``peaks``.

        What a comparison loses, a NaN, is still among the exponentials.
        """
        code = self.code
        for row in self.rows:
            with self._vector() as lane:
                code.store(self.peaks, self.scores[row, lane], row, lane)
        with code.loop("vector", ceil(keys / self.lanes) - 1) as vector:
            for row in self.rows:
                with self._vector() as lane:
                    score = self.scores[row, (vector + 1) * self.lanes + lane]
                    code.store(self.peaks, larger(score, self.peaks[row, lane]), row, lane)
        self._join(self.peaks, larger)

    def _exponentiate(self, keys: int) -> None:
        """Exponentials in place of scores, and their sums into the first of ``sums``."""
        code = self.code
        for row in self.rows:
            code.store(self.peaks, finite(self.peaks[row, 0]), row, 0)
            with self._vector() as lane:
                code.store(self.sums, constant(0), row, lane)
        with code.loop("vector", ceil(keys / self.lanes)) as vector:
            for row in self.rows:
                with self._vector() as lane:
                    at = (row, vector * self.lanes + lane)
                    weight = exponential(self.scores[at] - self.peaks[row, 0])
                    code.store(self.scores, weight, *at)
                with self._vector() as lane:
                    sum_ = self.sums[row, lane] + self.scores[row, vector * self.lanes + lane]
                    code.store(self.sums, sum_, row, lane)
        self._join(self.sums, operator.add)

    def _weigh(
        self, first: Expr, keys: int, start: _Start
    ) -> Iterator[tuple[int, _Vector, _Lanes]]:
        """Sums of the values of keys from a panel on, by their exponentials."""

        def product(row: int, vector: _Vector, key: Expr, lane: Expr) -> Expr:
            value = self.tensors.value(first * self.lanes + key, vector.panel, lane)
            return self.scores[row, key] * value

        return self._sums(self.attention.columns, keys, start, product)

    def _write_result(self, row: int, vector: _Vector, sums: _Lanes, divisors: Buffer) -> None:
        code, y = self.code, self.tensors.y
        place = (*self.tensors.batch, self.queries[row])
        begin, divisor = vector.panel * self.lanes, divisors[row, 0]
        if vector.filled == self.lanes:
            with self._vector() as lane:
                code.store(y, sums(lane) / divisor, *place, begin + lane)
            return
        # By way of memory: what is read number by number is no register.
        last = code.alloc("last", (self.lanes,), DTYPE)
        with self._vector() as lane:
            code.store(last, sums(lane) / divisor, lane)
        with code.loop("each", vector.filled) as each:
            code.store(y, last[each], *place, begin + each)

    # -- vectors --------------------------------------------------------------------------

    def _sums(
        self, length: int, terms: int, start: _Start, product: _Product
    ) -> Iterator[tuple[int, _Vector, _Lanes]]:
        """Sums of products for each query and vector of a row, some vectors in registers at a time.

        What is written while a sum is at hand is in the loop over them.
        """
        code = self.code
        for vectors in self._tiles(length):
            sums = self.code.alloc("products", (len(self.rows), len(vectors), self.lanes), DTYPE)
            elements = list(product_of(self.rows, enumerate(vectors)))
            for row, (index, vector) in elements:
                with self._vector() as lane:
                    code.store(sums, start(row, vector, lane), row, index, lane)
            with code.loop("k", terms) as k:
                for row, (index, vector) in elements:
                    with self._vector() as lane:
                        total = sums[row, index, lane] + product(row, vector, k, lane)
                        code.store(sums, total, row, index, lane)
            for row, (index, vector) in elements:
                yield row, vector, partial(_lane_of, sums, row, index)

    def _tiles(self, length: int) -> Iterator[list[_Vector]]:
        """All vectors of a row, some at a time: a loop of whole ones, and what is left over."""
        most = self.knobs.vectors
        whole = length // self.lanes // most
        if whole == 1:
            yield [_Vector(number(index), self.lanes) for index in range(most)]
        elif whole:
            with self.code.loop("tile", whole) as tile:
                yield [_Vector(tile * most + index, self.lanes) for index in range(most)]
        first = whole * most
        if left := length - first * self.lanes:
            yield [
                _Vector(number(first + index), min(self.lanes, left - index * self.lanes))
                for index in range(ceil(left / self.lanes))
            ]

    def _join(self, memory: Buffer, joined: Callable[[Expr, Expr], Expr]) -> None:
        """Join the lanes of each query's vector in its first one, half by half."""
        half = self.lanes // 2
        while half:
            for row in self.rows:
                with self._vector(half) as lane:
                    value = joined(memory[row, lane], memory[row, half + lane])
                    self.code.store(memory, value, row, lane)
            half //= 2

    @contextmanager
    def _vector(self, lanes: int | None = None) -> Iterator[Expr]:
        """The lanes of a vector."""
        lanes = self.lanes if lanes is None else lanes
        if lanes == 1:
            yield number(0)
            return
        with self.code.loop("lane", lanes, ForKind.VECTORIZED) as lane:
            yield lane

    # -- memory ---------------------------------------------------------------------------

    def _whole(self, length: int) -> int:
        """A length in whole vectors."""
        return ceil(length / self.lanes) * self.lanes

    def _alloc(self, name: str, numbers: int) -> Buffer:
        """Private memory of so many numbers for each query."""
        return self.code.alloc(name, (len(self.rows), numbers), DTYPE)


def constant(value: float) -> Expr:
    """A number to compute with."""
    return tirx.const(value, DTYPE)


def _zero(*_: object) -> Expr:
    return constant(0)


def _lane_of(sums: Buffer, row: int, vector: int, lane: Expr) -> Expr:
    return sums[row, vector, lane]


def larger(a: Expr, b: Expr) -> Expr:
    """The larger of two numbers; the second one where the first is NaN."""
    return tirx.Select(a > b, a, b)


def finite(peak: Expr) -> Expr:
    """A peak to subtract: of nothing but minus infinities, exponentials are 0, and not NaN.

    Without any other key so is their sum, by which the result is NaN.
    """
    return tirx.Select(peak == constant(-np.inf), constant(0), peak)
