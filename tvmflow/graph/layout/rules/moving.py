"""Operators that move elements: concat, slices, padding, gathers, channel shuffles.

:func:`rearrange` defines a blocked tensor by the plain indices (n, channel, y, x) of its
elements, :func:`element` reads a tensor at plain indices, whichever form it has.  What
becomes of ``channel // c`` and ``channel % c`` is left to TVM's simplifier: where channels
stay in their lanes, whole vectors are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tvm import ir, relax, sym, te, tirx

from ....ir.blocked import blocked_shape
from ....ir.rewriter import constant_array, ints, op_name, shape_of
from . import INJECTIVE, Later, Result, Rule

if TYPE_CHECKING:
    from ..layout import LayoutPass

#: An element of a tensor at an index of each of four axes.
Value = Callable[..., "tirx.Expr"]
Index: TypeAlias = "tirx.Expr | int"


def _moved(
    layout: LayoutPass, name: str, compute: Callable[..., te.Tensor], *tensors: relax.Expr
) -> Result:
    """The blocked result of a function of ``tensors`` that moves their elements."""
    return Result(layout.emit(name, compute, *tensors, pattern=INJECTIVE), True)


def element(x: te.Tensor, n: Index, channel: Index, y: Index, v: Index) -> tirx.Expr:
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


# -- slices and the like --------------------------------------------------------------------


def concat_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Concatenation along any axis; parts that exist only in the plain layout are read there."""
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    shape = shape_of(call)
    if len(shape) != 4 or not any(layout.is_blocked(part) for part in parts):
        return None
    axis = int(call.attrs.axis) % 4
    sources = [
        layout.blocked(part) if layout.is_blocked(part) else layout.substitute(part)
        for part in parts
    ]
    extents = [shape_of(part)[axis] for part in parts]
    return _moved(
        layout,
        "concat",
        lambda *tensors: concat(tensors, extents, axis, shape, layout.block),
        *sources,
    )


def concat(parts: Sequence[te.Tensor], extents: list[int], axis: int, shape: Sequence[int],
           block: int) -> te.Tensor:  # fmt: skip
    """``parts``, whose plain extents along ``axis`` are given, one after the other."""
    begins = np.cumsum([0, *extents[:-1]]).tolist()

    def value(*index: Index) -> tirx.Expr:
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


def slice_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Slices and parts of a split, with steps."""
    x = call.args[0]
    if not layout.is_blocked(x):
        return None
    begins, steps = [0] * 4, [1] * 4
    given = [list(ints(arg)) for arg in call.args[1:]]
    strides = given[3] if len(given) > 3 else [1] * len(given[0])
    for axis, begin, step in zip(given[0], given[1], strides, strict=True):
        extent = shape_of(x)[axis]
        if step < 1:
            return None
        begins[axis] = min(max(begin + extent if begin < 0 else begin, 0), extent)
        steps[axis] = step
    shape = shape_of(call)
    return _moved(
        layout, "slice", lambda t: strided_slice(t, begins, steps, shape), layout.blocked(x)
    )


def strided_slice(
    x: te.Tensor, begins: list[int], steps: list[int], shape: Sequence[int]
) -> te.Tensor:
    """``x[begin + i * step]`` along each axis, for a result of plain ``shape``."""
    block = int(x.shape[4])

    def value(*index: Index) -> tirx.Expr:
        places = [b + i * s for b, i, s in zip(begins, index, steps, strict=True)]
        return element(x, *places)

    guarded = begins[1] % block != 0 or steps[1] != 1
    return rearrange(shape, block, str(x.dtype), value, "slice", guarded=guarded)


def pad_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Padding with a constant, of any axis."""
    x = call.args[0]
    if not layout.is_blocked(x) or str(call.attrs.pad_mode) != "constant":
        return None
    widths, value = ints(call.attrs.pad_width), float(call.attrs.pad_value)
    channels = shape_of(x)[1]
    return _moved(layout, "pad", lambda t: pad(t, channels, widths, value), layout.blocked(x))


def pad(x: te.Tensor, channels: int, widths: Sequence[int], fill: float) -> te.Tensor:
    """``x`` of so many channels, with ``widths`` before and after each axis in turn."""
    n, _, height, width, block = (int(d) for d in x.shape)
    extents = [n, channels, height, width]
    before = widths[::2]
    shape = [b + e + a for b, e, a in zip(before, extents, widths[1::2], strict=True)]

    def value(*index: Index) -> tirx.Expr:
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


