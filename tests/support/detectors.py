"""Detectors' last nodes, as exporters write them: from boxes and scores to detections."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

#: Constants shared by all of them.
_CONSTANTS = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "four": np.array([4]),
    "minus": np.array([-1]), "box": np.array(2), "image": np.array(0), "all": np.array([2**63 - 1]),
    "half": np.array(0.5, np.float32), "next": np.array(1, np.float32),
}  # fmt: skip


def _model(inputs, outputs, lines, constants) -> onnx.ModelProto:
    arrays = _CONSTANTS | {name: np.asarray(value) for name, value in constants.items()}
    text = "\n".join(lines)
    graph = parser.parse_graph(f"detector ({inputs}) => () {{ {text} }}")
    used = {name for node in graph.node for name in node.input}
    for name, array in arrays.items():
        if name in used:
            graph.initializer.append(numpy_helper.from_array(array, name))
    for node in graph.node:
        node.name = node.output[0]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def yolo(boxes: int = 63, classes: int = 5, most: int = 20, iou: float = 0.5) -> onnx.ModelProto:
    """Return YOLOv7's export: one tensor ``[2, 4 + classes, boxes]``, boxes as centre and size.

    A detection is image, four numbers, class and score.
    """
    lines = """
    rows = Transpose <perm = [0, 2, 1]> (prediction)
    boxes, scores = Split <axis = 2> (rows, parts)
    corners = MatMul (boxes, turn)
    by_class = Transpose <perm = [0, 2, 1]> (scores)
    selected = NonMaxSuppression (corners, by_class, most, iou, threshold)
    pair = Gather <axis = 1> (selected, image_and_box)
    taken = GatherND (corners, pair)
    triple = Gather <axis = 1> (selected, order)
    best = GatherND (scores, triple)
    column = Unsqueeze (best, one)
    kinds = Gather <axis = 1> (selected, class)
    images = Gather <axis = 1> (selected, image)
    kinds1 = Unsqueeze (kinds, one)
    images1 = Unsqueeze (images, one)
    kinds_f = Cast <to = 1> (kinds1)
    images_f = Cast <to = 1> (images1)
    detections = Concat <axis = 1> (images_f, taken, kinds_f, column)
    """.strip().splitlines()
    turn = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)
    constants = {
        "parts": [4, classes], "turn": turn, "most": [most], "iou": np.float32([iou]),
        "threshold": np.float32([0.5]), "image_and_box": [0, 2], "order": [0, 2, 1], "class": 1,
    }  # fmt: skip
    inputs = f"float[2, {4 + classes}, {boxes}] prediction"
    return _model(inputs, ["selected", "detections"], lines, constants)


def _batched(boxes: str, scores: str, labels: str, most: int) -> list[str]:
    """Return torchvision's ``batched_nms``: boxes of different classes are moved apart."""
    return f"""
    largest = ReduceMax <keepdims = 0> ({boxes})
    distance = Add (largest, next)
    kinds = Cast <to = 1> ({labels})
    moves = Mul (kinds, distance)
    moves1 = Unsqueeze (moves, one)
    apart = Add ({boxes}, moves1)
    apart1 = Unsqueeze (apart, zero)
    scores1 = Unsqueeze ({scores}, zero)
    scores2 = Unsqueeze (scores1, zero)
    selected = NonMaxSuppression (apart1, scores2, all, iou)
    chosen = Gather <axis = 1> (selected, box)
    keep = Slice (chosen, zero, most, zero)
    boxes = Gather ({boxes}, keep)
    scores = Gather ({scores}, keep)
    labels = Gather ({labels}, keep)
    """.strip().splitlines()


