"""A mean over valid boxes on a CPU: 16 boxes at a time, in the lanes of a vector.

Samples are cut into chunks, and chunks are dealt out to parts, each a thread's or a work-item's
work.  In a chunk, vectors of neighbouring boxes come first.  With the knob ``skip``

``none``
    all are computed, and lanes that are not valid are dropped;
``warp``
    vectors without a valid box are skipped;
``list``
    all lanes are valid: other boxes wait in a list until there is a vector of them, with rows from
    anywhere.  Reading those costs more than half a vector of neighbours.

What fewer boxes than a vector are left at the end of a tensor, or of a chunk without a limit, waits
in that list, too.

Four numbers of 16 boxes are four vectors of four boxes, transposed by two steps of shuffles that
stay within quarters of vectors, where they are cheap::

    a0 a1 a2 a3 | ..      a0 b0 a1 b1 | ..      a0 b0 c0 d0 | ..
    b0 b1 b2 b3 | ..  ->  a2 b2 a3 b3 | ..  ->  a1 b1 c1 d1 | ..
    c0 c1 c2 c3 | ..      c0 d0 c1 d1 | ..      a2 b2 c2 d2 | ..
    d0 d1 d2 d3 | ..      c2 d2 c3 d3 | ..      a3 b3 c3 d3 | ..

Neighbours in memory come out in another order, which a sum does not mind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from ..ir.scope import is_texture
from .masked_terms import CORNERS, Places, Row, Terms, named, replaced, with_rows
from .statements import Buffer, Statements, Value, number

#: Boxes of a vector.
LANES = 16
_QUARTERS = LANES // CORNERS
_ALL = tirx.Ramp(number(0), number(1), LANES)


def _lane_of_neighbour(place: Any) -> Any:
    """The lane of the ``place``-th of 16 neighbours in memory, and the other way round."""
    return place % _QUARTERS * _QUARTERS + place // _QUARTERS


_neighbour_of_lane = _lane_of_neighbour


class Part:
    """Statements that sum up chunks, for one part."""

    def __init__(self, code: Statements, terms: Terms, skip: str):
        self.code, self.terms, self.skip = code, terms, skip
        self.rows = terms.rows if terms.is_of_rows() else []
        self.sums = code.alloc("sums", (LANES,), "float32")
        self.count = code.alloc("count", (1,), "int32")
        code.store(self.sums, _splat(tirx.const(0, "float32")), _ALL)
        code.store(self.count, number(0), number(0))
        if self.rows:
            # What waits: fewer boxes than a vector has, and at most a vector's more.
            self.waiting = code.alloc("waiting", (1,), "int32")
            self.samples, self.boxes = (
                code.alloc(f"waiting_{name}", (2 * LANES,), "int32")
                for name in ("samples", "boxes")
            )
            code.store(self.waiting, number(0), number(0))

    # -- a chunk --------------------------------------------------------------------------

    def add_chunk(self, sample: Value, begin: Value, end: Value) -> None:
        """Sum up boxes from ``begin`` to ``end`` of a sample."""
        code, terms = self.code, self.terms
        stop = end
        if terms.limit is not None:
            limit = tirx.Min(terms.limit_of(sample), end)
            stop = code.name("stop", tirx.Max(limit, begin))
            code.store(self.count, self.count[0] + (stop - begin), number(0))
        vectors = code.name("vectors", self._vectors(begin, end, stop))
        with code.loop("vector", vectors) as vector:
            first = code.name("first", begin + vector * LANES)
            if terms.limit is None:
                self._add_chosen(sample, first)
            else:
                self._add_limited(sample, first, stop)
        self._add_rest(sample, code.name("rest", begin + vectors * LANES), stop)

    def _vectors(self, begin: Value, end: Value, stop: Value) -> Value:
        """How many vectors of neighbours are looked at; what is left waits."""
        if self.terms.limit is None or self.skip == "list" or not self.rows:
            return tirx.truncdiv(stop - begin, number(LANES))
        last = end if self.skip == "none" else stop
        return tirx.truncdiv(last - begin + (LANES - 1), number(LANES))

    def _add_limited(self, sample: Value, first: Value, stop: Value) -> None:
        """Sum up neighbours below a limit."""
        code = self.code
        if self.skip == "list" or not self.rows:
            self._add(sample, first, None)
            return
        left = code.name("left", stop - first)
        # A vector may go on where the next sample begins, but not where a tensor ends.
        inside = [self._reaches(row.at(self.terms.places(sample, first))) for row in self.rows]
        inside = code.name("inside", tirx.all(*inside).astype("int32"))
        with code.when(inside != 0):
            self._add(sample, first, lambda lane: _neighbour_of_lane(lane) < left)
        with code.when(inside == 0):
            self._add_rest(sample, first, stop)

    @staticmethod
    def _reaches(row: Row) -> Value:
        """Whether a tensor has a vector of rows from one on."""
        position: Value = number(0)
        total: Value = number(1)
        for index, extent in zip(row.place, row.tensor.shape, strict=False):
            position = position * extent.astype("int32") + index.astype("int32")
            total = total * extent.astype("int32")
        return position + LANES <= total

    def _add_chosen(self, sample: Value, first: Value) -> None:
        """Sum up neighbours that are valid each by itself."""
        code = self.code
        mask = code.alloc("mask", (LANES,), "int32")
        found: Value = number(0)
        for place in range(LANES):
            chosen = code.name("chosen", self._valid(sample, first + place))
            code.store(mask, chosen, number(self._lane(place)))
            found = found + chosen
        found = code.name("found", found)
        code.store(self.count, self.count[0] + found, number(0))
        if self.skip == "none":
            self._add(sample, first, lambda lane: mask[lane] != 0)
        elif self.skip == "warp":
            with code.when(found > 0):
                self._add(sample, first, lambda lane: mask[lane] != 0)
        else:
            with code.when(found == LANES):
                self._add(sample, first, None)
            with code.when(tirx.all(found > 0, found < LANES)):
                for place in range(LANES):
                    self._append(sample, first + place, mask[self._lane(place)])
                self._drain()

    def _lane(self, place: int) -> int:
        """The lane of the ``place``-th of 16 neighbours in memory."""
        return _lane_of_neighbour(place) if self.rows else place

    def _add_rest(self, sample: Value, first: Value, stop: Value) -> None:
        """Let fewer boxes than a vector has wait."""
        code = self.code
        with code.loop("left", tirx.Max(stop - first, number(0))) as left:
            box = code.name("box", first + left)
            chosen = None
            if self.terms.limit is None:
                chosen = code.name("chosen", self._valid(sample, box))
                code.store(self.count, self.count[0] + chosen, number(0))
            self._append(sample, box, chosen)
        self._drain()

    def _valid(self, sample: Value, box: Value) -> Value:
        return replaced(self.terms.valid, self.terms.places(sample, box)).astype("int32")

    def _add(self, sample: Value, first: Value, chosen: Callable[[Value], Value] | None) -> None:
        """Sum up neighbours, those that are chosen."""
        terms = self.terms
        staged = []
        for index, row in enumerate(self.rows):
            staged.append(self._transposed(f"row{index}", self._neighbours(row, sample, first)))

        def places(lane: Value) -> Places:
            return terms.places(sample, first + lane)

        self._accumulate(staged, places, chosen)

    def _neighbours(self, row: Row, sample: Value, first: Value) -> list[Value]:
        """Vectors of four neighbours each, as :meth:`_transposed` takes them."""
        terms, quarters = self.terms, []
        for quarter in range(CORNERS):
            box = first + quarter * _QUARTERS
            if is_texture(row.tensor.scope()):
                texels = [row.at(terms.places(sample, box + i)) for i in range(_QUARTERS)]
                quarters.append(self._joined([texel.read() for texel in texels]))
            else:
                first_row = row.at(terms.places(sample, box))
                quarters.append(self.code.name("quarter", first_row.read(LANES)))
        return quarters

    # -- the list -------------------------------------------------------------------------

    def _append(self, sample: Value, box: Value, chosen: Value | None) -> None:
        """Let a box wait if it is chosen, 1 or 0; without a list, sum it up at once."""
        code, terms = self.code, self.terms
        if self.rows:
            last = self.waiting[0]
            code.store(self.samples, sample, last)
            code.store(self.boxes, box, last)
            code.store(self.waiting, last + (1 if chosen is None else chosen), number(0))
            return

        def add() -> None:
            term = replaced(terms.term, terms.places(sample, box))
            code.store(self.sums, self.sums[0] + named(code, term), number(0))

        if chosen is None:
            add()
        else:
            with code.when(chosen != 0):
                add()

    def _drain(self) -> None:
        """Sum up a vector of what waits, where there is one."""
        if not self.rows:
            return
        code, second = self.code, tirx.Ramp(number(LANES), number(1), LANES)
        with code.when(self.waiting[0] >= LANES):
            self._add_waiting(None)
            for entries in (self.samples, self.boxes):
                code.store(entries, tirx.BufferLoad(entries, [second]), _ALL)
            code.store(self.waiting, self.waiting[0] - LANES, number(0))

    def finish(self) -> None:
        """Sum up what still waits."""
        if not self.rows:
            return
        code = self.code
        with code.when(self.waiting[0] > 0):
            # Lanes without a box compute that of the first, for nothing.
            with code.loop("lane", LANES - self.waiting[0]) as lane:
                for entries in (self.samples, self.boxes):
                    code.store(entries, entries[0], self.waiting[0] + lane)
            self._add_waiting(lambda lane: lane < self.waiting[0])

    def _add_waiting(self, chosen: Callable[[Value], Value] | None) -> None:
        """Sum up the first vector of the list."""
        terms = self.terms

        def places(lane: Value) -> Places:
            return terms.places(self.samples[lane], self.boxes[lane])

        staged = []
        for index, row in enumerate(self.rows):
            rows = [row.at(places(number(lane))).read() for lane in range(LANES)]
            quarters = [self._joined(rows[quarter::_QUARTERS]) for quarter in range(_QUARTERS)]
            staged.append(self._transposed(f"row{index}", quarters))
        self._accumulate(staged, places, chosen)

    def total(self) -> Value:
        """The sum of the lanes, pair by pair."""
        lanes: list[Value] = [self.sums[lane] for lane in range(LANES)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    # -- vectors --------------------------------------------------------------------------

    def _joined(self, rows: Sequence[Value]) -> Value:
        """A vector of four rows."""
        rows = [self.code.name("row", row) for row in rows]
        return self.code.name("quarter", _shuffle(rows, range(LANES)))

    def _transposed(self, name: str, quarters: Sequence[Value]) -> Buffer:
        """Numbers of rows, ``[4, 16]``, of four vectors of rows.

        Lane ``4 i + k`` is of row ``i`` of vector ``k``.
        """
        code, starts = self.code, range(0, LANES, CORNERS)
        low = [lane for q in starts for lane in (q, LANES + q, q + 1, LANES + q + 1)]
        high = [lane + 2 for lane in low]
        first = [lane for q in starts for lane in (q, q + 1, LANES + q, LANES + q + 1)]
        last = [lane + 2 for lane in first]
        a, b, c, d = quarters
        pairs = {
            half: [code.name("pair", _shuffle(two, lanes)) for two in ((a, b), (c, d))]
            for half, lanes in (("low", low), ("high", high))
        }
        staged = code.alloc(name, (CORNERS, LANES), "float32")
        for corner in range(CORNERS):
            two = pairs["low" if corner < 2 else "high"]
            code.store(staged, _shuffle(two, last if corner % 2 else first), number(corner), _ALL)
        return staged

    def _accumulate(
        self,
        staged: Sequence[Buffer],
        places: Callable[[Value], Places],
        chosen: Callable[[Value], Value] | None,
    ) -> None:
        """Add terms to the sums, lane by lane."""
        code = self.code
        with code.loop("lane", LANES, ForKind.VECTORIZED) as lane:
            term = with_rows(
                self.terms.term, self.rows, lambda row, corner: staged[row][corner, lane]
            )
            value = named(code, replaced(term, places(lane)))
            if chosen is not None:
                value = tirx.Select(chosen(lane), value, tirx.const(0, "float32"))
            code.store(self.sums, self.sums[lane] + value, lane)


def _splat(value: Value) -> Value:
    return tirx.Broadcast(value, LANES)


def _shuffle(vectors: Sequence[Value], lanes: Sequence[int]) -> Value:
    return tirx.Shuffle(list(vectors), [number(lane) for lane in lanes])
