"""Rules for operators that select elements, whose results have new sizes."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from ...ir.tensors import TensorType
from ..converter import Refusal, normalized_axis
from ..graph import node_attributes
from . import sizes
from .rewriter import Bounded, RunTimeSizes, rule
from .sizes import Size


@rule("NonZero")
def non_zero(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Compute the indices of nonzero elements, including NaN, in row-major order."""
    name, shape = node.input[0], r.shape(node.input[0])
    if not shape:
        raise Refusal("it is given a scalar, whose index has no axes")
    marks = _marked(r, name)
    positions, size = _compaction(r, r.reshaped(marks, [prod(shape)]))
    row = r.reshaped(positions, [1, *r.shape(positions)])
    if len(shape) == 1:
        places = row
    else:
        steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        column = np.array(steps, np.int32)[:, None]
        extents = np.array(shape, np.int32)[:, None]
        places = r.emit("Mod", [r.emit("Div", [row, r.constant(column)]), r.constant(extents)])
    r.become("Cast", [places], to=onnx.TensorProto.INT64)
    _new(r, node, 1, size)


def _compaction(r: RunTimeSizes, marks: str) -> tuple[str, Size]:
    """Compute the positions of true elements, up to the user's bound, and the number of all."""
    (extent,) = r.shape(marks)
    return r.compaction(marks, r.within_bound(extent))


def _new(r: RunTimeSizes, node: onnx.NodeProto, axis: int, size: Size) -> None:
    """Record the result's new size, up to the user's bound."""
    name = node.output[0]
    here = sizes.minimum(size, r.shape(name)[axis])
    assert isinstance(here, Size), here
    r.bounded[name] = Bounded(axis, here, r.makers[next(sizes.counts(size))], size)


def _marked(r: RunTimeSizes, name: str) -> str:
    """Cast a value to bool, with invalid elements false."""
    here = r.bounded.get(name)
    marks = r.cast(name, "bool")
    if here is None:
        return marks
    return r.emit("And", [marks, r.mask(here.size, r.shape(name), here.axis)])


@rule("Compress")
def compress(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Select the elements of an axis, or of the flattened data, for which a condition is true."""
    data, condition = node.input
    axis = node_attributes(node).get("axis")
    shape, there = r.shape(data), r.bounded.get(data)
    if axis is None:
        if there is not None and prod(shape[: there.axis]) != 1:
            raise r.refusal("invalid elements would be between valid ones")
        inner = 1 if there is None else prod(shape[there.axis + 1 :])
        flat = r.reshaped(data, [prod(shape)])
        limit = None if there is None else sizes.multiply(there.size, inner)
        axis, data, shape, there = 0, flat, (prod(shape),), None
    else:
        axis = normalized_axis(axis, len(shape))
        limit = None if there is None or there.axis != axis else there.size
        there = None if limit is not None else there
    extent = min(r.shape(condition)[0], shape[axis])
    marks = r.front(_marked(r, condition), 0, extent)
    if limit is not None:
        marks = r.emit("And", [marks, r.mask(limit, [extent], 0)])
    if there is not None:
        raise r.refusal("along another axis it has an unknown number")
    positions, size = _compaction(r, marks)
    r.become("Gather", [data, positions], axis=axis)
    _new(r, node, axis, size)


@rule("NonMaxSuppression")
def non_max_suppression(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Select boxes that do not overlap per image and class, as triples of image, class and box."""
    boxes, scores = node.input[:2]
    images, classes, count = r.shape(scores)
    here = r.bounded.get(scores)
    if (there := r.bounded.get(boxes)) is not None or here is not None:
        if (
            there is None
            or here is None
            or (there.axis, here.axis, there.size) != (1, 2, here.size)
        ):
            raise r.refusal("its boxes and scores need not have the same number")
        # Boxes with a NaN score are never selected.
        count = min(count, r.shape(boxes)[1])
        boxes, scores = r.front(boxes, 1, count), r.front(r.masked(scores, np.nan), 2, count)
    r.only(0, 1)
    if not r.has(2):
        most = 0
        limit = r.integers(0)
    else:
        known = r.graph.constants.get(node.input[2])
        most = count if known is None else max(0, min(count, int(known.reshape(-1)[0])))
        limit = r.reshaped(r.cast(node.input[2], "int64"), [])
    rows = images * classes
    if rows * most == 0:
        r.copy(r.integers(np.zeros((0, 3))))
        return
    # Boxes beyond the bound are counted but not stored.
    stored = r.within_bound(most)
    thresholds = [
        r.reshaped(node.input[index], []) if r.has(index) else r.constant(np.array(0, np.float32))
        for index in (3, 4)
    ]
    shapes = (rows, stored), (rows,), (rows, count)
    types = [TensorType(shape, "int32") for shape in shapes]
    kept = r.emit(
        "BoxSelection", [boxes, scores, limit, *thresholds], types, stored=stored,
        centered=node_attributes(node).get("center_point_box", 0), has_threshold=int(r.has(4)),
    )  # fmt: skip
    counts = f"{kept}.1"
    places = r.constant(np.arange(stored, dtype=np.int32)[None])
    marks = r.emit("Less", [places, r.reshaped(counts, [rows, 1])])
    positions, size = _compaction(r, r.reshaped(marks, [rows * stored]))
    if stored < most:
        total = r.emit("ReduceSum", [r.cast(counts, "int64")], keepdims=0)
        size = r.made(total, rows * most)
    box = r.emit("Gather", [r.reshaped(kept, [rows * stored]), positions], axis=0)
    column = r.reshaped(positions, [*r.shape(positions), 1])
    steps = np.array([[classes * stored, stored]], np.int32)
    pair = r.emit("Div", [column, r.constant(steps)])
    pair = r.emit("Mod", [pair, r.constant(np.array([[images, classes]], np.int32))])
    triple = r.emit("Concat", [pair, r.reshaped(box, r.shape(column))], axis=1)
    r.become("Cast", [triple], to=onnx.TensorProto.INT64)
    _new(r, node, 0, size)
