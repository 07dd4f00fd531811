"""Converters of classification losses.

For scores ``[N, C, d...]`` and labels ``[N, d...]``, the loss of an element is minus the logarithm
of its label's probability, times the label's weight; labels of ``ignore_index`` have weight zero.
The mean divides by the sum of the weights.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant
from ..converter import InvalidNode, NodeContext, converts


@converts("NegativeLogLikelihoodLoss")
def negative_log_likelihood(c: NodeContext) -> relax.Expr:
    """Compute the loss for logarithms of probabilities."""
    return _loss(c, c.input())


@converts("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(c: NodeContext) -> list[relax.Expr]:
    """Compute the loss for scores, and the logarithms of their probabilities."""
    logarithms = c.emit(R.nn.log_softmax(c.input(), 1))
    return [_loss(c, logarithms), logarithms]


def _loss(c: NodeContext, logarithms: relax.Expr) -> relax.Expr:
    reduction = c.attribute("reduction", "mean")
    if reduction not in ("mean", "sum", "none"):
        raise InvalidNode(f"its reduction {reduction!r} is unknown")
    classes, dtype = c.shape()[1], c.dtype(1)
    labels, ignored = c.input(1), c.attribute("ignore_index")
    zero = c.constant(0)
    counts = None
    if ignored is not None:
        counts = R.not_equal(labels, constant(np.array(ignored, dtype)))
    # Ignored labels may be out of range, so labels are clamped to the classes.
    last = constant(np.array(classes - 1, dtype))
    places = R.maximum(R.minimum(labels, last), constant(np.array(0, dtype)))
    places = c.emit(R.astype(places, "int64"))

    loss = R.squeeze(R.gather_elements(logarithms, R.expand_dims(places, 1), 1), [1])
    loss = R.negative(loss) if counts is None else R.where(counts, R.negative(loss), zero)
    weights = R.take(c.input(2), places, 0, "clip") if c.has(2) else None
    if counts is not None:
        weights = R.where(counts, c.constant(1) if weights is None else weights, zero)
    if weights is not None:
        loss = loss * weights
    if reduction == "none":
        return loss
    if reduction == "sum":
        return R.sum(loss)
    if weights is None:
        return R.mean(loss)
    # Axes are kept, as TVM folds a constant divisor and rejects a division by a scalar zero.
    mean = c.emit(R.sum(loss, keepdims=True) / R.sum(weights, keepdims=True))
    return R.reshape(mean, ())
