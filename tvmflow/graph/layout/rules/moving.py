"""Operators that move elements: concat, slices, padding, gathers, channel shuffles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from ....ir.rewriter import constant_array, op_name, shape_of
from .. import moves
from .result import Later, Result, Rule, emit_move, ints

if TYPE_CHECKING:
    from ..layout import LayoutPass


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
    return emit_move(
        layout,
        "concat",
        lambda *tensors: moves.concat(tensors, extents, axis, shape, layout.block),
        *sources,
    )


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
    return emit_move(
        layout, "slice", lambda t: moves.strided_slice(t, begins, steps, shape), layout.blocked(x)
    )


def pad_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Padding with a constant, of any axis."""
    x = call.args[0]
    if not layout.is_blocked(x) or str(call.attrs.pad_mode) != "constant":
        return None
    widths, value = ints(call.attrs.pad_width), float(call.attrs.pad_value)
    channels = shape_of(x)[1]
    return emit_move(
        layout, "pad", lambda t: moves.pad(t, channels, widths, value), layout.blocked(x)
    )


def take_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Elements of an axis at constant places: reflection, repetition of edges, any resize."""
    x, places = call.args[0], constant_array(call.args[1])
    if places is None or places.ndim != 1 or call.attrs.axis is None or not layout.is_blocked(x):
        return None
    axis, shape = int(call.attrs.axis) % 4, shape_of(call)
    # The mode "clip", which relax is asked for everywhere, and the front end checks negative ones.
    places = places.clip(0, shape_of(x)[axis] - 1).astype(np.int32)
    tables = [] if moves.place_formula(places) is not None else [layout.constant(places)]
    return emit_move(
        layout,
        "take",
        lambda t, *table: moves.take(t, axis, shape, places, *table),
        layout.blocked(x),
        *tables,
    )


# -- reshapes and permutations --------------------------------------------------------------


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
        return emit_move(layout, "view", lambda t: moves.view(t, steps), layout.blocked(source))
    return Later.LATER


def _chain(layout: LayoutPass, call: relax.Call) -> tuple[relax.Expr, list[moves.Step]] | None:
    """The blocked picture that a view starts from, and the steps from there."""
    steps: list[moves.Step] = []
    value: relax.Expr = call
    while op_name(value) in _VIEWS:
        source = value.args[0]
        steps.insert(0, _step(value, shape_of(source)))
        if layout.is_blocked(source):
            return source, steps
        value = layout.definitions.get(source, source)
    return None


def _step(call: relax.Call, source: tuple[int, ...]) -> moves.Step:
    result = shape_of(call)
    name = op_name(call)
    if name == "relax.permute_dims":
        axes = call.attrs.axes
        turned = ints(axes) if axes is not None else tuple(reversed(range(len(source))))
        return moves.Step("permute", source, result, tuple(a % len(source) for a in turned))
    return moves.Step("broadcast" if name == "relax.broadcast_to" else "reshape", source, result)


_VIEWS = ("relax.reshape", "relax.permute_dims", "relax.broadcast_to")

RULES: dict[str, Rule] = {
    "relax.concat": concat_rule,
    "relax.strided_slice": slice_rule,
    "relax.nn.pad": pad_rule,
    "relax.take": take_rule,
    **dict.fromkeys(_VIEWS, view_rule),
}
