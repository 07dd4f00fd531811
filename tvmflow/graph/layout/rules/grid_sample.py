"""Samples of pictures at computed positions, which stay in the layout of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from ....ir.rewriter import shape_of
from ....schedules import grid_sample
from . import INJECTIVE, Result, Rule

if TYPE_CHECKING:
    from ..layout import LayoutPass


def grid_sample_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Bilinear and nearest samples of pictures at positions from -1 to 1."""
    attrs = call.attrs
    methods, modes = ("bilinear", "nearest"), ("zeros", "border")
    if attrs.layout != "NCHW" or attrs.method not in methods or attrs.padding_mode not in modes:
        return None
    method, mode = str(attrs.method), str(attrs.padding_mode)
    return _emit(layout, call, method, mode, bool(attrs.align_corners))


def sample_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Bilinear samples at real indices."""
    return _emit(layout, call, "bilinear", "zeros", None)


def _emit(
    layout: LayoutPass, call: relax.Call, method: str, padding_mode: str, align_corners: bool | None
) -> Result | None:
    """The samples in the layout of the picture."""
    x, grid = call.args
    if len(shape_of(call)) != 4 or str(call.ty.dtype) != "float32":
        return None
    is_blocked = layout.is_blocked(x)
    expr = layout.bb.emit_te(
        grid_sample.compute,
        layout.blocked(x) if is_blocked else layout.substitute(x),
        layout.substitute(grid),
        method=method,
        padding_mode=padding_mode,
        align_corners=align_corners,
        primfunc_name_hint="grid_sample",
        # Positions are computed where they are used: in 16 bits they would lie beside their pixel.
        primfunc_attrs={"op_pattern": INJECTIVE},
    )
    return Result(expr, is_blocked)


RULES: dict[str, Rule] = {
    "relax.image.grid_sample": grid_sample_rule,
    grid_sample.OPERATOR: sample_rule,
}
