"""Converters of selections at run time: compaction of marked elements, and of boxes.

These operators are not ONNX's; :mod:`..dynamic` builds NonZero, Compress and NonMaxSuppression from
them.  Their results have static extents, with zeros after the selected elements.
"""

from __future__ import annotations

from tvm import relax

from ...schedules import compaction, nms
from ..converter import NodeContext, call_unfused, converts


@converts("Compaction")
def compact(c: NodeContext) -> list[relax.Expr]:
    """Return the int32 positions of nonzero elements of an int32 vector, and their number."""
    most = c.required("most")
    call = call_unfused(c.builder, "compaction", compaction.compute, c.input(), most)
    return [relax.TupleGetItem(call, index) for index in range(2)]


@converts("BoxSelection")
def select_boxes(c: NodeContext) -> list[relax.Expr]:
    """Return boxes ``[B * C, stored]`` that do not overlap, and their numbers ``[B * C]``."""
    call = call_unfused(
        c.builder, "nms", nms.compute, c.inputs(), c.required("stored"),
        centered=bool(c.required("centered")), has_threshold=bool(c.required("has_threshold")),
    )  # fmt: skip
    return [relax.TupleGetItem(call, index) for index in range(3)]
