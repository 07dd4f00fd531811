"""Fused attention without a matrix of scores in memory: softmax(f(Q · Kᵀ)) · V.

The batch ``..`` is any number of axes; S queries, T keys of D numbers, values of E numbers, vectors
of c lanes.  f has any number of operands, such as masks, whose rows are whole vectors::

    panels (CPUs)    q[.., S, D]       k[.., T', D, c]   v[.., E', T, c]
    rows (GPUs)      q[.., S, D', c]   k[.., D, T', c]   v[.., T, E', c]

    both             operand[.., S or 1, T' * c or 1]    y[.., S, E]

    s[i, t] = f(Σ over d of q[i, d] * k[d, t], operands[i, t])
    y[i, e] = Σ over t of exp(s[i, t] - peak[i]) * v[t, e] / Σ over t of exp(s[i, t] - peak[i])

A CPU reads a panel sequentially (:func:`.dense.pack_columns` makes panels); neighbouring items of a
GPU's work-group read neighbouring vectors of a row.

f is a list of elementwise steps (:class:`Step`): a scale, masks, a cap.  The batch of an operand is
broadcast as in NumPy, and ``peak[i]`` is the largest ``s[i, t]``.  A query whose masks exclude all
keys (only minus infinity) results in NaN, as with softmax.

This family is for CPUs, :mod:`.attention_groups` for GPUs.

A part of the work (a CPU's thread or work-group) takes some queries of one batch entry.  It keeps
their scores in private memory, and sums of both products in registers: vectors run along keys in
the first, along columns of V in the second.  If there are too many keys for that, the part takes
them block by block, and keeps each query's peak, sum and results so far: a block with a larger peak
scales these down (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018;
T. Dao et al., "FlashAttention", 2022).

The last queries of a tile may repeat the last one, which costs less than tests.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, astuple, dataclass
from functools import partial
from itertools import product as product_of
from math import ceil, prod

import numpy as np
from tvm import s_tir, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from ..ir.expressions import OPAQUE
from .boxes.builder import Statements, number, schedule_of, unravel
from .common import FAMILY, Workload
from .definitions import batch_index, exponential
from .dense import ROW_TILE
from .family import Declined, Value, knob, only_block
from .sizes import tile_choices

NAME = "attention"
ORDER = 440

#: Annotations that hold the steps from products to scores, and the form of the operands.
_STEPS, _PANELS = "tvmflow.steps", "tvmflow.panels"
#: The dtype in which scores and sums are computed.
DTYPE = "float32"
#: Most private memory for the scores of a part, in bytes.
SCORES_BYTES = 32 << 10


# -- what it computes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One elementwise operation on the scores, named in :data:`OPERATORS`."""

    operator: str
    #: A constant operand besides the score.
    number: float | None = None
    #: Whether the step also takes the next of the tensor operands, before the number.
    has_operand: bool = False


#: Functions of a score, and of the step's tensor operand and number if it has them.
OPERATORS: dict[str, Callable[..., Expr]] = {
    "add": operator.add,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "tanh": tirx.tanh,
    #: Keep, or replace, the score where the mask is not zero; a number stands for the others.
    "keep": lambda score, mask, number: tirx.Select(mask != constant(0), score, number),
    "replace": lambda score, mask, number: tirx.Select(mask != constant(0), number, score),
}


@dataclass(frozen=True)
class Attention:
    """Shapes of the operands, in fp32, in one of the two forms."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    #: Shapes of the steps' tensor operands, each of two axes or more.
    operands: tuple[tuple[int, ...], ...]
    columns: int
    steps: tuple[Step, ...] = ()
    #: Whether K and V are stored in panels.
    panels: bool = True

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the leading axes of the result."""
        q = self.q[:-2] if self.panels else self.q[:-3]
        return np.broadcast_shapes(q, self.k[:-3], self.v[:-3])

    @property
    def queries(self) -> int:
        """Return the number of rows of Q."""
        return self.q[-2] if self.panels else self.q[-3]

    @property
    def depth(self) -> int:
        """Return the length of a query and of a key."""
        return self.k[-2] if self.panels else self.k[-3]

    @property
    def keys(self) -> int:
        """Return the number of columns of K, which are rows of V."""
        return self.v[-2] if self.panels else self.v[-3]

    @property
    def lanes(self) -> int:
        """Return the numbers in a vector."""
        return self.v[-1]

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return (*self.batch, self.queries, self.columns)


