"""Random cases of attention, losses, transforms, caches, and other operators of several inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from random_windows import Case, Random

Values = list[tuple["np.ndarray | None", bool]]


def attention(r: Random) -> Case:
    """Draw attention: heads as an axis or merged, shared heads, masks, caches, padded lengths."""
    opset, flat = r.pick(23, 24), r.chance(0.5)
    shared, group = r.integer(1, 2), r.integer(1, 3)
    rows, own, past = r.integer(1, 5), r.integer(1, 7), r.integer(1, 3)
    depth, width, dtype = r.integer(1, 7), r.integer(1, 5), r.pick("float32", "float32", "float64")
    cached, padded = r.chance(0.3), opset >= 24 and r.chance(0.3)
    columns = own + past if cached else own

    def heads(count: int, length: int, numbers: int) -> np.ndarray:
        shape = (2, length, count * numbers) if flat else (2, count, length, numbers)
        return r.normal(*shape, dtype=dtype)

    values: Values = [
        (heads(shared * group, rows, depth), False),
        (heads(shared, own, depth), False),
        (heads(shared, own, width), False),
    ]
    mask: np.ndarray | None = None
    if r.chance(0.6):
        shape = r.pick((rows, columns), (2, 1, rows, columns), (1, shared * group, rows, columns))
        mask = r.rng.random(shape) < 0.7
        mask[..., 0] = True
        if r.chance(0.5):
            mask = np.where(mask, r.normal(*shape), -np.inf).astype(dtype)
    values.append((mask, r.chance(0.5)))
    if cached:
        values += [(r.normal(2, shared, past, n, dtype=dtype), False) for n in (depth, width)]
    elif padded:
        lengths = r.rng.integers(min(rows, own), own + 1, 2)
        values += [(None, False), (None, False), (lengths, r.chance(0.5))]
    attributes: dict[str, Any] = {}
    if flat:
        attributes |= {"q_num_heads": shared * group, "kv_num_heads": shared}
    # With a cache, ONNX Runtime aligns the diagonal differently from the specification.
    if r.chance(0.3) and not cached and not padded:
        attributes["is_causal"] = 1
    if r.chance(0.3):
        attributes["scale"] = r.pick(0.3, 1.0)
    if r.chance(0.3):
        attributes["softcap"] = r.pick(0.5, 3.0)
    return "Attention", values, attributes, opset


def rotary(r: Random) -> Case:
    heads, length, depth, turned = r.integer(1, 3), r.integer(1, 5), r.pick(4, 6, 8), r.pick(0, 4)
    flat, half = r.chance(0.5), (turned or depth) // 2
    shape = (2, length, heads * depth) if flat else (2, heads, length, depth)
    attributes: dict[str, Any] = {
        "interleaved": r.integer(0, 1), "rotary_embedding_dim": turned, "num_heads": heads
    }  # fmt: skip
    values: Values = [(r.normal(*shape), False)]
    if r.chance(0.5):
        values += [(r.normal(9, half), r.chance(0.5)) for _ in range(2)]
        values.append((r.rng.integers(0, 9, (2, length)), r.chance(0.5)))
    else:
        values += [(r.normal(2, length, half), False) for _ in range(2)]
    return "RotaryEmbedding", values, attributes, 23


def loss(r: Random) -> Case:
    op_type = r.pick("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    batch, classes, *space = [r.integer(1, 4), r.integer(2, 9), *r.shape(r.integer(0, 2))]
    labels = r.rng.integers(0, classes, (batch, *space)).astype(r.pick("int32", "int64"))
    attributes: dict[str, Any] = {"reduction": r.pick("mean", "sum", "none")}
    if r.chance(0.5):
        attributes["ignore_index"] = r.pick(0, classes - 1, -1, -100)
        labels[r.rng.random(labels.shape) < 0.3] = attributes["ignore_index"]
        labels.reshape(-1)[0] = 1
    scores = r.normal(batch, classes, *space, dtype=r.pick("float32", "float32", "float64"))
    values: Values = [(scores, False), (labels, r.chance(0.5))]
    if r.chance(0.5):
        weights = np.abs(r.normal(classes)) + 0.1
        values.append((weights.astype(scores.dtype), r.chance(0.5)))
    return op_type, values, attributes, 13


def spectrum(r: Random) -> Case:
    parts = r.pick(1, 2)
    if r.chance(0.3):
        length, count = r.integer(2, 9), r.integer(9, 40)
        window = r.normal(length) if r.chance(0.5) else None
        step = np.array(r.integer(1, 5), np.int64)
        values: Values = [(r.normal(2, count, 1), False), (step, True), (window, r.chance(0.5))]
        values.append((np.array(length, np.int64), True))
        return "STFT", values, {"onesided": r.integer(0, 1)}, 17
    # Transforms of more than 128 numbers have several steps; 131 is a prime number.
    length = r.pick(1, 2, 5, 8, 31, 128, 131, 150, 256)
    x = r.normal(2, length, 3, parts) if r.chance(0.5) else r.normal(3, length, parts)
    attributes: dict[str, Any] = {"inverse": r.integer(0, 1)}
    if not attributes["inverse"] and parts == 1 and r.chance(0.5):
        attributes["onesided"] = 1
    count = r.pick(None, None, length, length + 3, max(length - 2, 1))
    numbers = None if count is None else np.array(count, np.int64)
    if r.chance(0.5):
        return "DFT", [(x, False), (numbers, True)], attributes | {"axis": 1}, 17
    return "DFT", [(x, False), (numbers, True), (np.array(1), True)], attributes, 20


def rows(r: Random) -> Case:
    op_type = r.pick("ReverseSequence", "TensorScatter", "TopK", "CumProd", "BitShift", "Mod")
    dtype = r.pick("float32", "float16", "int32", "int64", "uint8")
    if op_type == "ReverseSequence":
        shape = [*r.integers(1, 6, 2), *r.shape(r.integer(0, 2))]
        batch = r.integer(0, 1)
        lengths = r.rng.integers(1, shape[1 - batch] + 1, shape[batch])
        values: Values = [(r.normal(*shape, dtype=dtype), False), (lengths, r.chance(0.5))]
        return op_type, values, {"batch_axis": batch, "time_axis": 1 - batch}, 10
    if op_type == "TensorScatter":
        shape, mode = r.shape(r.integer(3, 4)), r.pick("linear", "circular")
        axis = r.integer(1, len(shape) - 1)
        part = [r.integer(1, n) if a == axis else n for a, n in enumerate(shape)]
        most = shape[axis] - (part[axis] if mode == "linear" else 1)
        values = [(r.normal(*s, dtype="float32"), False) for s in (shape, part)]
        values.append((r.rng.integers(0, most + 1, shape[0]), r.chance(0.5)))
        return op_type, values, {"axis": axis - r.pick(0, len(shape)), "mode": mode}, 24
    if op_type == "TopK":
        shape = r.shape(high=9)
        axis = r.integer(-len(shape), len(shape) - 1)
        kind = r.pick("float16", "int16", "uint16", "uint32", "uint64", "int8", "uint8", "float32")
        whole = np.round(r.normal(*shape, scale=2.0))  # many are equal
        if kind == "uint64":
            whole = np.where(whole < 0, 2.0**63 - whole * 2.0**40, whole)
        x = whole.astype(kind) if kind[0] != "u" or kind == "uint64" else np.abs(whole).astype(kind)
        k = np.array([r.integer(1, shape[axis])])
        return op_type, [(x, False), (k, True)], {"axis": axis, "largest": r.integer(0, 1)}, 24
    if op_type == "CumProd":
        shape = r.shape(high=20)
        axis = np.array(r.integer(-len(shape), len(shape) - 1))
        attributes = {"exclusive": r.integer(0, 1), "reverse": r.integer(0, 1)}
        return op_type, [(r.normal(*shape), False), (axis, True)], attributes, 26
    shape = r.shape()
    if op_type == "Mod":
        a, b = (r.normal(*shape, dtype=r.pick("float32")) for _ in range(2))
        return op_type, [(a, False), (b, r.chance(0.5))], {}, 13
    kind = r.pick("int8", "int16", "int32", "int64", "uint8", "uint64")
    bits = 8 * np.dtype(kind).itemsize
    amounts = r.rng.integers(0 if kind[0] == "u" else -2, bits + 3, shape).astype(kind)
    opset = 11 if kind[0] == "u" else 28
    values = [(r.normal(*shape, dtype=kind), False), (amounts, r.chance(0.3))]
    return op_type, values, {"direction": r.pick("LEFT", "RIGHT")}, opset


def images(r: Random) -> Case:
    op_type = r.pick("MaxUnpool", "Col2Im", "RoiAlign", "GridSample", "Det", "Pad", "CausalConv")
    if op_type == "MaxUnpool":
        size, kernel = r.integers(1, 4, 2), r.integers(1, 3, 2)
        extents = [(n - 1) * k + k for n, k in zip(size, kernel, strict=True)]
        places = r.rng.permutation(6 * extents[0] * extents[1])[: 6 * size[0] * size[1]]
        values: Values = [(r.normal(2, 3, *size), False), (places.reshape(2, 3, *size), False)]
        if r.chance(0.3):
            values.append((np.array([2, 3, *extents]), True))
        return op_type, values, {"kernel_shape": kernel, "strides": kernel}, 11
    if op_type == "Col2Im":
        rank = r.integer(1, 3)
        size, kernel = r.integers(4, 7, rank), r.integers(1, 3, rank)
        strides, dilations, pads = (r.integers(1, 2, rank) for _ in range(3))
        spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        counts = [(n + 2 * p - s - 1) // t + 1 for n, p, s, t in zip(
            size, pads, spans, strides, strict=True)]  # fmt: skip
        columns = r.normal(2, 3 * int(np.prod(kernel)), max(0, int(np.prod(counts))))
        values = [(columns, False), (np.array(size), True), (np.array(kernel), True)]
        return op_type, values, {
            "strides": strides, "dilations": dilations, "pads": pads * 2
        }, 18  # fmt: skip
    if op_type == "RoiAlign":
        begin = r.rng.uniform(-2, 6, (3, 2))
        regions = np.concatenate([begin, begin + r.rng.uniform(0.2, 6, (3, 2))], 1)
        values = [(r.normal(2, 3, *r.integers(2, 8, 2)), False)]
        values += [(regions.astype("float32"), False), (r.rng.integers(0, 2, 3), False)]
        return op_type, values, {
            "output_height": r.integer(1, 4), "output_width": r.integer(1, 4), "mode": "max",
            "sampling_ratio": r.integer(0, 3), "spatial_scale": r.pick(1.0, 0.5),
            "coordinate_transformation_mode": r.pick("half_pixel", "output_half_pixel"),
        }, r.pick(16, 22)  # fmt: skip
    if op_type == "GridSample":
        grid = r.rng.uniform(-1.7, 1.7, (2, *r.integers(1, 4, 3), 3)).astype("float32")
        attributes = {
            "mode": r.pick("linear", "nearest", "cubic"), "align_corners": r.integer(0, 1),
            "padding_mode": r.pick("zeros", "border", "reflection"),
        }  # fmt: skip
        return (
            op_type,
            [(r.normal(2, 3, *r.integers(1, 5, 3)), False), (grid, False)],
            attributes,
            20,
        )
    if op_type == "Det":
        size = r.integer(1, 4)
        return op_type, [(r.normal(*r.shape(r.integer(0, 2)), size, size), False)], {}, 11
    if op_type == "Pad":
        shape = r.shape(low=2)
        pads = np.array([r.integer(-1, 2) for _ in range(2 * len(shape))])
        x = r.normal(*shape, dtype=r.pick("float32", "int32", "float16"))
        return op_type, [(x, False), (pads, True), (np.array(3, x.dtype), False)], {}, 13
    channels, taps, length = r.integer(1, 5), r.integer(2, 4), r.integer(1, 9)
    values = [(r.normal(2, channels, length), False), (r.normal(channels, 1, taps), True)]
    values.append((r.normal(channels), True) if r.chance(0.5) else (None, True))
    values.append((r.normal(2, channels, taps - 1), False) if r.chance(0.5) else (None, False))
    return "CausalConvWithState", values, {"activation": r.pick("none", "silu")}, 27


def linear_attention(r: Random) -> Case:
    shared, group, length = r.integer(1, 2), r.integer(1, 3), r.integer(1, 5)
    depth, width = r.integer(1, 4), r.integer(1, 4)
    rule = r.pick("linear", "gated", "delta", "gated_delta")
    values: Values = [(r.normal(2, length, shared * group * depth), False)]
    values += [(r.normal(2, length, shared * n, scale=0.5), False) for n in (depth, width)]
    values.append((r.normal(2, shared, depth, width) if r.chance(0.5) else None, False))
    decay = r.normal(2, length, shared * r.pick(1, depth), scale=0.3)
    beta = r.normal(2, length, r.pick(1, shared), scale=0.5)
    values += [
        (decay if "gated" in rule else None, False),
        (beta if "delta" in rule else None, False),
    ]
    return "LinearAttention", values, {
        "q_num_heads": shared * group, "kv_num_heads": shared, "update_rule": rule
    }, 27  # fmt: skip


SEQUENCES: dict[str, Callable[[Random], Case]] = {
    "attention": attention, "rotary": rotary, "loss": loss, "spectrum": spectrum, "rows": rows,
    "images": images, "linear_attention": linear_attention,
}  # fmt: skip
