"""What selects elements at run time: compaction of marked ones, and boxes that do not overlap.

ONNX has none of these operators; :mod:`..dynamic` makes NonZero, Compress and NonMaxSuppression of
them.  Their results have static extents, and zeros behind what was found.
"""

from __future__ import annotations

from tvm import relax

from ...ir.expressions import OPAQUE
from ...schedules import compaction, nms
from ..converter import NodeContext, converts

#: Their own functions: fused with nothing.
_ALONE = {"op_pattern": OPAQUE}


@converts("Compaction")
def compact(c: NodeContext) -> list[relax.Expr]:
    """Return positions, int32, of elements other than zero of a list of int32, and their number."""
    call = c.builder.call_te(
        compaction.compute, c.input(), c.required("most"),
        primfunc_name_hint="compaction", primfunc_attrs=_ALONE,
    )  # fmt: skip
    return [relax.TupleGetItem(call, index) for index in range(2)]


@converts("BoxSelection")
def select_boxes(c: NodeContext) -> list[relax.Expr]:
    """Return boxes ``[B * C, stored]`` that do not overlap, and how many there are ``[B * C]``."""
    call = c.builder.call_te(
        nms.compute, c.inputs(), c.required("stored"),
        centered=bool(c.required("centered")), has_threshold=bool(c.required("has_threshold")),
        primfunc_name_hint="nms", primfunc_attrs=_ALONE,
    )  # fmt: skip
    return [relax.TupleGetItem(call, index) for index in range(3)]