@dataclass(frozen=True)
class Tensors:
    """Parameters of an attention function, read at one entry of the batch."""

    attention: Attention
    parameters: Sequence[Buffer]
    batch: Sequence[Expr]

    @property
    def y(self) -> Buffer:
        """Return the result's buffer."""
        return self.parameters[-1]

    def query(self, row: Expr, d: Expr) -> Expr:
        """Load one number of a query."""
        q, lanes = self.parameters[0], self.attention.lanes
        if self.attention.panels:
            return self._read(q, row, d)
        return self._read(q, row, tirx.truncdiv(d, lanes), tirx.truncmod(d, lanes))

    def queries(self, row: Expr, vector: Expr, lane: Expr) -> Expr:
        """Load one lane of a query's vector, for operands in rows."""
        return self._read(self.parameters[0], row, vector, lane)

    def key(self, d: Expr, vector: Expr, lane: Expr) -> Expr:
        """Load one lane of a vector of keys."""
        return self._in_form(self.parameters[1], d, vector, lane)

    def value(self, key: Expr, vector: Expr, lane: Expr) -> Expr:
        """Load one lane of a vector of a key's values."""
        return self._in_form(self.parameters[2], key, vector, lane)

    def score(self, product: Expr, query: Expr, key: Expr) -> Expr:
        """Apply the steps to a product of a query and a key."""
        operands = iter(self.parameters[3:-1])
        for step in self.attention.steps:
            taken = [] if step.number is None else [constant(step.number)]
            if step.has_operand:
                taken.insert(0, self._operand(next(operands), query, key))
            product = OPERATORS[step.operator](product, *taken)
        return product

    def _operand(self, operand: Buffer, query: Expr, key: Expr) -> Expr:
        """Load the element of a step's operand that belongs to a score, with broadcasting."""
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
        # On CUDA tensors may be fp16.
        return tirx.BufferLoad(tensor, [*batch, *place]).astype(DTYPE)


def define(attention: Attention) -> tirx.PrimFunc:
    """Define attention as loops over batch and queries, each of which keeps its scores.

    The parameters are ``q``, ``k``, ``v``, the operands of the steps, and the result.
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
    """Return the attention that a function computes, and its parameters."""
    anchor = only_block(workload, NAME)
    tensors = list(workload.function.params)
    q, k, v, *operands, y = (tuple(map(int, tensor.shape)) for tensor in tensors)
    found = json.loads(workload.annotation(anchor, _STEPS) or "[]")
    steps = tuple(Step(*step) for step in found)
    panels = workload.annotation(anchor, _PANELS) != "0"
    return Attention(q, k, v, tuple(operands), y[-1], steps, panels), tensors


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Extents of the attention."""

    batch: int
    queries: int
    keys: int
    depth: int
    columns: int
    _: KW_ONLY
    lanes: int
    operands: int


def shape_of(attention: Attention) -> Shape:
    """Return the extents of an attention."""
    return Shape(
        prod(attention.batch), attention.queries, attention.keys, attention.depth,
        attention.columns, lanes=attention.lanes, operands=len(attention.operands),
    )  # fmt: skip


@dataclass(frozen=True)
class Knobs:
    """Knobs of the tiles of both products."""

    rows: int = knob("Queries that a part of the work takes.")
    keys: int = knob("Keys of a block, whose scores are in private memory.")
    vectors: int = knob("Vectors of scores, or of columns, for each query in registers.")


