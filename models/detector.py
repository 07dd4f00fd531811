"""A face detector with anchors on three levels of a feature pyramid, with random weights.

Deng et al. 2020, "RetinaFace: single-shot multi-level face localisation in the wild", on
MobileNetV1; Lin et al. 2017, "Feature pyramid networks for object detection".
"""

from __future__ import annotations

from ._graph import GraphBuilder
from .mobilenet import v1_blocks, v1_layer

#: Blocks of MobileNetV1 whose results are the levels, and the strides of these.
_LEVELS = {4: 8, 10: 16, 12: 32}
#: Anchors at each position of a map, and numbers of an anchor: four of a box, and its score.
_ANCHORS, _NUMBERS = 4, 5


def face_detector(
    *, width: float = 0.25, size: int = 320, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """FaceDetector: MobileNetV1 with a feature pyramid of three levels, and anchors on each.

    The levels have strides of 8, 16 and 32.  Each is a 1×1 convolution of the backbone's result,
    to 256·width channels, plus the level above, enlarged twofold, and then a 3×3 convolution.
    Its head is a 3×3 convolution to as many channels, and one to 4 anchors of 5 numbers each.
    Outputs are ``boxes`` (batch, anchors, 4) and ``scores`` (batch, anchors, 1), for the anchors
    of all levels.

    Raises ``ValueError`` if ``size`` is not a multiple of 32.
    """
    if size % max(_LEVELS.values()):
        raise ValueError(f"FaceDetector halves its image five times: size must be a multiple of "
                         f"{max(_LEVELS.values())}, got {size}.")  # fmt: skip
    g = GraphBuilder("face_detector", seed)
    image = g.input("input", (batch, 3, size, size))
    features = dict(enumerate(v1_blocks(g, image, width)))
    channels = max(8, int(256 * width))
    above, predicted = "", list[str]()
    for block, stride in reversed(_LEVELS.items()):
        x, inputs = features[block]
        x = v1_layer(g, x, f"lateral{stride}", (inputs, channels), 1)
        if above:
            x = g.node("Add", x, _enlarged(g, above, f"lateral{stride}"), name=f"add{stride}/Add")
        above = v1_layer(g, x, f"pyramid{stride}", (channels, channels), 3)
        predicted.insert(0, _head(g, above, f"head{stride}", channels, batch))
    x = g.node("Concat", *predicted, name="Concat", axis=1)
    anchors = _ANCHORS * sum((size // stride) ** 2 for stride in _LEVELS.values())
    _part(g, x, (0, 4), name="boxes/Slice", result="boxes")
    g.output("boxes", (batch, anchors, 4))
    score = _part(g, x, (4, 5), name="scores/Slice")
    g.node("Sigmoid", score, name="scores/Sigmoid", result="scores")
    g.output("scores", (batch, anchors, 1))
    return g


def _enlarged(g: GraphBuilder, x: str, name: str) -> str:
    """Enlarge a map twofold by repeating its elements."""
    scales = g.constant("twofold", [1.0, 1.0, 2.0, 2.0])
    return g.node(
        "Resize", x, "", scales, name=f"{name}/Resize", mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _head(g: GraphBuilder, x: str, name: str, channels: int, batch: int) -> str:
    """Predict the numbers of a level's anchors, as [batch, anchors, numbers]."""
    outputs = _ANCHORS * _NUMBERS
    x = v1_layer(g, x, f"{name}.hidden", (channels, channels), 3)
    x = g.conv(x, f"{name}.anchors", (channels, outputs), 3, bias=True, linear=True)
    x = g.node("Transpose", x, name=f"{name}/Transpose", perm=[0, 2, 3, 1])
    shape = g.constant("anchors.shape", [batch, -1, _NUMBERS], int)
    return g.node("Reshape", x, shape, name=f"{name}/Reshape")


def _part(g: GraphBuilder, x: str, ends: tuple[int, int], **named: str) -> str:
    """Slice the numbers of each anchor, from the first end to before the second."""
    starts, stops = (g.constant(f"number{end}", [end], int) for end in ends)
    return g.node("Slice", x, starts, stops, g.constant("last_axis", [2], int), **named)
