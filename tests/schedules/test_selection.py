"""Compaction and non-maximum suppression against ONNX Runtime: ties, borders, threads."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from support.onnx_models import expected, model_of

import tvmflow

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

COLUMNS = {
    "llvm": {"target": "llvm"},
    "cpu": {"target": "opencl"},
    "adreno": {"target": "opencl", "device": "adreno"},
    "nvidia": {"target": "opencl", "device": "nvidia"},
}


#: All columns; those that compile for some seconds are slow tests.
EVERY = [c if c == "llvm" else pytest.param(c, marks=pytest.mark.slow) for c in COLUMNS]


def one(op_type, feeds, constants=None, **attributes):
    """Build one operator, whose constants follow its inputs; ``None`` omits an input."""
    given = {name: array for name, array in (constants or {}).items() if array is not None}
    names = [*feeds, *(name if name in given else "" for name in constants or {})]
    node = helper.make_node(op_type, names, ["y"], name="node", **attributes)
    inputs = {name: (array.shape, array.dtype) for name, array in feeds.items()}
    return onnx.shape_inference.infer_shapes(model_of([node], inputs, "y", given))


def check(model, feeds, column, **options):
    with closing(tvmflow.compile(model, **COLUMNS[column], **options)) as module:
        for values in feeds:
            (right,) = expected(model, values)
            (got,) = module(values)
            assert got.dtype == right.dtype
            np.testing.assert_array_equal(got, right)
        return [kernel["family"] for kernel in module.metadata["kernels"]]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("shape", [(1,), (31,), (7, 9, 31), (1, 40009)])
def test_positions(shape, column):
    """None, some or all are marked; many elements are in parts of several threads and groups."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32)
    feeds = [{"x": np.where(rng.random(shape) < part, x, 0)} for part in (0, 0.3, 1)]
    feeds.append({"x": np.full(shape, np.nan, np.float32)})
    feeds.append({"x": np.full(shape, -0.0, np.float32)})
    families = check(one("NonZero", feeds[0]), feeds, column)
    assert "compaction" in families


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "int8", "int32"])
def test_positions_of_other_types(dtype):
    rng = np.random.default_rng(3)
    feeds = {"x": rng.integers(0, 3, (5, 7)).astype(dtype)}
    (right,) = ReferenceEvaluator(model := one("NonZero", feeds)).run(None, feeds)
    for column in ("llvm", "adreno"):
        with closing(tvmflow.compile(model, **COLUMNS[column])) as module:
            np.testing.assert_array_equal(module(feeds)["y"], right)


@pytest.mark.parametrize("groups", [1, 3, 64])
def test_any_knobs_of_compaction(groups):
    rng = np.random.default_rng(4)
    feeds = [{"x": (rng.random((11, 97)) < 0.5).astype(np.float32)}]
    for column, size in (("cpu", 1), ("adreno", 8), ("nvidia", 256)):
        knobs = {"compaction": {"groups": groups, "group_size": size}}
        check(one("NonZero", feeds[0]), feeds, column, knobs=knobs)


def boxes_of(rng, shape, kind, centered):
    """Return boxes with corners in any order; some of them are equal, empty, or on a grid."""
    low = rng.random((*shape, 2)) * 8
    high = rng.random((*shape, 2)) * 4 + (0 if centered else low)
    boxes = np.concatenate([low, high], -1)
    if not centered:
        swapped = boxes[..., [2, 1, 0, 3]]
        boxes = np.where(rng.random(shape)[..., None] < 0.3, swapped, boxes)
    if kind == "grid":
        boxes = np.round(boxes)
    if kind == "special":
        odd = rng.choice([np.nan, np.inf, -np.inf], boxes.shape)
        boxes = np.where(rng.random(boxes.shape) < 0.05, odd, boxes)
    return boxes.astype(np.float32)


