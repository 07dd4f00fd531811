"""Operators that move elements, on blocked tensors, as TE.

:func:`rearrange` defines a blocked tensor by the plain indices (n, channel, y, x) of its
elements, :func:`element` reads a tensor at plain indices, whichever form it has.  What
becomes of ``channel // c`` and ``channel % c`` is left to TVM's simplifier: where channels
stay in their lanes, whole vectors are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, sym, te, tirx

from ...ir.blocked import blocked_shape

#: An expression: TVM's classes are none for mypy.
Index = Any
Value = Callable[[Index, Index, Index, Index], Any]


def element(x: te.Tensor, n: Index, channel: Index, y: Index, v: Index) -> Any:
    """An element of a plain or a blocked tensor."""
    if len(x.shape) == 4:
        return x[n, channel, y, v]
    block = int(x.shape[4])
    return x[n, tirx.floordiv(channel, block), y, v, tirx.floormod(channel, block)]


def rearrange(
    shape: Sequence[int], block: int, dtype: str, value: Value, name: str, *, guarded: bool
) -> te.Tensor:
    """The blocked tensor of a plain ``shape`` with elements ``value(n, channel, y, x)``.

    ``guarded`` writes zeros into the padding lanes; without it ``value`` must be defined for
    them too.
    """
    channels = shape[1]

    def body(n, kk, y, v, k):  # type: ignore[no-untyped-def]
        channel = kk * block + k
        result = value(n, channel, y, v)
        if guarded and channels % block:
            result = tirx.if_then_else(channel < channels, result, tirx.const(0, dtype))
        analyzer = sym.Analyzer()
        for var, extent in zip((n, kk, y, v, k), blocked_shape(tuple(shape), block), strict=True):
            analyzer.bind(var, ir.Range(0, extent))
        return analyzer.simplify(result)

    return te.compute(blocked_shape(tuple(shape), block), body, name=name)


# -- operators ----------------------------------------------------------------------------


def concat(parts: Sequence[te.Tensor], extents: list[int], axis: int, shape: Sequence[int],
           block: int) -> te.Tensor:  # fmt: skip
    """``parts``, whose plain extents along ``axis`` are given, one after the other."""
    begins = np.cumsum([0, *extents[:-1]]).tolist()

    def value(*index: Index) -> Any:
        result = None
        for part, begin, extent in reversed(list(zip(parts, begins, extents, strict=True))):
            place = list(index)
            place[axis] = index[axis] - begin
            taken = element(part, *place)
            here = index[axis] < begin + extent
            result = taken if result is None else tirx.if_then_else(here, taken, result)
        return result

    aligned = axis != 1 or all(begin % block == 0 for begin in begins)
    guarded = not aligned or any(len(part.shape) == 4 for part in parts)
    return rearrange(shape, block, str(parts[0].dtype), value, "concat", guarded=guarded)


def strided_slice(
    x: te.Tensor, begins: list[int], steps: list[int], shape: Sequence[int]
) -> te.Tensor:
    """``x[begin + i * step]`` along each axis, for a result of plain ``shape``."""
    block = int(x.shape[4])

    def value(*index: Index) -> Any:
        places = [b + i * s for b, i, s in zip(begins, index, steps, strict=True)]
        return element(x, *places)

    guarded = begins[1] % block != 0 or steps[1] != 1
    return rearrange(shape, block, str(x.dtype), value, "slice", guarded=guarded)


def pad(x: te.Tensor, channels: int, widths: Sequence[int], fill: float) -> te.Tensor:
    """``x`` of so many channels, with ``widths`` before and after each axis in turn."""
    n, _, height, width, block = (int(d) for d in x.shape)
    extents = [n, channels, height, width]
    before = widths[::2]
    shape = [b + e + a for b, e, a in zip(before, extents, widths[1::2], strict=True)]

    def value(*index: Index) -> Any:
        inside, places = [], []
        for i, b, extent, whole in zip(index, before, extents, shape, strict=True):
            places.append(i - b)
            if b:
                inside.append(i >= b)
            if b + extent < whole:
                inside.append(i < b + extent)
        taken = element(x, *places)
        if not inside:
            return taken
        return tirx.if_then_else(tirx.all(*inside), taken, tirx.const(fill, x.dtype))

    guarded = shape[1] != channels
    return rearrange(shape, block, str(x.dtype), value, "pad", guarded=guarded)


def take(x: te.Tensor, axis: int, shape: Sequence[int], places: np.ndarray,
         table: te.Tensor | None = None) -> te.Tensor:  # fmt: skip
    """Elements of an axis at ``places``: by formula where there is one, else from ``table``."""
    block = int(x.shape[4])
    formula = place_formula(places)

    def value(*index: Index) -> Any:
        source = list(index)
        # Padding lanes have no place: they take the last one.
        at = index[axis] if axis != 1 else tirx.min(index[axis], len(places) - 1)
        if formula is not None:
            source[axis] = formula(at)
        else:
            assert table is not None
            source[axis] = _index(table[at])
        return element(x, *source)

    return rearrange(shape, block, str(x.dtype), value, "take", guarded=axis == 1)


def _index(value: Any) -> Any:
    """A number from a table as an index: fused functions count in int64."""
    return tirx.Cast("int64", value)


def place_formula(places: np.ndarray, most: int = 3) -> Callable[[Index], Index] | None:
    """``places[i]`` as an expression of ``i``: a few straight pieces or a division, or ``None``."""
    count = len(places)
    repeats = int(np.count_nonzero(places == places[0]))
    if (places == np.arange(count) // repeats + places[0]).all():
        return lambda i: tirx.floordiv(i, repeats) + int(places[0])
    pieces: list[tuple[int, int, int]] = []
    start = 0
    while start < count:
        step = int(places[start + 1] - places[start]) if start + 1 < count else 0
        end = start + 1
        while end < count and places[end] - places[end - 1] == step:
            end += 1
        pieces.append((end, int(places[start]) - step * start, step))
        start = end
    if len(pieces) > most:
        return None

    def formula(i: Index) -> Index:
        _, base, step = pieces[-1]
        result = base + i * step
        for end, base, step in reversed(pieces[:-1]):
            result = tirx.if_then_else(i < end, base + i * step, result)
        return result

    return formula


# -- views: reshapes and permutations that lead back to pictures ---------------------------


@dataclass(frozen=True)
class Step:
    """A reshape, a permutation (with ``axes``) or a broadcast between two shapes."""

    kind: str
    source: tuple[int, ...]
    result: tuple[int, ...]
    axes: tuple[int, ...] = ()

    def back(self, index: list[Any]) -> list[Any]:
        """Indices of the source for indices of the result."""
        if self.kind == "permute":
            source = [None] * len(index)
            for place, axis in enumerate(self.axes):
                source[axis] = index[place]
            return source
        if self.kind == "broadcast":
            tail = index[len(index) - len(self.source) :]
            return [0 if e == 1 else i for i, e in zip(tail, self.source, strict=True)]
        return _reshaped(index, self.result, self.source)


def _reshaped(index: list[Any], result: Sequence[int], source: Sequence[int]) -> list[Any]:
    """Indices of a reshape's source, worked out for runs of axes with equal products."""
    places: list[Any] = []
    i = j = 0
    while i < len(source):
        first_i, first_j = i, j
        wanted, product = source[i], 1
        i += 1
        while wanted != product:
            if product < wanted:
                product *= result[j]
                j += 1
            else:
                wanted *= source[i]
                i += 1
        flat: Any = 0
        for axis in range(first_j, j):
            flat = flat * result[axis] + index[axis]
        run: list[Any] = []
        for axis in reversed(range(first_i, i)):
            if axis == first_i:
                run.insert(0, flat)
            else:
                run.insert(0, tirx.floormod(flat, source[axis]) if source[axis] > 1 else 0)
                flat = tirx.floordiv(flat, source[axis])
        places += run
    return places


