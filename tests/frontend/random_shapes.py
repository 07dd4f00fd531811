"""Random cases of operators that normalize, move data, gather, scatter and quantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from random_operators import ANY, int64
from random_windows import Case, Random


def softmax(r: Random) -> Case:
    op_type, opset, shape = r.pick("Softmax", "LogSoftmax", "Hardmax"), r.pick(9, 11, 13), r.shape()
    axis = r.integer(0 if opset < 11 else -len(shape), len(shape) - 1)
    return op_type, [(r.normal(*shape, scale=3.0), False)], {"axis": axis}, opset


def normalization(r: Random) -> Case:
    op_type = r.pick(
        "InstanceNormalization", "LayerNormalization", "LRN", "LpNormalization",
        "BatchNormalization", "GroupNormalization", "MeanVarianceNormalization",
    )  # fmt: skip
    channels = 2 * r.integer(1, 3)
    shape = [2, channels, *r.shape(r.integer(1, 3))]
    x, constant = (r.normal(*shape), False), r.chance(0.5)
    if op_type == "LRN":
        attributes = {"size": r.pick(1, 3, 4, 5), "alpha": 0.5, "beta": 0.6, "bias": 1.5}
        return op_type, [(r.normal(2, channels, 3, 4), False)], attributes, 13
    if op_type == "LpNormalization":
        return op_type, [x], {"axis": r.integer(-1, len(shape) - 1), "p": r.integer(1, 2)}, 13
    if op_type == "MeanVarianceNormalization":
        attributes = r.pick({}, {"axes": [0, 1, 2, 3]}, {"axes": [2, 3]})
        return op_type, [(r.normal(2, 3, 4, 5), False)], attributes, 13
    if op_type == "LayerNormalization":
        axis = r.integer(-len(shape), len(shape) - 1)
        inner = shape[axis:]
        bias = r.normal(*inner) if r.chance(0.5) else None
        return op_type, [x, (r.normal(*inner), constant), (bias, constant)], {"axis": axis}, 17
    parameters = [(r.normal(channels), constant) for _ in range(2)]
    if op_type == "InstanceNormalization":
        return op_type, [x, *parameters], {}, 13
    if op_type == "GroupNormalization":
        return op_type, [x, *parameters], {"num_groups": 2}, 21
    statistics = [(r.normal(channels), constant), (np.abs(r.normal(channels)) + 0.1, constant)]
    return op_type, [x, *parameters, *statistics], {"epsilon": 0.01}, r.pick(9, 14, 15)


def moving(r: Random) -> Case:
    op_type = r.pick(
        "Concat", "Transpose", "Tile", "Expand", "DepthToSpace", "SpaceToDepth", "Flatten",
        "Squeeze", "Unsqueeze", "Trilu", "Cast", "CenterCropPad",
    )  # fmt: skip
    shape, dtype = r.shape(), r.pick(*ANY)
    x, rank = (r.normal(*shape, dtype=dtype), False), len(shape)
    if op_type == "Concat":
        axis = r.integer(-rank, rank - 1)
        other = list(shape)
        other[axis] = r.integer(1, 3)
        return op_type, [x, (r.normal(*other, dtype=dtype), r.chance(0.5))], {"axis": axis}, 13
    if op_type == "Transpose":
        return op_type, [x], r.pick({}, {"perm": [int(a) for a in r.rng.permutation(rank)]}), 13
    if op_type == "Tile":
        return op_type, [x, (int64(*r.integers(1, 3, rank)), True)], {}, 13
    if op_type == "Expand":
        small = [1 if r.chance(0.5) else extent for extent in shape]
        wanted = int64(r.integer(1, 2), *shape)
        return op_type, [(r.normal(*small, dtype=dtype), False), (wanted, True)], {}, 13
    if op_type == "DepthToSpace":
        attributes = {"blocksize": 2, "mode": r.pick("DCR", "CRD")}
        return op_type, [(r.normal(2, 12, 2, 3, dtype=dtype), False)], attributes, 13
    if op_type == "SpaceToDepth":
        return op_type, [(r.normal(2, 3, 4, 6, dtype=dtype), False)], {"blocksize": 2}, 13
    if op_type == "Flatten":
        return op_type, [x], {"axis": r.integer(-rank, rank)}, 13
    if op_type == "Unsqueeze":
        return op_type, [x, (int64(0, -1), True)], {}, 13
    if op_type == "Squeeze":
        axes = r.pick([], [(int64(r.pick(0, -1)), True)])
        return op_type, [(r.normal(1, 3, 1, dtype=dtype), False), *axes], {}, 13
    if op_type == "Trilu":
        diagonal = r.pick([], [(np.array(r.integer(-2, 2)), True)])
        square = (r.normal(*r.shape(r.integer(2, 3)), dtype=dtype), False)
        return op_type, [square, *diagonal], {"upper": r.integer(0, 1)}, 14
    if op_type == "Cast":
        return op_type, [x], {"to": r.pick(1, 10, 11, 6, 7, 9)}, 13
    return op_type, [x, (int64(*r.integers(1, 7, rank)), True)], {}, 18


def indexing(r: Random) -> Case:
    op_type = r.pick(
        "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot",
        "ArgMax", "ArgMin", "TopK", "CumSum",
    )  # fmt: skip
    shape, dtype = r.shape(), r.pick(*ANY)
    axis, constant = r.integer(-len(shape), len(shape) - 1), r.chance(0.5)
    extent, x = shape[axis], (r.normal(*shape, dtype=dtype), False)
    kind = r.pick("int32", "int64")
    if op_type in ("Gather", "GatherElements"):
        places = r.shape(r.integer(0, 2)) if op_type == "Gather" else shape
        indices = np.asarray(r.rng.integers(-extent, extent, places)).astype(kind)
        return op_type, [x, (indices, constant)], {"axis": axis}, 13
    if op_type == "GatherND":
        batch = r.integer(0, 1)
        depth = r.integer(1, 3 - batch)
        data = r.normal(3, 4, 2, dtype=dtype)
        parts = [r.rng.integers(-e, e, (3, 2)) for e in data.shape[batch : batch + depth]]
        return (
            op_type, [(data, False), (np.stack(parts, -1), constant)], {"batch_dims": batch}, 13
        )  # fmt: skip
    if op_type == "ScatterElements":
        indices = np.argsort(r.rng.random(shape), axis=axis)
        indices = np.where(r.rng.random(shape) < 0.3, indices - extent, indices)
        opset = r.pick(11, 16, 18)
        reductions = ["none", *(["add", "mul"] if opset > 11 else [])]
        attributes = {"axis": axis, "reduction": r.pick(*reductions, *["max"] * (opset > 16))}
        if opset == 11:
            del attributes["reduction"]
        updates = (r.normal(*shape, dtype=dtype), False)
        return op_type, [x, (indices, constant), updates], attributes, opset
    if op_type == "ScatterND":
        data, updates = (r.normal(n, 3, 2, dtype=dtype) for n in (4, 3))
        indices = np.array([[2], [-4], [1]])
        return op_type, [(data, False), (indices, constant), (updates, False)], {}, 13
    if op_type == "OneHot":
        indices = np.asarray(r.rng.integers(-6, 8, r.shape(r.integer(1, 2)))).astype(kind)
        values = np.array([2, 5], r.pick("float32", "int32"))
        inputs = [(indices, False), (np.array(6), True), (values, True)]
        return op_type, inputs, {"axis": r.pick(-1, 0, 1)}, 11
    if op_type == "TopK":
        data = r.normal(*shape, dtype=r.pick("float32", "int64", "int32", "float64"))
        k = (int64(r.integer(1, extent)), True)
        return op_type, [(data, False), k], {"axis": axis, "largest": r.integer(0, 1)}, 11
    if op_type == "CumSum":
        data = r.normal(*shape, dtype=r.pick("float32", "int32", "int64", "float64"))
        attributes = {"exclusive": r.integer(0, 1), "reverse": r.integer(0, 1)}
        return op_type, [(data, False), (np.array(axis, kind), True)], attributes, 14
    data = r.normal(*shape, dtype=r.pick("float32", "int32", "uint8"))
    attributes = {
        "axis": axis, "keepdims": r.integer(0, 1), "select_last_index": r.integer(0, 1)
    }  # fmt: skip
    return op_type, [(np.round(data), False)], attributes, 13


def quantization(r: Random) -> Case:
    op_type = r.pick("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "DynamicQuantizeLinear")
    kind, constant = r.pick("uint8", "int8"), r.chance(0.5)
    if op_type == "DynamicQuantizeLinear":
        return op_type, [(r.normal(2, 3, 4) * 4 + r.integer(-3, 3), False)], {}, 11
    if op_type == "MatMulInteger":
        a = r.rng.integers(0, 255, (2, 3)).astype("uint8")
        b = r.rng.integers(-128, 127, (3, 4)).astype("int8")
        zeros = [(np.array(12, "uint8"), True), (np.array(3, "int8"), True)]
        return op_type, [(a, False), (b, constant), *zeros[: r.integer(0, 2)]], {}, 10
    channels = r.pick((), (3,))
    scale = (np.asarray(np.abs(r.normal(*channels)) + 0.05, np.float32), constant)
    zero = (np.asarray(r.rng.integers(0, 9, channels)).astype(kind), constant)
    if op_type == "QuantizeLinear":
        x = r.normal(2, 3, 4) * 5
    else:
        x = r.rng.integers(0, 100, (2, 3, 4)).astype(kind)
    attributes = {"axis": 1} if channels else {}
    opset = r.pick(13, 19, 21) if channels else r.pick(10, 13, 19, 21)
    return op_type, [(x, False), scale, zero], attributes, opset


def sampling(r: Random) -> Case:
    op_type = r.pick(
        "GridSample", "RoiAlign", "AffineGrid", "Upsample", "GlobalLpPool", "GlobalMaxPool",
        "GlobalAveragePool",
    )  # fmt: skip
    batch, channels, height, width = r.integer(1, 2), r.integer(1, 3), *r.integers(2, 8, 2)
    image = (r.normal(batch, channels, height, width), False)
    if op_type == "GridSample":
        grid = r.rng.uniform(-1.5, 1.5, (batch, *r.integers(2, 5, 2), 2)).astype("float32")
        opset = r.pick(16, 20, 22)
        modes = (
            ("bilinear", "nearest", "bicubic") if opset == 16 else ("linear", "nearest", "cubic")
        )
        attributes = {
            "mode": r.pick(*modes), "align_corners": r.integer(0, 1),
            "padding_mode": r.pick("zeros", "border", "reflection"),
        }  # fmt: skip
        return op_type, [image, (grid, False)], attributes, opset
    if op_type == "RoiAlign":
        count, opset = r.integer(1, 4), r.pick(10, 16, 22)
        begin = r.rng.uniform(-2, 6, (count, 2))
        regions = np.concatenate([begin, begin + r.rng.uniform(0.2, 6, (count, 2))], 1)
        images = r.rng.integers(0, batch, count)
        attributes = {
            "output_height": r.integer(1, 4), "output_width": r.integer(1, 4),
            "sampling_ratio": r.integer(0, 3), "spatial_scale": r.pick(1.0, 0.5, 0.25),
        }  # fmt: skip
        if opset >= 16:
            attributes["coordinate_transformation_mode"] = r.pick("half_pixel", "output_half_pixel")
        inputs = [image, (regions.astype("float32"), False), (images, False)]
        return op_type, inputs, attributes, opset
    if op_type == "AffineGrid":
        size = r.pick([2, 3, 4, 5], [1, 1, 3, 2], [2, 2, 3, 4, 2])
        theta = r.normal(size[0], len(size) - 2, len(size) - 1)
        attributes = {"align_corners": r.integer(0, 1)}
        return op_type, [(theta, False), (int64(*size), True)], attributes, 20
    if op_type == "Upsample":
        scales = [1.0, 1.0, *(r.pick(1.0, 2.0, 1.5, 3.0, 2.3) for _ in range(2))]
        mode = r.pick("nearest", "linear")
        if r.chance(0.5):
            return op_type, [image], {"mode": mode, "scales": scales}, 7
        return op_type, [image, (np.array(scales, "float32"), True)], {"mode": mode}, 9
    data = (r.normal(2, 3, *r.integers(1, 6, r.integer(1, 3))), False)
    return op_type, [data], {"p": r.integer(1, 3)} if op_type == "GlobalLpPool" else {}, 11


SHAPES: dict[str, Callable[[Random], Case]] = {
    "softmax": softmax, "normalization": normalization, "moving": moving, "indexing": indexing,
    "quantization": quantization, "sampling": sampling,
}  # fmt: skip