def ssd(boxes: int = 50, classes: int = 4, top: int = 12, most: int = 9) -> onnx.ModelProto:
    """Return torchvision's SSD: boxes, and logits of classes, of which the first is background."""
    lines = ["probabilities = Softmax <axis = 1> (logits)"]
    for k in range(1, classes):
        lines += f"""
        score_{k} = Gather <axis = 1> (probabilities, class_{k})
        above_{k} = Greater (score_{k}, threshold)
        found_{k} = NonZero (above_{k})
        at_{k} = Squeeze (found_{k}, zero)
        s_{k} = Gather (score_{k}, at_{k})
        b_{k} = Gather (candidates, at_{k})
        n_{k} = Shape (s_{k})
        pair_{k} = Concat <axis = 0> (top, n_{k})
        k_{k} = ReduceMin <keepdims = 0> (pair_{k})
        k1_{k} = Unsqueeze (k_{k}, zero)
        best_{k}, places_{k} = TopK <axis = 0> (s_{k}, k1_{k})
        taken_{k} = Gather (b_{k}, places_{k})
        shape_{k} = Shape (best_{k})
        label_{k} = ConstantOfShape <value = int64[1] {{{k}}}> (shape_{k})
        """.strip().splitlines()
    for name, part in (("every_box", "taken"), ("every_score", "best"), ("every_label", "label")):
        parts = ", ".join(f"{part}_{k}" for k in range(1, classes))
        lines.append(f"{name} = Concat <axis = 0> ({parts})")
    lines += _batched("every_box", "every_score", "every_label", most)
    constants = {
        "threshold": np.float32(0.3), "top": [top], "most": [most], "iou": np.float32([0.45]),
        **{f"class_{k}": k for k in range(1, classes)},
    }  # fmt: skip
    inputs = f"float[{boxes}, 4] candidates, float[{boxes}, {classes}] logits"
    return _model(inputs, ["boxes", "scores", "labels"], lines, constants)


def retinanet(
    levels: tuple[int, ...] = (40, 12), classes: int = 3, top: int = 15, most: int = 10
) -> onnx.ModelProto:
    """Return torchvision's RetinaNet: logits and distances from anchors on several levels."""
    rng, lines, inputs = np.random.default_rng(8), [], []
    constants = {
        "threshold": np.float32(0.5), "top": [top], "most": [most], "iou": np.float32([0.5]),
        "classes": classes, "low": np.float32(0), "high": np.float32(16),
    }  # fmt: skip
    for level, anchors in enumerate(levels):
        corners = np.round(rng.random((anchors, 2)) * 12)
        constants[f"anchors_{level}"] = np.concatenate(
            [corners, corners + np.round(rng.random((anchors, 2)) * 4 + 1)], 1
        ).astype(np.float32)
        inputs += [
            f"float[{anchors}, {classes}] logits_{level}", f"float[{anchors}, 4] moves_{level}"
        ]  # fmt: skip
        lines += f"""
        p_{level} = Sigmoid (logits_{level})
        flat_{level} = Reshape (p_{level}, minus)
        above_{level} = Greater (flat_{level}, threshold)
        found_{level} = NonZero (above_{level})
        tuples_{level} = Transpose <perm = [1, 0]> (found_{level})
        s_{level} = GatherND (flat_{level}, tuples_{level})
        at_{level} = Squeeze (tuples_{level}, one)
        n_{level} = Shape (s_{level})
        k_{level} = Min (n_{level}, top)
        best_{level}, places_{level} = TopK <axis = 0> (s_{level}, k_{level})
        where_{level} = Gather (at_{level}, places_{level})
        anchor_{level} = Div (where_{level}, classes)
        label_{level} = Mod (where_{level}, classes)
        from_{level} = Gather (anchors_{level}, anchor_{level})
        by_{level} = Gather (moves_{level}, anchor_{level})
        to_{level} = Add (from_{level}, by_{level})
        inside_{level} = Clip (to_{level}, low, high)
        """.strip().splitlines()
    for name, part in (("every_box", "inside"), ("every_score", "best"), ("every_label", "label")):
        parts = ", ".join(f"{part}_{level}" for level in range(len(levels)))
        lines.append(f"{name} = Concat <axis = 0> ({parts})")
    lines += _batched("every_box", "every_score", "every_label", most)
    return _model(", ".join(inputs), ["boxes", "scores", "labels"], lines, constants)


