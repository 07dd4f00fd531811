"""Boxes that are kept by their scores, against NumPy in fp64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmflow
from tvmflow.cli.options import parse_results
from tvmflow.errors import CompileError
from tvmflow.ir.results import Selection, pairs, parse_selection

OPENCL = pytest.mark.opencl
BOXES, CLASSES = 60, 4


def network(
    boxes: tuple[int | str, ...] = (1, BOXES, 4),
    scores: tuple[int | str, ...] = (1, BOXES, CLASSES),
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a network whose results are its two inputs."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["b"], ["boxes"]),
             helper.make_node("Identity", ["s"], ["scores"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "detector",
        [value("b", dtype, boxes), value("s", dtype, scores)],
        [value("boxes", dtype, boxes), value("scores", dtype, scores)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds(form: str = "xyxy", seed: int = 0) -> dict[str, np.ndarray]:
    """Boxes ``[N, 4]`` of one form, of which many overlap, and their scores ``[N, C]``."""
    random = np.random.default_rng(seed)
    corner, size = random.uniform(0, 60, (BOXES, 2)), random.uniform(8, 40, (BOXES, 2))
    parts = {
        "xyxy": (corner, corner + size),
        "yxyx": (corner[:, ::-1], (corner + size)[:, ::-1]),
        "xywh": (corner, size),
        "cxcywh": (corner + size / 2, size),
    }[form]
    scores = random.permutation(BOXES * CLASSES).reshape(BOXES, CLASSES) / (BOXES * CLASSES)
    return {"b": np.concatenate(parts, 1).astype(np.float32), "s": scores.astype(np.float32)}


def corners(boxes: np.ndarray, form: str) -> np.ndarray:
    """``x0, y0, x1, y1`` of boxes, in fp64."""
    first, second = boxes.astype(np.float64)[:, :2], boxes.astype(np.float64)[:, 2:]
    if form == "cxcywh":
        first = first - second / 2
    return np.concatenate([first, first + second if form in ("xywh", "cxcywh") else second], 1)


def suppressed(
    b: np.ndarray, s: np.ndarray, form: str, iou: float, most: int, score: float | None
) -> dict[str, np.ndarray]:
    """Return what is kept, class by class, the best of all classes first."""
    boxes, kept = corners(b, form), []
    area = np.prod(boxes[:, 2:] - boxes[:, :2], 1)
    for label in range(s.shape[1]):
        mine: list[int] = []
        for i in np.argsort(-s[:, label], kind="stable"):
            if score is not None and s[i, label] <= score:
                break
            over = np.clip(
                np.minimum(boxes[i, 2:], boxes[mine, 2:])
                - np.maximum(boxes[i, :2], boxes[mine, :2]), 0, None,
            ).prod(-1)  # fmt: skip
            if (over / (area[i] + area[mine] - over) <= iou).all():
                mine.append(int(i))
        kept += [(float(s[i, label]), label, i) for i in mine]
    kept = sorted(kept, key=lambda each: -each[0])[:most]
    rows = [i for *_, i in kept]
    return {
        "boxes": b[rows], "scores": np.array([v for v, *_ in kept]),
        "scores_classes": np.array([c for _, c, _ in kept]), "scores_indices": np.array(rows),
    }  # fmt: skip


def check(got, wanted: dict[str, np.ndarray]) -> None:
    assert {*got.names} == {*wanted}
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array.astype(got[name].dtype), err_msg=name)
        assert (got[name].dtype == np.int32) == name.startswith("scores_")


TARGETS = [
    {"target": "llvm", "format": "standalone"},
    pytest.param({"target": "opencl", "format": "standalone"}, marks=OPENCL),
    pytest.param({"target": "opencl", "device": "adreno"}, marks=OPENCL),
]


@pytest.mark.parametrize("options", TARGETS)
@pytest.mark.parametrize(
    ("form", "iou", "most", "score"),
    [("xyxy", 0.5, 100, None), ("yxyx", 0.3, 7, None), ("xywh", 0.5, 100, 0.6),
     ("cxcywh", 0.7, 50, 0.9), ("xyxy", 0.5, 5, 2.0)],
)  # fmt: skip
def test_classes_do_not_suppress_each_other(options, form, iou, most, score):
    what = f"nms:iou={iou},max={most},form={form}" + (f",score={score}" if score else "")
    results = {"boxes+scores": what}
    with tvmflow.compile(network(), results=results, **options) as module:
        for seed in (0, 1):
            b, s = feeds(form, seed).values()
            wanted = suppressed(b, s, form, iou, most, score)
            # Something is suppressed, and boxes are there under several classes.
            assert len(wanted["boxes"]) < min(most + 1, s.size) or score
            check(module(b[None], s[None]), wanted)
        if "format" in options:
            assert module.self_test().compared


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [
        ((1, BOXES, 4), (1, CLASSES, BOXES)),
        ((1, 4, BOXES), (1, CLASSES, BOXES)),
        ((BOXES, 4), (BOXES, CLASSES)),
        ((4, BOXES), (CLASSES, BOXES)),
        ((1, BOXES, 4), (1, BOXES)),
        ((BOXES, 4), (BOXES,)),
        ((1, BOXES, 4), (1, BOXES, 1)),
    ],
)
@pytest.mark.parametrize("what", ["nms:iou=0.4,max=20", "topk:9"])
def test_shapes_of_boxes_and_scores(boxes, scores, what):
    b, s = feeds().values()
    count = CLASSES if CLASSES in scores else 1
    s = s[:, :count]
    given = (b if boxes[-1] == 4 else b.T).reshape(boxes)
    rows = (s if scores[-1] != BOXES else s.T).reshape(scores)
    wanted = suppressed(b, s, "xyxy", 0.4, 20, None)
    if what == "topk:9":
        best = np.argsort(-s.max(1), kind="stable")[:9]
        wanted = {"boxes": b[best], "scores": s.max(1)[best],
                  "scores_classes": s.argmax(1)[best], "scores_indices": best}  # fmt: skip
    if scores in ((1, BOXES), (BOXES,)):
        del wanted["scores_classes"]
    options = {"target": "llvm", "results": {"boxes+scores": what}}
    with tvmflow.compile(network(boxes, scores), **options) as module:
        check(module(given, rows), wanted)


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize("what", ["nms:score=0.5", "topk:5"])
def test_operator_sets(opset, what):
    b, s = feeds().values()
    options = {"target": "llvm", "results": {"boxes+scores": what}}
    with tvmflow.compile(network(opset=opset), **options) as module:
        got = module(b[None], s[None])
    wanted = suppressed(b, s, "xyxy", 0.5, 100, 0.5)
    np.testing.assert_array_equal(got["scores"], np.sort(s.max(1))[::-1][:5] if "topk" in what
                                  else wanted["scores"].astype(np.float32))  # fmt: skip


def test_more_rows_than_are_ranked_at_once():
    """A YOLO has as many rows; `tvmflow.verify` compares with ONNX Runtime."""
    number, count = 2100, 20
    random = np.random.default_rng(0)
    corner, size = random.uniform(0, 640, (number, 2)), random.uniform(8, 90, (number, 2))
    b = np.concatenate([corner, corner + size], 1).astype(np.float32)
    s = (random.permutation(number * count).reshape(count, number) / (number * count)).astype("f4")
    model = network((1, number, 4), (1, count, number))
    options = {"target": "llvm", "format": "standalone"}
    for what in ("nms:iou=0.5,max=100,score=0.25", "topk:100"):
        with tvmflow.compile(model, results={"boxes+scores": what}, **options) as module:
            got = module(b[None], s[None])
        wanted = suppressed(b, s.T, "xyxy", 0.5, 100, 0.25)
        if what == "topk:100":
            best = np.argsort(-s.max(0), kind="stable")[:100]
            wanted = {"boxes": b[best], "scores": s.max(0)[best],
                      "scores_classes": s.argmax(0)[best], "scores_indices": best}  # fmt: skip
        check(got, wanted)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("what", ["nms:iou=0.3,max=30,form=cxcywh", "topk:6"])
def test_verify_expects_the_same(tmp_path, what):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    b, s = feeds("cxcywh").values()
    options = {"target": "llvm", "format": "standalone", "results": {"boxes+scores": what}}
    with tvmflow.compile(path, **options) as module:
        assert "ONNX Runtime" in module.metadata["reference"]
        assert tvmflow.verify(path, module, {"b": b[None], "s": s[None]}).passed


def test_other_results_come_first():
    b, s = feeds("cxcywh").values()
    results = {"scores": "softmax", "boxes+scores": "nms:max=9"}
    with tvmflow.compile(network(), results=results, target="llvm") as module:
        got = module(b[None], 20 * s[None])
    powers = np.exp(20 * s.astype(np.float64))
    s = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    wanted = suppressed(b, s, "xyxy", 0.5, 9, None)
    np.testing.assert_array_equal(got["scores_indices"], wanted["scores_indices"])
    np.testing.assert_allclose(got["scores"], wanted["scores"], rtol=1e-5)


def test_boxes_have_the_form_that_their_pictures_say():
    """Boxes that are brought back to a picture are first kept in the form that they have."""
    model = network()
    value = helper.make_tensor_value_info
    model.graph.input.append(value("x", TensorProto.FLOAT, [1, 3, 8, 8]))
    model.graph.output.append(value("y", TensorProto.FLOAT, [1, 3, 8, 8]))
    model.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    results = {"boxes": "boxes:cxcywh", "boxes+scores": "nms:iou=0.4,max=30"}
    options = {"target": "llvm", "format": "standalone", "image_inputs": {"x": "rgb8"}}
    b, s = feeds("cxcywh").values()
    with tvmflow.compile(model, results=results, **options) as module:
        got = module(b[None], s[None], np.zeros((16, 24, 3), np.uint8))
    wanted = suppressed(b, s, "cxcywh", 0.4, 30, None)
    np.testing.assert_array_equal(got["scores_indices"], wanted["scores_indices"])
    np.testing.assert_allclose(got["boxes"], wanted["boxes"] * [3, 2, 3, 2], rtol=1e-6)


@OPENCL
def test_in_16_bits_the_self_test_leaves_out_what_indices_choose():
    options = {"device": "adreno", "dtype": "fp16", "accumulate": "fp32", "format": "standalone"}
    with tvmflow.compile(network(), results={"boxes+scores": "topk:6"}, **options) as module:
        assert module.self_test().compared == 6


@pytest.mark.quick
@pytest.mark.parametrize(
    ("model", "results", "error"),
    [
        ({}, {"boxes+score": "nms"}, "the output 'boxes\\+score'; the outputs"),
        ({}, {"boxes": "nms"}, "the output 'boxes'; expected two outputs"),
        ({}, {"boxes+scores": "softmax"}, "'boxes' and 'scores'; expected nms or topk:K"),
        ({}, {"boxes+scores": "nms:iou=2"}, "expected nms with any of iou=0..1"),
        ({}, {"boxes+scores": "nms:max=0"}, "expected nms with any of"),
        ({}, {"boxes+scores": "nms:max=5,max=6"}, "each once"),
        ({}, {"boxes+scores": "nms:"}, "expected nms with any of"),
        ({}, {"boxes+scores": "nmsiou=1"}, "expected nms with any of"),
        ({}, {"boxes+scores": "nms:form=xxyy"}, "form=xyxy|yxyx"),
        ({"boxes": (2, BOXES, 4), "scores": (2, BOXES, 3)}, {"boxes+scores": "nms"}, "2 images"),
        ({"boxes": (1, BOXES, 5)}, {"boxes+scores": "nms"}, r"expected \[1, N, 4\]"),
        ({"scores": (1, 9, CLASSES)}, {"boxes+scores": "nms"}, r"\[1, C, N\] of 60 boxes"),
        ({"opset": 11}, {"boxes+scores": "nms"}, "operator set 11; expected 12 or newer"),
        ({"dtype": TensorProto.DOUBLE}, {"boxes+scores": "nms"}, "'boxes' is not of float32"),
        ({"taken": "scores_indices"}, {"boxes+scores": "topk:5"}, "has a tensor 'scores_indices'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(model, results, error):
    taken = model.pop("taken", None)
    made = network(**model)
    if taken:
        made.graph.node.append(helper.make_node("Identity", ["b"], [taken]))
    with pytest.raises(CompileError, match=error) as caught:
        tvmflow.compile(made, results=results, target="llvm")
    assert caught.value.remedy


@pytest.mark.quick
def test_what_texts_mean():
    assert parse_selection("a+b", "nms") == Selection(100, 0.5)
    assert parse_selection("a+b", "nms:score=-.5e1,iou=1,max=3") == Selection(3, 1.0, -5.0)
    assert parse_selection("a+b", "topk:12") == Selection(12)
    assert parse_selection("a", "softmax") is None
    assert pairs("a+b+c") == [("a", "b+c"), ("a+b", "c")]
    assert pairs("+a") == []


@pytest.mark.quick
def test_flags_have_names_with_equals_signs():
    texts = ["boxes+scores=nms:iou=0.5,max=100", "a=b=softmax"]
    assert parse_results(texts) == {
        "boxes+scores": "nms:iou=0.5,max=100", "a=b": "softmax",
    }  # fmt: skip
