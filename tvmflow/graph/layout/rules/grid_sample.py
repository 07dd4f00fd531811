"""Rule for samples of pictures at computed positions, in the layout of the picture."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax

from ....ir.expressions import INJECTIVE, REDUCTION
from ....ir.rewriter import shape_of
from ....schedules import grid_sample
from ..layout import LayoutPass, Result, rule


@rule("relax.image.grid_sample", grid_sample.OPERATOR)
def grid_sample_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite bilinear and nearest samples at positions from -1 to 1, or at given taps."""
    (x, grid, *taps), attrs = call.args, call.attrs
    options: dict[str, Any]
    if taps:
        options = {"taps": grid_sample.Taps.of(*taps)}
    else:
        methods, modes = ("bilinear", "nearest"), ("zeros", "border")
        options = {"method": str(attrs.method), "padding_mode": str(attrs.padding_mode),
                   "align_corners": bool(attrs.align_corners)}  # fmt: skip
        if attrs.layout != "NCHW" or attrs.method not in methods or attrs.padding_mode not in modes:
            return None
    if len(shape_of(call)) != 4 or str(call.ty.dtype) != "float32":
        return None
    # Positions are computed where they are used: in 16 bits they would miss their pixel.  With
    # REDUCTION, only preceding operators are fused: a concatenation would fuse several samples to
    # one function, which no family schedules.
    pattern = INJECTIVE if taps or layout.half else REDUCTION
    expr = layout.emit(
        "grid_sample", partial(grid_sample.compute, **options), layout.existing(x),
        layout.substitute(grid), pattern=pattern,
    )  # fmt: skip
    return Result(expr, layout.is_blocked(x))
