"""Arithmetic on elements in expressions of TIR; on indices it does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ...codegen.dot_products import NAME as DOT

#: Products and sums of one ``wmma`` instruction, of blocks of 16×16×16.
_MMA_FLOPS = 2 * 16**3
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max),
)
#: Calls that compute nothing.
_FREE = {"tirx.reinterpret", "prim.likely", "tirx.assume", "tirx.vectorlow", "tirx.vectorhigh"}


class UncountableError(Exception):
    """How often something runs depends on data, or on code that is elsewhere."""


def operations(expr: Any) -> Counter[str]:
    """Operations on elements in an expression, by kind."""
    found: Counter[str] = Counter()
    if isinstance(expr, _ARITHMETIC):
        found = operations(expr.a) + operations(expr.b)
        if _is_of_elements(expr):
            found[_kind(expr)] += _lanes(expr)
    elif isinstance(expr, (tirx.Cast, tirx.Broadcast)):
        found = operations(expr.value)
    elif isinstance(expr, tirx.Select):
        found = operations(expr.true_value) | operations(expr.false_value)
    elif isinstance(expr, tirx.Let):
        found = operations(expr.value) + operations(expr.body)
    elif isinstance(expr, Call):
        found = _of_call(expr)
    return found


def _of_call(call: Any) -> Counter[str]:
    name = getattr(call.op, "name", "")
    if name == "prim.if_then_else":
        return operations(call.args[1]) | operations(call.args[2])
    if name == "tirx.tvm_call_packed":
        raise UncountableError
    if name == "tirx.tvm_mma_sync":
        return Counter({"fp16": _MMA_FLOPS})
    found = sum((operations(argument) for argument in call.args), Counter())
    if name == DOT:
        found["int8"] += 8 * _lanes(call)
    elif name not in _FREE and _dtype(call).startswith(("float", "bfloat")):
        found[_kind(call)] += _lanes(call)
    return found


def _is_of_elements(expr: Any) -> bool:
    return _dtype(expr).startswith(("float", "bfloat")) or any(True for _ in loads_in(expr))


def _kind(expr: Any) -> str:
    dtype = _dtype(expr)
    if dtype.startswith("float16"):
        return "fp16"
    return "fp32" if dtype.startswith(("float", "bfloat")) else "int8"


def _dtype(expr: Any) -> str:
    return str(getattr(expr.ty, "dtype", ""))


def _lanes(expr: Any) -> int:
    return int(expr.ty.dtype.lanes)


def loads_in(node: Any) -> Iterator[Any]:
    """Every access of a tensor in a statement or an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (TensorLoad, found.append))
    return iter(found)
