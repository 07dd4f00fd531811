"""Define the operators GIoU and GIoULoss, its mean over the valid boxes, and their gradients.

    pred, target [B, M, 4] or [M, 4] (x1 y1 x2 y2)  ->  giou [B, M] or [M], 1 for equal boxes

    loss = sum of GIoU over valid boxes / max(valid, 1)        valid = their number, int32

:mod:`.giou_terms` has the formula and its derivatives, :mod:`.validity` the forms of validity.
Values of other boxes (NaN, infinity) reach no result, and their gradients are 0.  Predictions and
targets may have different dtypes; arithmetic is in fp32, or in fp64 if both are fp64.  Results and
gradients have the dtype of the predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import te, tirx
from tvm.tirx import Expr

from ..errors import ShapeError
from ..ir.operator import Arrays, Attributes, Operand, Operator, Tensors, Types
from ..ir.tensors import TensorType
from ..schedules import boxes
from ..schedules.boxes import masked_mean
from . import giou_reference
from .giou_terms import EPSILON, giou_of, gradients_of
from .ragged import DTYPES
from .validity import FORMS, Batch, check_forms, check_pair, check_values

_FLOATS = ("float32", "float16", "bfloat16", "float64")
#: Dtypes to check derivatives with, on the host.
_HOST_ONLY = ("float64",)
_ATTRIBUTES = {"epsilon": EPSILON}


# -- their types --------------------------------------------------------------------------


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the type of a number for each pair."""
    pred, target = types
    check_pair("GIoU", pred, target, packed=False)
    return (TensorType(pred.shape[:-1], pred.dtype),)


