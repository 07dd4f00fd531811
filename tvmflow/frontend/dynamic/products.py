"""Rules for matrix products and RoiAlign."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..graph import node_attributes
from .rewriter import RunTimeSizes, rule
from .sizes import Size


@rule("MatMul", "Gemm")
def product(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep a matrix product; invalid elements become zeros if the sum is over a bounded axis."""
    a, b = node.input[:2]
    r.only(0, 1, *([2] if node.op_type == "Gemm" else []))
    left, right = r.bounded.get(a), r.bounded.get(b)
    attributes = node_attributes(node)
    ranks = len(r.shape(a)), len(r.shape(b))
    if node.op_type == "Gemm":
        inner = 0 if attributes.get("transA", 0) else 1, 1 if attributes.get("transB", 0) else 0
    else:
        inner = ranks[0] - 1, max(0, ranks[1] - 2)
    summed = [
        here is not None and here.axis == i for here, i in zip((left, right), inner, strict=True)
    ]
    if any(summed):
        if not all(summed) or left is None or right is None or left.size != right.size:
            raise r.refusal("its inputs need not have the same number of products in a sum")
        extent = min(r.shape(a)[inner[0]], r.shape(b)[inner[1]])
        fronts = {
            i: r.front(r.masked(name, 0), at, extent)
            for i, (name, at) in enumerate(zip((a, b), inner, strict=True))
        }
        if node.op_type == "Gemm" and r.has(2) and node.input[2] in r.bounded:
            raise r.refusal("its addend need not fit")
        r.keep(fronts)
        return
    addend = r.bounded.get(node.input[2]) if node.op_type == "Gemm" and r.has(2) else None
    if (left is not None and right is not None) or (left is None and right is None):
        raise r.refusal("several axes of its result have an unknown number of elements")
    r.keep()
    rank = len(r.shape(node.output[0]))
    if node.op_type == "Gemm":
        axis = 0 if left is not None else 1
    elif left is not None:
        # A vector on the right removes the last axis of the result.
        axis = rank - (ranks[0] - left.axis) + (ranks[1] == 1)
        if (
            ranks[0] - left.axis > 2
            and ranks[1] >= ranks[0] - left.axis
            and r.shape(b)[left.axis - ranks[0]] != 1
        ):
            raise r.refusal("its inputs need not have as many batches")
    else:
        assert right is not None
        axis = rank - (ranks[1] - right.axis) + (ranks[0] == 1 and right.axis < ranks[1] - 2)
        if (
            ranks[1] - right.axis > 2
            and ranks[0] >= ranks[1] - right.axis
            and r.shape(a)[right.axis - ranks[1]] != 1
        ):
            raise r.refusal("its inputs need not have as many batches")
    here = left if left is not None else right
    assert here is not None
    if node.op_type == "Gemm" and r.has(2):
        shape = r.shape(node.input[2])
        place = axis - 2
        if addend is not None and (addend.axis - len(shape), addend.size) != (place, here.size):
            raise r.refusal("its addend need not fit")
        if addend is None and len(shape) >= -place and shape[place] != 1:
            raise r.refusal("its addend need not fit")
    r.mark(node.output[0], axis, here.size)


@rule("RoiAlign")
def roi_align(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep RoiAlign on bounded boxes; invalid ones become empty boxes of the first image."""
    r.only(1, 2)
    boxes, images = node.input[1:3]
    _, size = _same_rows(r, [boxes, images])
    r.keep({1: r.masked(boxes, 0), 2: r.masked(images, 0)})
    r.mark(node.output[0], 0, size)


def _same_rows(r: RunTimeSizes, names: Sequence[str]) -> tuple[int, Size]:
    found = {(r.bounded[n].axis, r.bounded[n].size) if n in r.bounded else None for n in names}
    if len(found) != 1 or None in found:
        raise r.refusal("its inputs need not have as many elements")
    return next(pair for pair in found if pair is not None)
