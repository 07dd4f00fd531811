"""Define the operator BoxDecode, which turns a detector's offsets from anchors into boxes.

As in the papers of Faster R-CNN and SSD, a detector's head returns for each anchor the offset of
the box's centre, in widths and heights of the anchor, and the logarithm of the ratio of sizes::

    centre = (x1 + x2) / 2 + dx * (x2 - x1)          of the anchor x1 y1 x2 y2
    size   = (x2 - x1) * exp(min(dw, limit))         and the same for y

    deltas [..., N, 4] (dx dy dw dh), anchors [N, 4] (x1 y1 x2 y2)  ->  boxes [..., N, 4]

Inverted anchors are computed as they are; NaN in an offset or an anchor gives NaN in the
coordinates that depend on it.
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from tvm import te, tirx

from ..errors import ShapeError
from ..ir.operator import Arrays, Attributes, Operand, Operator, Tensors, Types
from ..ir.tensors import TensorType
from ..schedules import boxes

_DTYPES = ("float32", "float16")

#: The default limit of implementations of Faster R-CNN, which keeps exp from overflowing.
_ATTRIBUTES = {"limit": log(1000 / 16)}


# -- its types ----------------------------------------------------------------------------


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the type of one box for each row of offsets."""
    deltas, anchors = types
    if len(deltas.shape) < 2 or anchors.shape != deltas.shape[-2:] or deltas.shape[-1] != 4:
        raise ShapeError(
            f"BoxDecode is given deltas {list(deltas.shape)} and anchors {list(anchors.shape)}, "
            "expected [..., N, 4] and [N, 4].",
            remedy="Give four offsets and one anchor for each box.",
        )
    if anchors.dtype != deltas.dtype:
        raise ShapeError(
            f"BoxDecode is given deltas {deltas} and anchors {anchors}, expected one dtype.",
            remedy="Convert the anchors to the dtype of the deltas.",
        )
    return (deltas,)


def _infer_gradient(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the type of one gradient for each offset."""
    (boxes,) = _infer(types[:2], attributes)
    if types[2] != boxes:
        raise ShapeError(
            f"BoxDecodeGrad is given grad_boxes {types[2]}, expected those of the boxes, {boxes}.",
            remedy="Give the gradient of BoxDecode's result.",
        )
    return (boxes,)


# -- what it computes ---------------------------------------------------------------------


def _wide(tensor: te.Tensor) -> Any:
    """Return a function that reads elements in fp32, whatever they are stored in."""
    return lambda *index: tensor(*index).astype("float32")


def _compute(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    """Compute each coordinate; those of one direction are two lanes apart."""
    deltas, anchors = tensors
    delta, anchor, limit = _wide(deltas), _wide(anchors), attributes["limit"]

    def coordinate(*index: tirx.Var) -> tirx.Expr:
        *box, lane = index
        low, high = lane % 2, lane % 2 + 2
        size = anchor(box[-1], high) - anchor(box[-1], low)
        centre = (anchor(box[-1], low) + anchor(box[-1], high)) * 0.5 + delta(*box, low) * size
        # A comparison keeps NaN, which is not greater.
        ratio = tirx.Select(delta(*box, high) > limit, limit, delta(*box, high))
        side = tirx.Select(lane < 2, tirx.const(-0.5, "float32"), tirx.const(0.5, "float32"))
        return (centre + size * te.exp(ratio) * side).astype(deltas.dtype)

    return [boxes.compute(deltas.shape, coordinate, "box_decode", whole=True)]


def _compute_gradient(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    """Compute the gradient: the centre moves both corners, and the size moves them apart."""
    deltas, anchors, grad_boxes = tensors
    delta, anchor, grad = _wide(deltas), _wide(anchors), _wide(grad_boxes)
    limit = attributes["limit"]

    def offset(*index: tirx.Var) -> tirx.Expr:
        *box, lane = index
        low, high = lane % 2, lane % 2 + 2
        size = anchor(box[-1], high) - anchor(box[-1], low)
        ratio = delta(*box, high)
        moved = size * (grad(*box, low) + grad(*box, high))
        apart = size * te.exp(ratio) * 0.5 * (grad(*box, high) - grad(*box, low))
        grown = tirx.Select(ratio > limit, tirx.const(0, "float32"), apart)
        return tirx.Select(lane < 2, moved, grown).astype(deltas.dtype)

    return [boxes.compute(deltas.shape, offset, "box_decode_grad", whole=True)]


# -- its reference ------------------------------------------------------------------------


def _reference(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    deltas, anchors = arrays
    size = anchors[:, 2:] - anchors[:, :2]
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2 + deltas[..., :2] * size
    half = size * np.exp(np.minimum(deltas[..., 2:], attributes["limit"])) / 2
    return [np.concatenate([centre - half, centre + half], -1)]


def _reference_gradient(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    deltas, anchors, grad = arrays
    size, ratio = anchors[:, 2:] - anchors[:, :2], deltas[..., 2:]
    moved = size * (grad[..., :2] + grad[..., 2:])
    apart = size * np.exp(ratio) / 2 * (grad[..., 2:] - grad[..., :2])
    return [np.concatenate([moved, np.where(ratio > attributes["limit"], 0, apart)], -1)]


_BOXES = ("B, N, 4", "N, 4")
_INPUTS = (
    Operand("deltas", _DTYPES, shapes=_BOXES),
    Operand("anchors", _DTYPES, shapes=_BOXES[1:]),
)

BOX_DECODE_GRAD = Operator(
    "BoxDecodeGrad",
    "Gradient of BoxDecode's offsets; anchors are constants.",
    (*_INPUTS, Operand("grad_boxes", _DTYPES, shapes=_BOXES)),
    (Operand("grad_deltas", _DTYPES),),
    _infer_gradient, _compute_gradient, _reference_gradient, _ATTRIBUTES,
)  # fmt: skip

BOX_DECODE = Operator(
    "BoxDecode",
    "Boxes x1 y1 x2 y2 from a detector's offsets of centre and size, and anchors.",
    _INPUTS, (Operand("boxes", _DTYPES),), _infer, _compute, _reference, _ATTRIBUTES,
    BOX_DECODE_GRAD,
)  # fmt: skip

#: Operators of this file in `tvmflow.ops.OPERATORS`.
OPERATORS = (BOX_DECODE, BOX_DECODE_GRAD)
