"""Samples of pictures at computed positions, which stay in the layout of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from ....schedules import grid_sample
from .result import INJECTIVE, Result, Rule

if TYPE_CHECKING:
    from ..layout import LayoutPass


def grid_sample_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Bilinear and nearest samples of pictures, blocked or plain."""
    (x, grid), attrs = call.args, call.attrs
    methods, modes = ("bilinear", "nearest"), ("zeros", "border")
    if attrs.layout != "NCHW" or str(call.ty.dtype) != "float32":
        return None
    if attrs.method not in methods or attrs.padding_mode not in modes:
        return None
    is_blocked = layout.is_blocked(x)
    expr = layout.bb.emit_te(
        grid_sample.compute,
        layout.blocked(x) if is_blocked else layout.substitute(x),
        layout.substitute(grid),
        method=str(attrs.method),
        padding_mode=str(attrs.padding_mode),
        align_corners=bool(attrs.align_corners),
        primfunc_name_hint="grid_sample",
        # Positions are computed where they are used: in 16 bits they would lie beside their pixel.
        primfunc_attrs={"op_pattern": INJECTIVE},
    )
    return Result(expr, is_blocked)


RULES: dict[str, Rule] = {"relax.image.grid_sample": grid_sample_rule}
