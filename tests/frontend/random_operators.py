"""Random cases of other operators, with any rank, dtype, broadcasting, axis and operator set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from random_windows import Case, Random

FLOATS = ("float32", "float32", "float16", "float64")
ANY = ("float32", "float16", "float64", "int32", "int64", "uint8", "int8")


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def pad(r: Random) -> Case:
    opset, shape = r.pick(9, 11, 13, 18, 19, 21), r.shape(low=2)
    mode = r.pick("constant", "reflect", "edge", *(["wrap"] if opset >= 19 else []))
    low = -1 if mode == "constant" else 0
    pads = [min(r.integer(low, 2), shape[i % len(shape)] - 1) for i in range(2 * len(shape))]
    x = r.normal(*shape, dtype=r.pick(*ANY) if opset >= 13 else r.pick(*FLOATS))
    if opset < 11:
        return "Pad", [(x, False)], {"mode": mode, "pads": pads, "value": 1.5}, opset
    values = [(x, False), (int64(*pads), True)]
    if mode == "constant" and r.chance(0.5):
        values.append((np.array(3, x.dtype), True))
    return "Pad", values, {"mode": mode}, opset


def slice_(r: Random) -> Case:
    shape, opset = r.shape(low=3, high=6), r.pick(9, 10, 13)
    axes = [int(a) for a in r.rng.permutation(len(shape))[: r.integer(1, len(shape))]]
    x = r.normal(*shape, dtype=r.pick(*ANY))
    starts, ends, steps = [], [], []
    for _ in axes:
        backward = opset >= 10 and r.chance(0.3)
        low, high = r.pick(-9, -3, 0, 1), r.pick(2, 3, -1, 2**31, 2**63 - 1)
        starts.append(high if backward else low)
        ends.append(low - 4 if backward else high)
        steps.append(r.pick(-1, -2) if backward else r.pick(1, 1, 2, 3) if opset >= 10 else 1)
    if opset == 9:
        return "Slice", [(x, False)], {"starts": starts, "ends": ends, "axes": axes}, opset
    return (
        "Slice", [(x, False), *((int64(*v), True) for v in (starts, ends, axes, steps))], {}, opset
    )  # fmt: skip


def reduction(r: Random) -> Case:
    op_type = r.pick(
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    )  # fmt: skip
    opset, shape = r.pick(9, 11, 13, 18, 20), r.shape()
    logarithm = op_type.startswith("ReduceLog")
    dtype = r.pick("float32", "float64", *([] if logarithm else ["int32", "int64", "float16"]))
    x = r.normal(*shape, dtype=dtype)
    values = [(np.abs(x) if op_type == "ReduceLogSum" else x, False)]
    attributes: dict[str, Any] = {"keepdims": r.integer(0, 1)}
    axes = [int(a) for a in r.rng.permutation(len(shape))[: r.integer(1, len(shape))]]
    if opset >= 11 and r.chance(0.3):
        axes = [axis - len(shape) for axis in axes]
    as_input = opset >= 18 or (op_type == "ReduceSum" and opset >= 13)
    if as_input and r.chance(0.3):
        attributes["noop_with_empty_axes"] = 1
    if r.chance(0.7) and as_input:
        values.append((int64(*axes), True))
    elif r.chance(0.7) and not as_input:
        attributes["axes"] = axes
    return op_type, values, attributes, opset


def clip(r: Random) -> Case:
    opset = r.pick(9, 11, 12, 13)
    dtype = "float32" if opset < 12 else r.pick(*ANY)
    x = r.normal(*r.shape(), dtype=dtype)
    low, high = (0, 3) if dtype == "uint8" else (-1, 2)
    if opset < 11:
        limits = {"min": float(low), "max": float(high)}
        return "Clip", [(x, False)], {k: v for k, v in limits.items() if r.chance(0.7)}, opset
    constant = r.chance(0.7)
    values = [np.array(v, dtype) if r.chance(0.7) else None for v in (low, high)]
    return "Clip", [(x, False), *((v, constant) for v in values)], {}, opset


def activation(r: Random) -> Case:
    op_type = r.pick(
        "LeakyRelu", "Elu", "Selu", "HardSigmoid", "ThresholdedRelu", "Softplus", "Softsign",
        "Sigmoid", "Tanh", "Erf", "HardSwish", "Mish", "Celu", "Gelu", "Relu", "Exp", "Sqrt", "Abs",
        "Neg", "Floor", "Ceil", "Round", "Sign", "Reciprocal", "Shrink", "Log", "Sin", "Cos",
        "Atan", "Sinh", "Tan", "Asin", "Acos", "Acosh", "Asinh", "Atanh", "Cosh",
    )  # fmt: skip
    opset = {"HardSwish": 14, "Mish": 18, "Celu": 12, "Gelu": 20, "Relu": 14}.get(op_type, 13)
    whole = op_type in ("Abs", "Neg", "Sign")
    dtype = r.pick("float32", "float64", "int32", "int64", "int8") if whole else "float32"
    x = r.normal(*r.shape(), dtype=dtype, scale=3.0)
    attributes: dict[str, Any] = {}
    if op_type == "Round":
        x = np.round(x * 2) / 2  # multiples of 1/2, for ties to even
    if op_type in ("LeakyRelu", "Elu", "ThresholdedRelu", "Celu") and r.chance(0.6):
        attributes["alpha"] = float(r.rng.uniform(0.1, 2))
    if op_type == "Gelu":
        attributes["approximate"] = r.pick("none", "tanh")
    if op_type == "Shrink":
        attributes = {"lambd": 0.7, "bias": 0.2}
    return op_type, [(x, False)], attributes, opset


def broadcasting(r: Random) -> Case:
    op_type = r.pick(
        "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Mean", "Sum", "PRelu", "Equal",
        "Less", "Greater", "LessOrEqual", "And", "Or", "Xor", "Where", "BitwiseAnd",
    )  # fmt: skip
    shape = r.shape()
    narrow = [1 if r.chance(0.3) else e for e in shape][r.integer(0, len(shape) - 1) :]
    floating = op_type in ("Mean", "PRelu", "Sum")
    dtype = r.pick("float32", "float64") if floating else r.pick(
        "float32", "float64", "int32", "int64"
    )  # fmt: skip
    if op_type == "BitwiseAnd":
        dtype = r.pick("int32", "uint8")
    a, b = r.normal(*shape, dtype=dtype), r.normal(*narrow, dtype=dtype)
    attributes, opset = {}, 18
    whole = dtype.startswith("int")
    if op_type in ("And", "Or", "Xor"):
        a, b = a > 0, b > 0
    if op_type == "Where":
        return op_type, [(a > 0, False), (a, False), (b, r.chance(0.5))], {}, opset
    if op_type in ("Div", "Mod") and whole:
        b = np.where(b == 0, 3, b).astype(dtype)
    if op_type == "Mod":
        attributes["fmod"] = r.integer(0, 1) if whole else 1
    if op_type == "Pow":
        a, b = _power(r, a, b)
    return op_type, [(a, False), (b, r.chance(0.5))], attributes, opset


def _power(r: Random, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kind = r.pick("whole", "square", "cube", "root", "any")
    if a.dtype.kind == "f":
        a = np.abs(a)
    if kind == "whole":
        return a, (np.abs(b).astype("int64") % 4).astype(r.pick("int32", "int64", "float32"))
    if kind == "square":
        return a, np.array(2, r.pick("float32", "int64", a.dtype.name))
    if kind == "cube":
        return a, np.array([3], a.dtype)
    if kind == "root":
        return np.abs(a), np.array(0.5, "float32")
    return a, (np.abs(b) % 4).astype(b.dtype)


def product(r: Random) -> Case:
    if r.chance(0.5):
        k = r.integer(1, 5)
        left = r.pick([k], [3, k], [2, 3, k], [2, 1, 3, k])
        right = r.pick([k], [k, 4], [2, k, 4], [1, 2, k, 4])
        dtype = r.pick("float32", "float64", "int32")
        values = [(r.normal(*left, dtype=dtype), False)]
        return "MatMul", [*values, (r.normal(*right, dtype=dtype), r.chance(0.5))], {}, 13
    m, k, n = r.integers(1, 5, 3)
    attributes: dict[str, Any] = {"transA": r.integer(0, 1), "transB": r.integer(0, 1)}
    if r.chance(0.5):
        attributes |= {"alpha": r.pick(0.4, 1.7), "beta": r.pick(0.0, 0.6, 1.3)}
    dtype = r.pick("float32", "float64")
    shape = r.pick(None, (n,), (m, n), (m, 1), (), (1, n))
    bias = None if shape is None else r.normal(*shape, dtype=dtype)
    left, right = (k, m) if attributes["transA"] else (m, k), (k, n)
    right = (n, k) if attributes["transB"] else right
    return (
        "Gemm",
        [
            (r.normal(*left, dtype=dtype), False),
            (r.normal(*right, dtype=dtype), r.chance(0.5)),
            (bias, r.chance(0.5)),
        ],
        attributes,
        r.pick(11, 13),
    )


OPERATORS: dict[str, Callable[[Random], Case]] = {
    "pad": pad, "slice": slice_, "reduction": reduction, "clip": clip, "activation": activation,
    "broadcasting": broadcasting, "product": product,
}  # fmt: skip