def _infer_gradient(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the types of a number for each coordinate."""
    pred, target, grad = types
    check_pair("GIoUGrad", pred, target, packed=False)
    if grad != TensorType(pred.shape[:-1], pred.dtype):
        raise ShapeError(
            f"GIoUGrad is given pred {pred} and grad_giou {grad}, expected a number of the same "
            "dtype for each box.",
            remedy="Give the gradient of GIoU's result.",
        )
    return pred, TensorType(target.shape, pred.dtype)


def _check_batch(operator: str, types: Types) -> None:
    pred, target, *forms = types
    check_forms(operator, pred, forms)
    check_pair(operator, pred, target, packed=forms[-1] is not None)


def _infer_loss(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the types of two numbers."""
    _check_batch("GIoULoss", types)
    return TensorType((), types[0].dtype), TensorType((), "int32")


def _infer_loss_gradient(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the types of a number for each coordinate."""
    *batch, valid, grad = types
    _check_batch("GIoULossGrad", batch)
    pred, target = batch[:2]
    if valid.shape or grad != TensorType((), pred.dtype):
        raise ShapeError(
            f"GIoULossGrad is given pred {pred}, valid {valid} and grad_loss {grad}, expected two "
            "scalars, the second of the dtype of pred.",
            remedy="Give the second result of GIoULoss, and the gradient of its first.",
        )
    return pred, TensorType(target.shape, pred.dtype)


# -- what they compute --------------------------------------------------------------------


def _compute(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    batch = Batch(*tensors)

    def one(*box: tirx.Var) -> Expr:
        value = giou_of(batch.predicted(box), batch.wanted(box), attributes["epsilon"])
        return value.astype(batch.pred.dtype)

    return [boxes.compute(batch.boxes, one, "giou", whole=False)]


def _compute_gradient(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    pred, target, grad = tensors
    return _gradients(
        Batch(pred, target),
        attributes,
        lambda *box: grad(*box).astype(boxes.arithmetic(grad.dtype)),
        lambda box, value: value,
    )


def _compute_loss(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    batch = Batch(*tensors)

    def box(*index: tirx.IterVar) -> list[tirx.Var]:
        return [axis.var for axis in index][-len(batch.boxes) :]

    def term(*index: tirx.IterVar) -> Expr:
        at = box(*index)
        return giou_of(batch.predicted(at), batch.wanted(at), attributes["epsilon"])

    samples = [1, *batch.boxes][-2:]
    return list(
        masked_mean.compute(term, lambda *i: batch.valid(box(*i)), samples, batch.pred.dtype)
    )


def _compute_loss_gradient(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    *forms, valid, grad = tensors
    batch = Batch(*forms)
    dtype = boxes.arithmetic(grad.dtype)
    at_least_one = tirx.Max(valid(), tirx.const(1, "int32")).astype(dtype)
    weight = grad().astype(dtype) / at_least_one
    by_pred, by_target = _gradients(
        batch,
        attributes,
        lambda *box: weight,
        lambda box, value: tirx.if_then_else(batch.valid(box), value, tirx.const(0, dtype)),
    )
    if batch.offsets is not None:
        place = te.compute(batch.boxes, lambda *box: batch.row(box), name="row")
        by_target = boxes.compute_rows(by_target, place, batch.target.shape[0])
    return [by_pred, by_target]


def _gradients(
    batch: Batch,
    attributes: Attributes,
    weight: Callable[..., Expr],
    chosen: Callable[[list[Expr], Expr], Expr],
) -> list[te.Tensor]:
    """Return the weighted gradients by both boxes; ``chosen`` masks each coordinate."""

    def gradient(of: int, name: str) -> te.Tensor:
        def coordinate(*index: tirx.Var) -> Expr:
            *box, lane = index
            pair = batch.predicted(box), batch.wanted(box)
            names, by_corner = gradients_of(*pair, attributes["epsilon"])
            factor = names.name("weight", weight(*box))
            *others, value = (factor * by_corner[of + corner] for corner in range(4))
            for corner, other in reversed(list(enumerate(others))):
                value = tirx.Select(lane == corner, other, value)
            return chosen(box, names.close(value)).astype(batch.pred.dtype)

        return boxes.compute(batch.pred.shape, coordinate, name, whole=True)

    return [gradient(0, "grad_pred"), gradient(4, "grad_target")]


# -- their references ---------------------------------------------------------------------


def _reference(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target = arrays
    return [giou_reference.giou(pred, target, attributes["epsilon"])]


def _reference_gradient(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target, grad = arrays
    return list(giou_reference.giou_gradients(pred, target, grad, attributes["epsilon"]))


def _pairs(arrays: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions and targets ``[B, M, 4]``, 0 where not valid, and the valid boxes."""
    pred, target, count, mask, offsets = arrays
    if pred.ndim == 2:
        pred, mask = pred[None], None if mask is None else mask[None]
        target = target if offsets is not None else target[None]
    valid = giou_reference.valid_boxes(pred.shape[:2], target, count, mask, offsets)
    if offsets is not None:
        target = giou_reference.padded(target, offsets, pred.shape[1])
    chosen = valid[..., None]
    return np.where(chosen, pred, 0), np.where(chosen, target, 0), valid


def _reference_loss(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target, valid = _pairs(arrays)
    total = np.sum(giou_reference.giou(pred, target, attributes["epsilon"]), where=valid)
    return [total / max(valid.sum(), 1), valid.sum()]


def _reference_loss_gradient(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    *forms, count, grad = arrays
    pred, target, valid = _pairs(forms)
    weights = np.where(valid, grad / max(int(count), 1), 0)
    by_pred, by_target = (
        np.where(valid[..., None], g, 0)
        for g in giou_reference.giou_gradients(pred, target, weights, attributes["epsilon"])
    )
    packed, offsets = forms[1], forms[4]
    if offsets is not None:
        begin, _ = giou_reference.bounds(offsets, len(packed))
        samples, places = np.nonzero(valid)
        rows = np.zeros(packed.shape)
        rows[begin[samples] + places] = by_target[samples, places]
        by_target = rows
    return [by_pred.reshape(forms[0].shape), by_target.reshape(packed.shape)]


# -- the operators ------------------------------------------------------------------------

_BOXES = ("B, M, 4", "M, 4")
_PAIR = (Operand("pred", _FLOATS, shapes=_BOXES), Operand("target", DTYPES, shapes=_BOXES))
_BATCH = (_PAIR[0], Operand("target", DTYPES, shapes=("B, M, 4", "P, 4")), *FORMS)
_GRADIENTS = (Operand("grad_pred", _FLOATS), Operand("grad_target", _FLOATS))

GIOU_GRAD = Operator(
    "GIoUGrad",
    "Gradients of GIoU by the coordinates of both boxes.",
    (*_PAIR, Operand("grad_giou", _FLOATS, shapes=("B, M", "M"))), _GRADIENTS,
    _infer_gradient, _compute_gradient, _reference_gradient, _ATTRIBUTES,
    host_only=_HOST_ONLY,
)  # fmt: skip

GIOU = Operator(
    "GIoU",
    "Generalised intersection over union of pairs of boxes x1 y1 x2 y2.",
    _PAIR, (Operand("giou", _FLOATS),), _infer, _compute, _reference, _ATTRIBUTES, GIOU_GRAD,
    host_only=_HOST_ONLY,
)  # fmt: skip

_SCALARS = (
    Operand("valid", ("int32",), shapes=("",)),
    Operand("grad_loss", _FLOATS, shapes=("",)),
)

GIOU_LOSS_GRAD = Operator(
    "GIoULossGrad",
    "Gradients of GIoULoss by the coordinates of both boxes.",
    (*_BATCH, *_SCALARS), _GRADIENTS,
    _infer_loss_gradient, _compute_loss_gradient, _reference_loss_gradient, _ATTRIBUTES,
    check=lambda arrays, attributes: check_values("GIoULossGrad", arrays),
    host_only=_HOST_ONLY,
)  # fmt: skip

GIOU_LOSS = Operator(
    "GIoULoss",
    "Mean of GIoU over the valid boxes, and their number.",
    _BATCH, (Operand("loss", _FLOATS), Operand("valid", ("int32",))),
    _infer_loss, _compute_loss, _reference_loss, _ATTRIBUTES, GIOU_LOSS_GRAD,
    check=lambda arrays, attributes: check_values("GIoULoss", arrays),
    host_only=_HOST_ONLY,
)  # fmt: skip

#: Operators of this file in `tvmflow.ops.OPERATORS`.
OPERATORS = (GIOU, GIOU_GRAD, GIOU_LOSS, GIOU_LOSS_GRAD)
