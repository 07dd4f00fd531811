"""The loss of a batch of boxes: the mean of GIoU over those that count, 0 where none does.

    loss = sum of GIoU over valid boxes / max(valid, 1)        valid = their number, int32

:mod:`.validity` says which boxes count.  What the others hold (NaN, infinity) reaches nothing,
and their gradients are 0.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ..errors import ShapeError
from ..ir.operator import Arrays, Attributes, Operand, Operator, Tensors, Types
from ..ir.tensors import TensorType
from ..schedules import boxes
from ..schedules.boxes import masked_mean
from . import giou_reference
from .giou import ATTRIBUTES, BOXES, FLOATS
from .giou_terms import giou_of, gradients_of
from .names import lane_of
from .validity import FORMS, Batch, check_forms, check_pair, check_values


def _check(operator: str, types: Types) -> None:
    pred, target, *forms = types[:5]
    check_forms(operator, pred, forms)
    check_pair(operator, pred, target, packed=forms[-1] is not None)


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Two numbers."""
    _check("GIoULoss", types)
    return TensorType((), types[0].dtype), TensorType((), "int32")


def _infer_gradient(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """A number for each coordinate."""
    _check("GIoULossGrad", types)
    pred, target, *_, valid, grad = types
    if valid.shape or grad != TensorType((), pred.dtype):
        raise ShapeError(
            f"GIoULossGrad is given pred {pred}, valid {valid} and grad_loss {grad}, expected two "
            "scalars, the second of the dtype of pred.",
            remedy="Give the second result of GIoULoss, and the gradient of its first.",
        )
    return pred, target


# -- what it computes ---------------------------------------------------------------------


def _compute(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    batch, epsilon = Batch(*tensors), attributes["epsilon"]

    def box(sample: tirx.IterVar, place: tirx.IterVar) -> list[tirx.Var]:
        return [sample.var, place.var][-len(batch.boxes) :]

    def term(*index: tirx.IterVar) -> tirx.Expr:
        return giou_of(batch.predicted(box(*index)), batch.wanted(box(*index)), epsilon)

    samples = [1, *batch.boxes][-2:]
    return list(
        masked_mean.compute(term, lambda *i: batch.valid(box(*i)), samples, batch.pred.dtype)
    )


def _compute_gradient(tensors: Tensors, attributes: Attributes) -> list[te.Tensor]:
    *forms, valid, grad = tensors
    batch, epsilon = Batch(*forms), attributes["epsilon"]
    at_least_one = tirx.Max(valid(), tirx.const(1, "int32")).astype("float32")
    weight = grad().astype("float32") / at_least_one

    def coordinate(box: tuple[tirx.Expr, ...], lane: tirx.Var, of: int) -> tirx.Expr:
        names, all_lanes = gradients_of(batch.predicted(box), batch.wanted(box), epsilon)
        factor = names.name("weight", weight)
        lanes = [factor * value for value in all_lanes[of : of + 4]]
        value, none = names.close(lane_of(lanes, lane)), tirx.const(0, "float32")
        return tirx.if_then_else(batch.valid(box), value, none).astype(batch.pred.dtype)

    def gradient(of: int, name: str) -> te.Tensor:
        return boxes.compute(
            batch.pred.shape, lambda *i: coordinate(i[:-1], i[-1], of), name, whole=True
        )

    by_pred, by_target = gradient(0, "grad_pred"), gradient(4, "grad_target")
    if batch.offsets is not None:
        place = te.compute(batch.boxes, lambda *box: batch.row(box), name="row")
        by_target = boxes.compute_rows(by_target, place, batch.target.shape[0], "grad_rows")
    return [by_pred, by_target]


# -- what it is compared with -------------------------------------------------------------


def _pairs(arrays: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions and targets ``[B, M, 4]``, and which count; the others are boxes of 0."""
    pred, target, count, mask, offsets = arrays
    if pred.ndim == 2:
        pred, mask = pred[None], None if mask is None else mask[None]
        target = target if offsets is not None else target[None]
    valid = giou_reference.valid_boxes(pred.shape[:2], target, count, mask, offsets)
    if offsets is not None:
        target = giou_reference.padded(target, offsets, pred.shape[1])
    chosen = valid[..., None]
    return np.where(chosen, pred, 0), np.where(chosen, target, 0), valid


def _reference(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    pred, target, valid = _pairs(arrays)
    total = np.sum(giou_reference.giou(pred, target, attributes["epsilon"]), where=valid)
    return [total / max(valid.sum(), 1), valid.sum()]


def _reference_gradient(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    *forms, count, grad = arrays
    pred, target, valid = _pairs(forms)
    weights = np.where(valid, grad / max(int(count), 1), 0)
    by_pred, by_target = (
        np.where(valid[..., None], g, 0)
        for g in giou_reference.giou_gradients(pred, target, weights, attributes["epsilon"])
    )
    packed, offsets = forms[1], forms[4]
    if offsets is None:
        return [by_pred.reshape(forms[0].shape), by_target.reshape(packed.shape)]
    rows = np.zeros(packed.shape)
    begin, _ = giou_reference.bounds(offsets, len(packed))
    samples, boxes = np.nonzero(valid)
    rows[begin[samples] + boxes] = by_target[samples, boxes]
    return [by_pred.reshape(forms[0].shape), rows]


_INPUTS = (
    Operand("pred", FLOATS, shapes=BOXES),
    Operand("target", FLOATS, shapes=("B, M, 4", "P, 4")),
    *FORMS,
)

GIOU_LOSS_GRAD = Operator(
    "GIoULossGrad",
    "Gradients of GIoULoss by the coordinates of both boxes.",
    (
        *_INPUTS,
        Operand("valid", ("int32",), shapes=("",)),
        Operand("grad_loss", FLOATS, shapes=("",)),
    ),
    (Operand("grad_pred", FLOATS), Operand("grad_target", FLOATS)),
    _infer_gradient, _compute_gradient, _reference_gradient, ATTRIBUTES,
    check=lambda arrays, attributes: check_values("GIoULossGrad", arrays),
)  # fmt: skip

GIOU_LOSS = Operator(
    "GIoULoss",
    "Mean of GIoU over the boxes that count, and their number.",
    _INPUTS, (Operand("loss", FLOATS), Operand("valid", ("int32",))),
    _infer, _compute, _reference, ATTRIBUTES, GIOU_LOSS_GRAD,
    check=lambda arrays, attributes: check_values("GIoULoss", arrays),
)  # fmt: skip

#: What this file adds to `tvmflow.ops.OPERATORS`.
OPERATORS = (GIOU_LOSS, GIOU_LOSS_GRAD)
