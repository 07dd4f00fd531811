"""The loss of face boxes as PyTorch's users write it, in the steps that make it faster.

All give the mean of GIoU over the valid boxes of a batch; `giou.py` measures them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPSILON = 1e-5


def giou(pred: Tensor, target: Tensor) -> Tensor:
    """GIoU of pairs of boxes ``[..., 4]``, in fp32."""
    pred, target = pred.float(), target.float()

    def area(low: Tensor, high: Tensor) -> Tensor:
        side = (high - low).clamp(min=0)
        return side[..., 0] * side[..., 1]

    p1, p2, t1, t2 = pred[..., :2], pred[..., 2:], target[..., :2], target[..., 2:]
    inter = area(torch.maximum(p1, t1), torch.minimum(p2, t2))
    union = area(p1, p2) + area(t1, t2) - inter
    around = area(torch.minimum(p1, t1), torch.maximum(p2, t2))
    return inter / (union + EPSILON) - (around - union) / (around + EPSILON)


def by_loop(pred: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """Sample by sample: many small kernels."""
    total, number = pred.new_zeros(()), 0
    for boxes, target in zip(pred, targets, strict=True):
        total = total + giou(boxes[: len(target)], target).sum()
        number += len(target)
    return total / max(number, 1)


def by_concatenation(pred: Tensor, packed: Tensor, counts: Sequence[int]) -> Tensor:
    """The valid boxes of all samples one behind the other."""
    own = torch.cat([boxes[:count] for boxes, count in zip(pred, counts, strict=True)])
    return giou(own, packed).sum() / max(len(packed), 1)


def by_padding(pred: Tensor, target: Tensor, count: Tensor) -> Tensor:
    """All boxes, those that are not valid masked."""
    valid = torch.arange(pred.shape[1], device=pred.device) < count[:, None]
    total = torch.where(valid, giou(pred, target), 0).sum()
    return total / valid.sum().clamp(min=1)