CONSTRAINTS = {
    "rows is at most the queries.": lambda k, s, d: k.rows <= s.queries,
    "keys is all keys, or fewer in whole vectors.": lambda k, s, d: (
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
    """Return how many keys' scores fit private memory, in whole vectors."""
    return SCORES_BYTES // (rows * np.dtype(DTYPE).itemsize) // lanes * lanes


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return six rows by four vectors as in matrix products; fewer if rows would be empty."""

    def work(rows: int) -> float:
        # A tile of one row by four vectors takes 1/4 + 1/rows loads per product.
        return ceil(shape.queries / rows) * rows * (1.25 + 1 / rows)

    most = min(shape.queries, ROW_TILE, device.accumulators)
    rows = min(range(1, most + 1), key=lambda rows: (work(rows), -rows))
    keys = min(shape.keys, _keys_at_most(rows, shape.lanes))
    return Knobs(rows, keys, min(4 if rows > 3 else 8, device.accumulators // rows))


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of registers, and all keys or blocks of them."""
    return {
        "rows": tile_choices(shape.queries, 12),
        "keys": (shape.keys, *(keys for keys in (64, 128, 256, 512) if keys < shape.keys)),
        "vectors": (1, 2, 3, 4, 6, 8),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of an attention, which is a function by itself."""
    attention, _ = attention_of(workload)
    if not attention.panels:
        raise Declined("its operands are in a GPU's form")
    return shape_of(attention)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write loops in which a part takes a tile of queries of one batch entry."""
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
    """A vector of a row in panels, of which only the first ``filled`` lanes may exist."""

    panel: Expr
    filled: int


#: Function from a lane to a number.
_Lanes = Callable[[Expr], Expr]
#: Function from a query, a vector and a lane to the initial value of a sum.
_Start = Callable[[int, _Vector, Expr], Expr]
#: Function from a query, a vector, a step of the sum and a lane to the summand.
_Product = Callable[[int, _Vector, Expr, Expr], Expr]


class _Tile:
    """Writer of attention for some queries of a batch entry, starting at ``first``."""

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
        """Write the whole computation."""
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
        """Write a loop over blocks of keys."""
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
        """Add keys, starting at a panel, to the results, which a larger peak scales down."""
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
        """Compute scores of keys starting at a panel; lanes after the last key are masked."""

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
        """Store the largest score of each query in the first lane of its ``peaks``.

        Comparisons lose a NaN, but it is still among the exponentials.
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
        """Replace scores with exponentials, and store their sums in the first lane of ``sums``."""
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
        """Sum the values of keys, starting at a panel, weighted by their exponentials."""

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
        # Scores go through memory: an array that is read number by number is not kept in registers.
        last = code.alloc("last", (self.lanes,), DTYPE)
        with self._vector() as lane:
            code.store(last, sums(lane) / divisor, lane)
        with code.loop("each", vector.filled) as each:
            code.store(y, last[each], *place, begin + each)

    # -- vectors --------------------------------------------------------------------------

    def _sums(
        self, length: int, terms: int, start: _Start, product: _Product
    ) -> Iterator[tuple[int, _Vector, _Lanes]]:
        """Sum products for each query and vector of a row, some vectors in registers at a time.

        Statements written while the generator yields a sum are inside the loop over vectors.
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
        """Iterate over tiles of a row's vectors: a loop over whole tiles, then the rest."""
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
        """Reduce the lanes of each query's vector into the first one, by halving."""
        half = self.lanes // 2
        while half:
            for row in self.rows:
                with self._vector(half) as lane:
                    value = joined(memory[row, lane], memory[row, half + lane])
                    self.code.store(memory, value, row, lane)
            half //= 2

    def _vector(self, lanes: int | None = None) -> AbstractContextManager[Expr]:
        """Open a loop over the lanes of a vector."""
        return self.code.lane_loop(self.lanes if lanes is None else lanes)

    # -- memory ---------------------------------------------------------------------------

    def _whole(self, length: int) -> int:
        """Round a length up to whole vectors."""
        return ceil(length / self.lanes) * self.lanes

    def _alloc(self, name: str, numbers: int) -> Buffer:
        """Allocate private memory for a number of values per query."""
        return self.code.alloc(name, (len(self.rows), numbers), DTYPE)


def constant(value: float) -> Expr:
    """Return a constant in the dtype of the computation."""
    return tirx.const(value, DTYPE)


def _zero(*_: object) -> Expr:
    return constant(0)


def _lane_of(sums: Buffer, row: int, vector: int, lane: Expr) -> Expr:
    return sums[row, vector, lane]


def larger(a: Expr, b: Expr) -> Expr:
    """Return the larger of two numbers; the second one if the first is NaN."""
    return tirx.Select(a > b, a, b)


def finite(peak: Expr) -> Expr:
    """Return the peak to subtract; 0 if it is minus infinity, so that exponentials are not NaN.

    The sum of a query without keys is then 0, and its result NaN.
    """
    return tirx.Select(peak == constant(-np.inf), constant(0), peak)