def take_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Elements of an axis at constant places: reflection, repetition of edges, any resize."""
    x, places = call.args[0], constant_array(call.args[1])
    if places is None or places.ndim != 1 or call.attrs.axis is None or not layout.is_blocked(x):
        return None
    axis, shape = int(call.attrs.axis) % 4, shape_of(call)
    # The mode "clip", which relax is asked for everywhere, and the front end checks negative ones.
    places = places.clip(0, shape_of(x)[axis] - 1).astype(np.int32)
    tables = [] if place_formula(places) is not None else [layout.constant(places)]
    return _moved(
        layout,
        "take",
        lambda t, *table: take(t, axis, shape, places, *table),
        layout.blocked(x),
        *tables,
    )


def take(x: te.Tensor, axis: int, shape: Sequence[int], places: np.ndarray,
         table: te.Tensor | None = None) -> te.Tensor:  # fmt: skip
    """Elements of an axis at ``places``: by formula where there is one, else from ``table``."""
    block = int(x.shape[4])
    formula = place_formula(places)

    def value(*index: Index) -> tirx.Expr:
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


def _index(value: tirx.Expr) -> tirx.Expr:
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

    def back(self, index: list[Index]) -> list[Index]:
        """Indices of the source for indices of the result."""
        if self.kind == "permute":
            return [index[self.axes.index(axis)] for axis in range(len(index))]
        if self.kind == "broadcast":
            tail = index[len(index) - len(self.source) :]
            return [0 if e == 1 else i for i, e in zip(tail, self.source, strict=True)]
        return _reshaped(index, self.result, self.source)


def _reshaped(index: list[Index], result: Sequence[int], source: Sequence[int]) -> list[Index]:
    """Indices of a reshape's source, worked out for runs of axes with equal products."""
    places: list[Index] = []
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
        flat: Index = 0
        for axis in range(first_j, j):
            flat = flat * result[axis] + index[axis]
        run: list[Index] = []
        for axis in reversed(range(first_i, i)):
            if axis == first_i:
                run.insert(0, flat)
            else:
                run.insert(0, tirx.floormod(flat, source[axis]) if source[axis] > 1 else 0)
                flat = tirx.floordiv(flat, source[axis])
        places += run
    return places


def view_rule(layout: LayoutPass, call: relax.Call) -> Result | Later | None:
    """A chain of reshapes, permutations and broadcasts from a picture to a picture.

    Channel shuffles, and moves between channels and space.  The steps between are only
    computed where something else reads them.
    """
    chain = _chain(layout, call)
    if chain is None:
        return None
    source, steps = chain
    through = max(len(step.result) for step in steps[:-1]) if len(steps) > 1 else 4
    last = steps[-1]
    keeps_channels = last.kind == "permute" and last.axes[1] == 1
    to_picture = len(last.result) == 4 and last.result[1] > 1
    if to_picture and (keeps_channels or (through > 4 and last.kind == "reshape")):
        return _moved(layout, "view", lambda t: view(t, steps), layout.blocked(source))
    return Later.LATER


def _chain(layout: LayoutPass, call: relax.Call) -> tuple[relax.Expr, list[Step]] | None:
    """The blocked picture that a view starts from, and the steps from there."""
    steps: list[Step] = []
    value: relax.Expr = call
    while op_name(value) in _VIEWS:
        source = value.args[0]
        steps.insert(0, _step(value, shape_of(source)))
        if layout.is_blocked(source):
            return source, steps
        value = layout.definitions.get(source, source)
    return None


def _step(call: relax.Call, source: tuple[int, ...]) -> Step:
    result = shape_of(call)
    name = op_name(call)
    if name == "relax.permute_dims":
        axes = call.attrs.axes
        turned = ints(axes) if axes is not None else tuple(reversed(range(len(source))))
        return Step("permute", source, result, tuple(a % len(source) for a in turned))
    return Step("broadcast" if name == "relax.broadcast_to" else "reshape", source, result)


def view(x: te.Tensor, steps: list[Step]) -> te.Tensor:
    """The picture that ``steps`` make of the picture ``x``."""
    shape, block = steps[-1].result, int(x.shape[4])

    def value(*index: Index) -> tirx.Expr:
        places = list(index)
        for step in reversed(steps):
            places = step.back(places)
        return element(x, *places)

    return rearrange(shape, block, str(x.dtype), value, "view", guarded=True)


_VIEWS = ("relax.reshape", "relax.permute_dims", "relax.broadcast_to")

RULES: dict[str, Rule] = {
    "relax.concat": concat_rule,
    "relax.strided_slice": slice_rule,
    "relax.nn.pad": pad_rule,
    "relax.take": take_rule,
    **dict.fromkeys(_VIEWS, view_rule),
}
