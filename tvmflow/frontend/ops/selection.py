"""Converters of selections at run time: compaction of marked elements, and of boxes.

These operators are not ONNX's; :mod:`..dynamic` builds NonZero, Compress and NonMaxSuppression from
them.  Their results have static extents, with zeros after the selected elements.
"""

from __future__ import annotations

from tvm import relax

from ...ir.expressions import OPAQUE
from ...schedules import compaction, nms
from ..converter import NodeContext, converts

#: Attributes of their functions, which prevent fusion.
_ALONE = {"op_pattern": OPAQUE}


@converts("Compaction")
def compact(c: NodeContext) -> list[relax.Expr]:
    """Return the int32 positions of nonzero elements of an int32 vector, and their number."""
    call = c.builder.call_te(
        compaction.compute, c.input(), c.required("most"),
        primfunc_name_hint="compaction", primfunc_attrs=_ALONE,
    )  # fmt: skip
    return [relax.TupleGetItem(call, index) for index in range(2)]


@converts("BoxSelection")
def select_boxes(c: NodeContext) -> list[relax.Expr]:
    """Return boxes ``[B * C, stored]`` that do not overlap, and their numbers ``[B * C]``."""
    call = c.builder.call_te(
        nms.compute, c.inputs(), c.required("stored"),
        centered=bool(c.required("centered")), has_threshold=bool(c.required("has_threshold")),
        primfunc_name_hint="nms", primfunc_attrs=_ALONE,
    )  # fmt: skip
    return [relax.TupleGetItem(call, index) for index in range(3)]
