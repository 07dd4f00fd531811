"""Padding and cropping around a centre."""

from __future__ import annotations

from typing import Literal

import numpy as np
from tvm import relax

from .context import NodeContext, Refusal, shape_of
from .registry import converts
from .shaping import normalized_axes, take_places, take_ranges

R = relax.op

#: ONNX's modes that repeat elements of the input; NumPy has the same names.
_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {
    "reflect": "reflect", "edge": "edge", "wrap": "wrap",
}  # fmt: skip


@converts("Pad")
def pad(c: NodeContext) -> relax.Expr:
    """Pad with a constant, or with elements of the input; negative padding crops."""
    shape = c.shape()
    before, after = _amounts(c, len(shape))
    mode = c.attribute("mode", "constant")
    if mode == "constant":
        return pad_constant(c, c.input(), before, after, _value(c))
    if mode not in _MODES:
        raise Refusal(f"its mode {mode!r} is unknown")
    x = c.input()
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low == high == 0:
            continue
        # Which element of the input stands at each place of the result is known now.
        source = np.pad(np.arange(shape[axis]), (max(low, 0), max(high, 0)), _MODES[mode])
        source = source[max(-low, 0) : source.size - max(-high, 0)]
        x = c.emit(take_places(x, source, axis))
    return x


def _amounts(c: NodeContext, rank: int) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis."""
    amounts = c.required("pads") if c.opset < 11 else c.array(1, "amounts of padding").tolist()
    pads = list(amounts)
    axes = list(range(rank))
    if c.has(3):
        axes = normalized_axes(c.array(3, "axes").tolist(), rank)
    if len(pads) != 2 * len(axes):
        raise Refusal(f"it has {len(pads)} amounts of padding for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[index]), int(pads[index + len(axes)])
    return before, after


def _value(c: NodeContext) -> float:
    if c.opset < 11:
        return float(c.attribute("value", 0.0))
    return c.array(2, "padding values").reshape(()).item() if c.has(2) else 0


def pad_constant(
    c: NodeContext, x: relax.Expr, before: list[int], after: list[int], value: float
) -> relax.Expr:
    """Crop where the padding is negative, then pad with a value."""
    shape = shape_of(x)
    crops = {
        axis: range(max(-low, 0), shape[axis] - max(-high, 0))
        for axis, (low, high) in enumerate(zip(before, after, strict=True))
        if low < 0 or high < 0
    }
    if crops:
        x = c.emit(take_ranges(c, x, crops))
    widths = []
    for low, high in zip(before, after, strict=True):
        widths += [max(low, 0), max(high, 0)]
    return R.nn.pad(x, widths, pad_value=value) if any(widths) else x


@converts("CenterCropPad")
def center_crop_pad(c: NodeContext) -> relax.Expr:
    """Crop or pad around the centre to a given shape."""
    before, after = [], []
    for size, wanted in zip(c.shape(), c.result.shape, strict=True):
        difference = wanted - size
        # A crop keeps the lower of two middles, padding puts an odd element at the end.
        low = difference // 2 if difference > 0 else -((-difference) // 2)
        before.append(low)
        after.append(difference - low)
    return pad_constant(c, c.input(), before, after, 0)