@pytest.mark.parametrize("column", EVERY)
@pytest.mark.parametrize("kind", ["any", "grid", "special"])
@pytest.mark.parametrize("centered", [0, 1])
def test_boxes_that_do_not_overlap(centered, kind, column):
    """On a grid scores are equal, areas empty, and ratios exactly the threshold."""
    rng = np.random.default_rng(5)
    for (batch, classes, count), most, iou, threshold in (
        ((1, 1, 1), 1, 0.5, None), ((2, 3, 31), 7, 0.5, 0.25), ((1, 2, 150), 200, 1 / 3, None),
        ((2, 9, 33), 5, 0.0, 0.5), ((1, 1, 20), 20, 1.0, -1.0),
    ):  # fmt: skip
        feeds = []
        for _ in range(3):
            scores = rng.random((batch, classes, count)).astype(np.float32)
            if kind == "grid":
                scores = np.round(scores * 4) / 4
            if kind == "special" and threshold is not None:
                # Without a threshold ONNX Runtime sorts NaN anywhere.
                scores[rng.random(scores.shape) < 0.1] = np.nan
                scores[rng.random(scores.shape) < 0.1] = np.inf
            feeds.append({"b": boxes_of(rng, (batch, count), kind, centered), "s": scores})
        limits = {
            "most": np.array([most]), "iou": np.float32([iou]),
            "threshold": None if threshold is None else np.float32([threshold]),
        }  # fmt: skip
        model = one("NonMaxSuppression", feeds[0], limits, center_point_box=centered)
        assert "nms" in check(model, feeds, column)


@pytest.mark.parametrize("column", ["llvm", "adreno"])
def test_of_equal_scores_the_first_is_taken(column):
    """There are more boxes than work-items in a group, none of which overlap."""
    corner = np.arange(600, dtype=np.float32)[:, None] * 4
    boxes = np.concatenate([corner, corner, corner + 1, corner + 1], -1)[None]
    feeds = [{"b": boxes, "s": np.full((1, 1, 600), 0.5, np.float32)}]
    limits = {"most": np.array([9]), "iou": np.float32([0.5])}
    check(one("NonMaxSuppression", feeds[0], limits), feeds, column)


@pytest.mark.parametrize("column", ["llvm", "adreno"])
def test_boxes_beyond_a_bound_are_counted(column):
    """Each class counts its boxes, although they are not stored."""
    rng = np.random.default_rng(7)
    b, s = boxes_of(rng, (2, 40), "any", 0), np.float32(rng.random((2, 3, 40)))
    model = one(
        "NonMaxSuppression", {"b": b, "s": s}, {"most": np.array([30]), "iou": np.float32([0.3])}
    )
    counts = []
    with closing(tvmflow.compile(model, **COLUMNS[column], bounds={"node": 5})) as module:
        for least in (2, 0.99, 0.9, 0):
            feeds = {"b": b, "s": np.where(s > least, s, np.float32(np.nan))}
            # Without a threshold ONNX Runtime sorts NaN anywhere.
            (right,) = expected(model, {"b": b, "s": np.where(s > least, s, -np.inf)})
            right = right[np.isfinite(feeds["s"][tuple(right[:, axis] for axis in range(3))])]
            found = module.run_network(feeds)
            counts.append(int(found["node.count"]))
            assert counts[-1] == len(right)
            np.testing.assert_array_equal(found["y"][: counts[-1]], right[:5])
    assert counts[0] == 0 < counts[1] <= 5 < counts[2]


@pytest.mark.parametrize("column", ["llvm", "adreno"])
def test_limits_at_run_time(column):
    rng = np.random.default_rng(6)
    feeds = [
        {
            "b": boxes_of(rng, (2, 40), "grid", 0),
            "s": np.round(rng.random((2, 3, 40)) * 8).astype(np.float32) / 8,
            "most": np.array([most]),
            "iou": np.float32([iou]),
            "threshold": np.float32([threshold]),
        }
        for most, iou, threshold in (
            (0, 0.5, 0), (3, 0.5, 0.5), (2**62, 0.25, 2), (100, 0.9, -1), (-5, 0.5, 0)
        )
    ]  # fmt: skip
    check(one("NonMaxSuppression", feeds[0]), feeds, column)


def test_nan_scores_are_never_selected():
    """ONNX does not define them, and ONNX Runtime selects some without a threshold."""
    feeds = {
        "b": np.float32([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]]),
        "s": np.float32([[[np.nan, -np.inf, 1]]]),
    }
    model = one("NonMaxSuppression", feeds, {"most": np.array([9])})
    for column in ("llvm", "adreno"):
        with closing(tvmflow.compile(model, **COLUMNS[column])) as module:
            assert module(feeds)["y"].tolist() == [[0, 0, 2], [0, 0, 1]]


def test_without_a_limit_no_boxes_are_selected():
    """Without a limit ONNX selects none."""
    feeds = {"b": np.zeros((1, 5, 4), np.float32), "s": np.ones((1, 1, 5), np.float32)}
    model = one("NonMaxSuppression", feeds)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        assert module(feeds)["y"].shape == (0, 3)
