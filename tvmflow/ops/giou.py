"""GIoU of boxes, box by box: how much two boxes have in common, 1 where they are the same.

    pred, target [B, M, 4] or [M, 4] (x1 y1 x2 y2)  ->  giou [B, M] or [M]

:mod:`.giou_terms` has the formula and its derivatives; :mod:`.giou_loss` is the mean of GIoU over
the boxes that count.  Numbers are fp32 inside, whatever they are stored in.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..errors import ShapeError
from ..ir.operator import Arrays, Attributes, Operand, Operator, Tensors, Types
from ..ir.tensors import TensorType
from ..schedules import boxes
from . import giou_reference
from .giou_terms import EPSILON, giou_of, gradients_of
from .names import lane_of
from .validity import Batch, check_pair

FLOATS = ("float32", "float16", "bfloat16")
BOXES = ("B, M, 4", "M, 4")
ATTRIBUTES = {"epsilon": EPSILON}


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """A number for each pair."""
    pred, target = types
    check_pair("GIoU", pred, target, packed=False)
    return (TensorType(pred.shape[:-1], pred.dtype),)


def _infer_gradient(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """A number for each coordinate."""
    pred, target, grad = types
    check_pair("GIoUGrad", pred, target, packed=False)
    if grad != TensorType(pred.shape[:-1], pred.dtype):
        raise ShapeError(
            f"GIoUGrad is given pred {pred} and grad_giou {grad}, expected a number of the same "
            "dtype for each box.",
            remedy="Give the gradient of GIoU's result.",
        )
    return pred, target


def _compute(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    batch, epsilon = Batch(*tensors), attributes["epsilon"]

    def one(*box: tirx.Var) -> tirx.Expr:
        value = giou_of(batch.predicted(box), batch.wanted(box), epsilon)
        return value.astype(batch.pred.dtype)

    return [boxes.compute(batch.boxes, one, "giou", whole=False)]


def _compute_gradient(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    pred, target, grad = tensors
    batch, epsilon = Batch(pred, target), attributes["epsilon"]

    def gradient(of: int, name: str) -> te.Tensor:
        def coordinate(*index: tirx.Var) -> tirx.Expr:
            *box, lane = index
            names, all_lanes = gradients_of(batch.predicted(box), batch.wanted(box), epsilon)
            weight = names.name("weight", grad(*box).astype("float32"))
            lanes = [weight * value for value in all_lanes[of : of + 4]]
            return names.close(lane_of(lanes, lane)).astype(pred.dtype)

        return boxes.compute(pred.shape, coordinate, name, whole=True)

    return [gradient(0, "grad_pred"), gradient(4, "grad_target")]


def _reference(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target = arrays
    return [giou_reference.giou(pred, target, attributes["epsilon"])]


def _reference_gradient(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target, grad = arrays
    return list(giou_reference.giou_gradients(pred, target, grad, attributes["epsilon"]))


_INPUTS = (Operand("pred", FLOATS, shapes=BOXES), Operand("target", FLOATS, shapes=BOXES))
_NUMBERS = ("B, M", "M")
_GRADIENTS = (Operand("grad_pred", FLOATS), Operand("grad_target", FLOATS))

GIOU_GRAD = Operator(
    "GIoUGrad",
    "Gradients of GIoU by the coordinates of both boxes.",
    (*_INPUTS, Operand("grad_giou", FLOATS, shapes=_NUMBERS)),
    _GRADIENTS,
    _infer_gradient, _compute_gradient, _reference_gradient, ATTRIBUTES,
)  # fmt: skip

GIOU = Operator(
    "GIoU",
    "Generalised intersection over union of pairs of boxes x1 y1 x2 y2.",
    _INPUTS, (Operand("giou", FLOATS),), _infer, _compute, _reference, ATTRIBUTES, GIOU_GRAD,
)  # fmt: skip

#: What this file adds to `tvmflow.ops.OPERATORS`.
OPERATORS = (GIOU, GIOU_GRAD)
