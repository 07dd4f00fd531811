"""A mean over valid boxes on a GPU: an item a box, and trees in local memory.

Neighbouring items take neighbouring boxes, a row of four numbers as one load.  An item sums up
its boxes, a group its items' sums by a tree of eights, in an order that is always the same.

What is done about boxes that are not valid is the knob ``skip``:

``none``
    All are read and computed, and those that are not valid are dropped.
``element``
    Each item asks for its box first.  Items of a warp may part ways.
``warp``
    32 items take neighbours of one sample, and skip together what lies behind its limit.
``list``
    A group lists the valid boxes among its own, by a prefix sum in local memory, and its items
    take them from the list: only the last ones of a list leave items idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx

from .masked_terms import Row, Terms, named, replaced, rows_of, with_rows
from .partial_sums import radices
from .statements import Buffer, Statements, Value, number

#: Items that run in step, on NVIDIA's GPUs.
WARP = 32


class Group:
    """Statements of one work-group.

    Parameters
    ----------
    code
        Where they are written, inside of the loops over groups and items.
    group, item, groups, items
        Which group and item this is, and how many there are.
    shared
        Where its local memory is noted.
    """

    def __init__(
        self,
        code: Statements,
        group: Value,
        item: Value,
        groups: int,
        items: int,
        shared: list[Buffer],
    ):
        self.code, self.group, self.item = code, group, item
        self.groups, self.items = groups, items
        self.shared = shared
        self.sums = self._share("group_sums", "float32", items)
        self.numbers = self._share("group_numbers", "int32", items)
        self.sum = code.alloc("item_sum", (1,), "float32")
        self.number = code.alloc("item_number", (1,), "int32")
        code.store(self.sum, tirx.const(0, "float32"), number(0))
        code.store(self.number, number(0), number(0))

    def _share(self, name: str, dtype: str, extent: int) -> Buffer:
        buffer = tirx.decl_buffer((extent,), dtype, name, scope="shared")
        self.shared.append(buffer)
        return buffer

    def add(self, value: Value, count: Value) -> None:
        """Add to this item's sum and number."""
        self.code.store(self.sum, self.sum[0] + value, number(0))
        self.code.store(self.number, self.number[0] + count, number(0))

    def reduce(self) -> tuple[Value, Value]:
        """The group's sum and number, for its first item."""
        code, item = self.code, self.item
        pairs = ((self.sums, self.sum), (self.numbers, self.number))
        for shared, mine in pairs:
            code.store(shared, mine[0], item)
        left = self.items
        for radix in radices(self.items):
            code.barrier()
            left //= radix
            # Nobody reads what another one writes here: below ``left``, each its own.
            with code.when(item < left):
                for shared, _ in pairs:
                    total = shared[item]
                    for part in range(1, radix):
                        total = total + shared[item + part * left]
                    code.store(shared, total, item)
        return self.sums[0], self.numbers[0]

    # -- boxes ----------------------------------------------------------------------------

    def add_boxes(self, terms: Terms, skip: str, boxes: int) -> None:
        """Sum up this group's boxes; items take so many in a step."""
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
                        self._add_box(_Box.at(terms, self.code, place), tested=skip == "element")

    def _steps(self, total: Value, step: int) -> Any:
        """A loop over this group's share of a range; gives the first of a step."""
        code, code_loop = self.code, self.code.loop
        steps = tirx.truncdiv(total + (self.groups * step - 1), self.groups * step)
        return _Mapped(
            code_loop("step", steps),
            lambda var: code.name("first", (var * self.groups + self.group) * step),
        )

    def _add_box(self, box: _Box, tested: bool) -> None:
        """Sum up one box, with or without a test before it is read."""
        valid = box.valid()
        if tested:
            with self.code.when(valid):
                self.add(box.term(), number(1))
            return
        zero = tirx.const(0, "float32")
        valid = self.code.name("valid", valid.astype("int32"))
        self.add(tirx.Select(valid != 0, box.term(), zero), valid)

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
                        # The last tile's items beyond the limit compute its last box, for nothing.
                        last = code.name("box", tirx.Min(place, limit - 1))
                        term = _Box(terms, code, sample, last).term()
                        zero = tirx.const(0, "float32")
                        self.add(
                            tirx.Select(place < limit, term, zero), (place < limit).astype("int32")
                        )

    def _add_listed(self, terms: Terms, total: Value, boxes: int) -> None:
        """Sum up valid boxes from lists."""
        code, item, tile = self.code, self.item, self.items * boxes
        found = self._share("listed", "int32", tile)
        ends = [self._share(f"ends{i}", "int32", self.items) for i in range(2)]
        with self._steps(total, tile) as first:
            chosen = code.alloc("chosen", (boxes,), "int32")
            mine: Value = number(0)
            for part in range(boxes):
                code.store(chosen, number(0), number(part))
                place = code.name("place", first + part * self.items + item)
                with code.when(place < total):
                    valid = _Box.at(terms, code, place).valid()
                    code.store(chosen, valid.astype("int32"), number(part))
                mine = mine + chosen[part]
            mine = code.name("mine", mine)
            end, listed = self._prefix_sum(mine, ends)
            at = code.alloc("at", (1,), "int32")
            code.store(at, end - mine, number(0))
            for part in range(boxes):
                with code.when(chosen[part] != 0):
                    code.store(found, part * self.items + item, at[0])
                    code.store(at, at[0] + 1, number(0))
            code.barrier()
            with code.loop("turn", tirx.truncdiv(listed + (self.items - 1), self.items)) as turn:
                entry = code.name("entry", turn * self.items + item)
                with code.when(entry < listed):
                    place = code.name("place", first + found[entry])
                    self.add(_Box.at(terms, code, place).term(), number(1))
            # Before the list of the next step is written.
            code.barrier()

    def _prefix_sum(self, value: Value, buffers: Sequence[Buffer]) -> tuple[Value, Value]:
        """Sums of this item's value and those of all items before it, and of all items.

        By doubling steps, after Hillis and Steele (Data parallel algorithms, 1986).
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


class _Mapped:
    """A ``with`` block whose value goes through a function first."""

    def __init__(self, inner: Any, function: Any):
        self.inner, self.function = inner, function

    def __enter__(self) -> Any:
        return self.function(self.inner.__enter__())

    def __exit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)


class _Box:
    """A box, whose rows are read when they are needed, and once."""

    def __init__(self, terms: Terms, code: Statements, sample: Value, box: Value):
        self.terms, self.code = terms, code
        self.places = terms.places(sample, box)
        self.read: list[tuple[Row, Value]] = []

    @classmethod
    def at(cls, terms: Terms, code: Statements, place: Value) -> _Box:
        """The box at a place of ``[samples, boxes]``, in one dimension."""
        sample = code.name("sample", tirx.truncdiv(place, terms.boxes))
        box = code.name("box", tirx.truncmod(place, terms.boxes))
        return cls(terms, code, sample, box)

    def valid(self) -> Value:
        """Whether it is valid."""
        return self._computed(self.terms.valid)

    def term(self) -> Value:
        """Its term."""
        return named(self.code, self._computed(self.terms.term))

    def _computed(self, expression: Value) -> Value:
        rows = rows_of(expression)
        for row in rows:
            if not any(self._same(row, known) for known, _ in self.read):
                texel = self.code.name("box", row.at(self.places).read())
                self.read.append((row, texel))
        known = [row for row, _ in self.read]

        def number_of(row: int, corner: int) -> Value:
            return tirx.Shuffle([self.read[row][1]], [number(corner)])

        return replaced(with_rows(expression, known, number_of), self.places)

    @staticmethod
    def _same(one: Row, other: Row) -> bool:
        return one.tensor.same_as(other.tensor) and all(
            tvm_ffi.structural_equal(a, b) for a, b in zip(one.place, other.place, strict=True)
        )