def yolov8(boxes: int = 40, classes: int = 3, most: int = 8) -> onnx.ModelProto:
    """Return Ultralytics' export with suppression: one tensor ``[1, 4 + classes, boxes]``.

    Each selection by the mask computes its indices again, and detections are padded with zeros to
    a fixed number, by amounts that depend on their number.
    """
    lines = """
    rows = Transpose <perm = [0, 2, 1]> (prediction)
    row = Squeeze (rows, zero)
    corners, scores = Split <axis = 1> (row, parts)
    best = ReduceMax <axes = [1], keepdims = 0> (scores)
    kind = ArgMax <axis = 1, keepdims = 0> (scores)
    mask = Greater (best, threshold)
    found_1 = NonZero (mask)
    at_1 = Transpose <perm = [1, 0]> (found_1)
    boxes = GatherND (corners, at_1)
    found_2 = NonZero (mask)
    at_2 = Transpose <perm = [1, 0]> (found_2)
    score = GatherND (best, at_2)
    found_3 = NonZero (mask)
    at_3 = Transpose <perm = [1, 0]> (found_3)
    label = GatherND (kind, at_3)
    labels = Cast <to = 1> (label)
    column = Unsqueeze (labels, one)
    moves = Mul (column, distance)
    apart = Add (boxes, moves)
    apart_1 = Unsqueeze (apart, zero)
    score_1 = Unsqueeze (score, zero)
    score_2 = Unsqueeze (score_1, zero)
    selected = NonMaxSuppression (apart_1, score_2, all, iou)
    chosen = Gather <axis = 1> (selected, third)
    taken = Squeeze (chosen, one)
    keep = Slice (taken, zero, most, zero)
    kept_boxes = Gather (boxes, keep)
    kept_score = Gather (score, keep)
    kept_label = Gather (labels, keep)
    score_column = Reshape (kept_score, columns)
    label_column = Reshape (kept_label, columns)
    detections = Concat <axis = -1> (kept_boxes, score_column, label_column)
    shape = Shape (detections)
    number = Gather (shape, image)
    width = Gather (shape, second)
    missing = Sub (limit, number)
    zeros = Mul (missing, width)
    flat = Reshape (detections, minus)
    behind = Unsqueeze (zeros, zero)
    pads = Concat <axis = 0> (zero, behind)
    none = ConstantOfShape <value = int64[1] {0}> (zero)
    pads_1 = Concat <axis = 0> (pads, none)
    pairs = Reshape (pads_1, pair)
    turned = Slice (pairs, minus, least, zero, minus)
    columns_1 = Transpose <perm = [1, 0]> (turned)
    amounts = Reshape (columns_1, minus)
    padded = Pad (flat, amounts)
    result = Reshape (padded, form)
    """.strip().splitlines()
    constants = {
        "parts": [4, classes], "threshold": np.float32(0.5), "distance": np.float32(100),
        "third": [2], "iou": np.float32([0.5]), "most": [most], "columns": [-1, 1],
        "second": np.array(1), "limit": np.array(most), "pair": [-1, 2], "least": [-(2**63) + 1],
        "form": [1, most, 6],
    }  # fmt: skip
    inputs = f"float[1, {4 + classes}, {boxes}] prediction"
    return _model(inputs, ["result"], lines, constants)


#: Detectors by name.
DETECTORS = {"yolo": yolo, "yolov8": yolov8, "ssd": ssd, "retinanet": retinanet}


def feeds_for(model: onnx.ModelProto, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs with no detections, ``some``, ``all``, or many equal ones (``ties``)."""
    rng = np.random.default_rng(seed)
    shift = {"none": -40.0, "some": -0.5, "all": 3.0, "ties": 0.0}[kind]
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape)
        if value.name == "candidates":
            array = np.concatenate([array[:, :2] * 4, array[:, :2] * 4 + 3 + array[:, 2:]], 1)
        elif value.name == "prediction":
            array[:, :4] = np.abs(array[:, :4]) * 4 + 1
            array[:, 4:] += shift
        elif value.name.startswith("logits"):
            array[:, : 1 if value.name == "logits" else None] += (
                -shift if value.name == "logits" else shift
            )
        if kind == "ties":
            array = np.round(array)
        # Round to numbers that halves can hold.
        feeds[value.name] = (np.round(array * 16) / 16).astype(np.float32)
    return feeds