def view(x: te.Tensor, steps: list[Step]) -> te.Tensor:
    """The picture that ``steps`` make of the picture ``x``."""
    shape, block = steps[-1].result, int(x.shape[4])

    def value(*index: Index) -> Any:
        places = list(index)
        for step in reversed(steps):
            places = step.back(places)
        return element(x, *places)

    return rearrange(shape, block, str(x.dtype), value, "view", guarded=True)


# -- broadcasting -------------------------------------------------------------------------


def one_channel(x: te.Tensor) -> te.Tensor:
    """A picture of one channel as ``[N, 1, H, W, 1]``, which broadcasts over blocks and lanes."""
    n, _, height, width = (int(d) for d in x.shape[:4])
    return te.compute(
        (n, 1, height, width, 1), lambda i, _k, y, v, _o: element(x, i, 0, y, v), name="one_channel"
    )


def choose(
    compare: Callable[[Any, Any], Any], shape: Sequence[int], *operands: te.Tensor
) -> te.Tensor:
    """``c if compare(a, b) else d`` for four operands that broadcast to ``shape``."""

    def at(x: te.Tensor, index: tuple[Index, ...]) -> Any:
        if not x.shape:
            return x()
        tail = index[len(index) - len(x.shape) :]
        return x[tuple(0 if int(e) == 1 else i for i, e in zip(tail, x.shape, strict=True))]

    def body(*index: Index) -> Any:
        a, b, c, d = (at(x, index) for x in operands)
        return tirx.Select(compare(a, b), c, d)

    return te.compute(shape, body, name="choose")
