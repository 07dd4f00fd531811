"""Rules for operators that move elements: concat, slices, padding, gathers, channel shuffles.

:func:`rearrange` defines a blocked tensor by the plain indices (n, channel, y, x) of its
elements; :func:`element` reads a plain or blocked tensor at plain indices.  TVM's simplifier
reduces ``channel // c`` and ``channel % c``: if channels stay in their lanes, whole vectors are
moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from tvm import ir, relax, sym, te, tirx

from ....ir.blocked import blocked_shape
from ....ir.expressions import INJECTIVE
from ....ir.rewriter import constant_array, ints, op_name, shape_of
from ..layout import RULES, Later, LayoutPass, Result, rule

#: A function from an index for each of four axes to an element.
Value = Callable[..., "tirx.Expr"]
Index: TypeAlias = "tirx.Expr | int"


def element(x: te.Tensor, n: Index, channel: Index, y: Index, v: Index) -> tirx.Expr:
    """Return an element of a plain or blocked tensor."""
    if len(x.shape) == 4:
        return x[n, channel, y, v]
    block = int(x.shape[4])
    return x[n, tirx.floordiv(channel, block), y, v, tirx.floormod(channel, block)]


def rearrange(
    shape: Sequence[int], block: int, dtype: str, value: Value, name: str, *, guarded: bool
) -> te.Tensor:
    """Return the blocked tensor of a plain ``shape`` with elements ``value(n, channel, y, x)``.

    With ``guarded``, padding lanes are zeros; without it ``value`` must be defined for them too.
    """
    channels, extents = shape[1], blocked_shape(tuple(shape), block)

    def body(n, kk, y, v, k):  # type: ignore[no-untyped-def]
        channel = kk * block + k
        result = value(n, channel, y, v)
        if guarded and channels % block:
            result = tirx.if_then_else(channel < channels, result, tirx.const(0, dtype))
        analyzer = sym.Analyzer()
        for var, extent in zip((n, kk, y, v, k), extents, strict=True):
            analyzer.bind(var, ir.Range(0, extent))
        return analyzer.simplify(result)

    return te.compute(extents, body, name=name)


def _moved(
    layout: LayoutPass,
    call: relax.Call,
    name: str,
    value: Callable[..., tirx.Expr],
    *tensors: relax.Expr,
    guarded: bool,
) -> Result:
    """Emit a blocked tensor for a call, with elements ``value(index, *tensors)``."""
    shape, dtype = shape_of(call), str(call.ty.dtype)

    def compute(*sources: te.Tensor) -> te.Tensor:
        def at(*index: Index) -> tirx.Expr:
            return value(list(index), *sources)

        return rearrange(shape, layout.block, dtype, at, name, guarded=guarded)

    return layout.emit_blocked(name, compute, *tensors, pattern=INJECTIVE)


@rule("relax.concat")
def concat_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite concatenations along any axis; parts that are only plain are read as plain."""
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    plain = [not layout.is_blocked(part) for part in parts]
    if len(shape_of(call)) != 4 or all(plain):
        return None
    axis = int(call.attrs.axis) % 4
    begins = np.cumsum([0, *(shape_of(part)[axis] for part in parts)]).tolist()

    def value(index: list[Index], *sources: te.Tensor) -> tirx.Expr:
        result = None
        for source, begin, end in reversed(list(zip(sources, begins, begins[1:], strict=False))):
            place = list(index)
            place[axis] = index[axis] - begin
            taken = element(source, *place)
            result = (
                taken if result is None else tirx.if_then_else(index[axis] < end, taken, result)
            )
        return result

    aligned = axis != 1 or all(begin % layout.block == 0 for begin in begins[:-1])
    sources = map(layout.existing, parts)
    return _moved(layout, call, "concat", value, *sources, guarded=not aligned or any(plain))


@rule("relax.strided_slice")
def slice_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite slices and parts of a split: ``x[begin + i * step]`` along each axis."""
    x = call.args[0]
    if not layout.is_blocked(x):
        return None
    begins, steps = [0] * 4, [1] * 4
    axes, starts, _, *strides = (ints(arg) for arg in call.args[1:])
    for axis, begin, step in zip(
        axes, starts, strides[0] if strides else [1] * len(axes), strict=True
    ):
        extent = shape_of(x)[axis]
        if step < 1:
            return None
        begins[axis] = min(max(begin + extent if begin < 0 else begin, 0), extent)
        steps[axis] = step

    def value(index: list[Index], t: te.Tensor) -> tirx.Expr:
        return element(t, *(b + i * s for b, i, s in zip(begins, index, steps, strict=True)))

    guarded = begins[1] % layout.block != 0 or steps[1] != 1
    return _moved(layout, call, "slice", value, layout.blocked(x), guarded=guarded)


@rule("relax.nn.pad")
def pad_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite padding with a constant, of any axis."""
    x, attrs = call.args[0], call.attrs
    if not layout.is_blocked(x) or str(attrs.pad_mode) != "constant":
        return None
    extents, before, shape = shape_of(x), ints(attrs.pad_width)[::2], shape_of(call)

    def value(index: list[Index], t: te.Tensor) -> tirx.Expr:
        inside, places = [], []
        for i, b, extent, whole in zip(index, before, extents, shape, strict=True):
            places.append(i - b)
            if b:
                inside.append(i >= b)
            if b + extent < whole:
                inside.append(i < b + extent)
        taken = element(t, *places)
        fill = tirx.const(float(attrs.pad_value), t.dtype)
        return tirx.if_then_else(tirx.all(*inside), taken, fill) if inside else taken

    guarded = shape[1] != extents[1]
    return _moved(layout, call, "pad", value, layout.blocked(x), guarded=guarded)


