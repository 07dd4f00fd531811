"""FaceBoxNet, a network that regresses face bounding boxes from a grey image, and its loss."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ._graph import GraphBuilder

_LEVELS = 4


def facebox_net(
    *, size: int = 256, boxes: int = 256, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """FaceBoxNet: four convolution levels and two fully connected layers.

    Level i (0 to 3) is a 3×3 'same' convolution from 4^i to 4^(i+1) channels, a 2×2
    maximum pool and ReLU.  The S/16 × S/16 × 256 result is flattened to S·S values, then
    fully connected to S·S/4 units with ReLU, and to boxes·4 coordinates, which are
    reshaped to (batch, boxes, 4).  The first fully connected weight is stored as
    (S·S, S·S/4): 65536 × 16384 at the default size, 4.3 GB.

    Raises ``ValueError`` if ``size`` is not a multiple of 16.
    """
    if size % 2**_LEVELS or size <= 0:
        raise ValueError(f"FaceBoxNet halves its image {_LEVELS} times: size must be a positive "
                         f"multiple of {2**_LEVELS}, got {size}.")  # fmt: skip
    g = GraphBuilder("facebox_net", seed)
    x = g.input("image", (batch, 1, size, size))
    for level in range(_LEVELS):
        name = f"level{level}"
        x = g.conv(x, name, (4**level, 4 ** (level + 1)), 3, bias=True)
        x = g.node("MaxPool", x, name=f"{name}/MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        x = g.node("Relu", x, name=f"{name}/Relu")
    flat, hidden = size * size, size * size // 4
    x = g.node("Flatten", x, name="Flatten", axis=1)
    x = g.node("Gemm", x, g.he("fc1.weight", (flat, hidden), flat),
               g.normal("fc1.bias", (hidden,), 0.1), name="fc1/Gemm")  # fmt: skip
    x = g.node("Relu", x, name="fc1/Relu")
    x = g.node("Gemm", x, g.normal("fc2.weight", (hidden, boxes * 4), sqrt(1.0 / hidden)),
               g.normal("fc2.bias", (boxes * 4,), 0.1), name="fc2/Gemm")  # fmt: skip
    shape = g.constant("boxes.shape", [batch, boxes, 4], int)
    g.node("Reshape", x, shape, name="boxes/Reshape", result="boxes")
    g.output("boxes", (batch, boxes, 4))
    return g


def facebox_loss(
    *, size: int = 256, boxes: int = 256, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """FaceBoxNet with its loss: 1 - GIoU, the mean over the faces that there are.

    Inputs are ``image``, ``target`` (batch, boxes, 4), the faces x1 y1 x2 y2 of each image, and
    ``count`` (batch), their numbers; outputs ``boxes``, ``loss`` and ``grad_boxes``, the gradient
    of the loss at the boxes, which a training step takes from there.

    Raises ``ValueError`` if ``size`` is not a multiple of 16.
    """
    g = facebox_net(size=size, boxes=boxes, batch=batch, seed=seed)
    g.name = "facebox_loss"
    shape = (batch, boxes, 4)
    pairs = ("boxes", g.input("target", shape), g.input("count", (batch,), np.int32))
    g.custom("GIoULoss", *pairs, results=("giou", "valid"))
    g.node("Sub", g.constant("one", 1.0), "giou", name="loss/Sub", result="loss")
    g.output("loss", ())
    weight = g.constant("minus_one", -1.0)
    g.custom("GIoULossGrad", *pairs, "", "", "valid", weight, results=("grad_boxes",))
    g.output("grad_boxes", shape)
    return g