@rule("relax.take")
def take_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite gathers of an axis at constant places: reflection, repeated edges, any resize.

    The places are a formula if there is one, else a table.
    """
    x, places = call.args[0], constant_array(call.args[1])
    if places is None or places.ndim != 1 or call.attrs.axis is None or not layout.is_blocked(x):
        return None
    axis = int(call.attrs.axis) % 4
    # All imported gathers have the mode "clip", and the front end checks negative places.
    places = places.clip(0, shape_of(x)[axis] - 1).astype(np.int32)
    formula = place_formula(places)

    def value(index: list[Index], t: te.Tensor, *table: te.Tensor) -> tirx.Expr:
        # Padding lanes have no place of their own and read the last one.
        at = index[axis] if axis != 1 else tirx.min(index[axis], len(places) - 1)
        # Fused functions use int64 indices.
        index[axis] = formula(at) if formula else tirx.Cast("int64", table[0][at])
        return element(t, *index)

    tables = [] if formula else [layout.constant(places)]
    return _moved(layout, call, "take", value, layout.blocked(x), *tables, guarded=axis == 1)


def place_formula(places: np.ndarray) -> Callable[[Index], Index] | None:
    """Return ``places[i]`` as a formula of a few linear pieces or a division, or ``None``."""
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
    if len(pieces) > 3:
        return None

    def formula(i: Index) -> Index:
        _, base, step = pieces[-1]
        result = base + i * step
        for end, base, step in reversed(pieces[:-1]):
            result = tirx.if_then_else(i < end, base + i * step, result)
        return result

    return formula


# -- views: reshapes and permutations that lead back to pictures ---------------------------


def _back(call: relax.Call, index: list[Index]) -> list[Index]:
    """Return the indices of a view's source for indices of its result."""
    source, result = shape_of(call.args[0]), shape_of(call)
    if op_name(call) == "relax.permute_dims":
        return [index[_axes(call).index(axis)] for axis in range(len(index))]
    if op_name(call) == "relax.broadcast_to":
        tail = index[len(index) - len(source) :]
        return [0 if e == 1 else i for i, e in zip(tail, source, strict=True)]
    return _reshaped(index, result, source)


def _axes(call: relax.Call) -> list[int]:
    """Return a permutation's axes as non-negative axes of its source."""
    rank = len(shape_of(call))
    axes = range(rank)[::-1] if call.attrs.axes is None else ints(call.attrs.axes)
    return [axis % rank for axis in axes]


def _reshaped(index: list[Index], result: Sequence[int], source: Sequence[int]) -> list[Index]:
    """Return the indices of a reshape's source, computed for runs of axes with equal products."""
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


@rule("relax.reshape", "relax.permute_dims", "relax.broadcast_to")
def view_rule(layout: LayoutPass, call: relax.Call) -> Result | Later | None:
    """Rewrite a chain of reshapes, permutations and broadcasts from a picture to a picture.

    Examples are channel shuffles and moves between channels and space.  Intermediate views are only
    computed if something else reads them.
    """
    views: list[relax.Call] = []
    source: relax.Expr = call
    while not layout.is_blocked(source):
        value = layout.definitions.get(source, source)
        if RULES.get(op_name(value) or "") is not view_rule:
            return None
        source = value.args[0]
        views.insert(0, value)
    shape, name = shape_of(call), op_name(call)
    through = max((len(shape_of(view)) for view in views[:-1]), default=4)
    keeps_channels = name == "relax.permute_dims" and len(shape) > 1 and _axes(call)[1] == 1
    is_picture = len(shape) == 4 and shape[1] > 1
    if not is_picture or not (keeps_channels or (through > 4 and name == "relax.reshape")):
        return Later.LATER

    def element_of(index: list[Index], t: te.Tensor) -> tirx.Expr:
        for view in reversed(views):
            index = _back(view, index)
        return element(t, *index)

    return _moved(layout, call, "view", element_of, layout.blocked(source), guarded=True)
