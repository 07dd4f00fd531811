"""Converters of reductions, positions of extremes, cumulative sums and sorting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant
from ..converter import NodeContext, Refusal, converts, dtype_of, normalized_axes, normalized_axis

_Operator = Callable[..., relax.Expr]


#: Reductions, each between an operator on the elements before and one on the result after it.
_REDUCTIONS: dict[str, tuple[_Operator | None, _Operator, _Operator | None]] = {
    "ReduceSum": (None, R.sum, None), "ReduceMean": (None, R.mean, None),
    "ReduceMax": (None, R.max, None), "ReduceMin": (None, R.min, None),
    "ReduceProd": (None, R.prod, None), "ReduceL1": (R.abs, R.sum, None),
    "ReduceL2": (lambda x: x * x, R.sum, R.sqrt), "ReduceSumSquare": (lambda x: x * x, R.sum, None),
    "ReduceLogSum": (None, R.sum, R.log),
}  # fmt: skip

#: Reductions that refuse integers, which Relax rounds differently or not at all.
_FLOATING = ("ReduceMean", "ReduceL2", "ReduceLogSum")

#: Types in which to sort, for types that TVM cannot sort.
_SORTED_IN = {
    "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64", "float16": "float32",
}  # fmt: skip


@converts(*_REDUCTIONS)
def reduction(c: NodeContext) -> relax.Expr:
    """Reduce some axes, which are dropped or keep the extent 1."""
    before, reduce, after = _REDUCTIONS[c.op_type]
    axes, keepdims = _axes(c), bool(c.attribute("keepdims", 1))
    if c.op_type in _FLOATING and not c.is_float():
        raise Refusal(f"{c.dtype()} values are not supported")
    x = before(c.input()) if before else c.input()
    if c.dtype() == "bool":  # the maximum or minimum of bools
        x = R.astype(x, "int8")
    if axes:
        x = wide_reduction(c, reduce, x, axes, keepdims)
    if c.dtype() == "bool":
        return R.astype(x, "bool")
    return after(x) if after else x


def wide_reduction(
    c: NodeContext, reduce: _Operator, x: relax.Expr, axes: list[int], keepdims: bool
) -> relax.Expr:
    """Reduce; sums and products of float16, which overflow at 65504, are computed in float32."""
    if c.dtype() != "float16" or reduce not in (R.sum, R.mean, R.prod):
        return reduce(x, axes, keepdims)
    return R.astype(reduce(R.astype(x, "float32"), axes, keepdims), "float16")


@converts("ReduceLogSumExp")
def reduce_log_sum_exp(c: NodeContext) -> relax.Expr:
    """Return the logarithm of the sum of exponentials, without overflow."""
    axes, keepdims = _axes(c), bool(c.attribute("keepdims", 1))
    x = c.input()
    if not axes:
        return x
    largest = R.max(x, axes, keepdims=True)
    # Nothing is subtracted if the maximum is infinite, because infinity - infinity would be NaN.
    infinite = R.abs(largest) >= c.constant(np.inf)
    largest = R.where(infinite, c.constant(0), largest)
    result = R.log(R.sum(R.exp(x - largest), axes, keepdims=True)) + largest
    return result if keepdims else R.squeeze(result, axes)


def _axes(c: NodeContext) -> list[int]:
    """Return the axes to reduce, from an attribute in older operator sets, else from an input."""
    rank = len(c.shape())
    attribute = c.attribute("axes") or []
    given = c.array(1, "axes").reshape(-1).tolist() if c.has(1) else list(attribute)
    if not given:
        return [] if c.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return normalized_axes(given, rank)


@converts("ArgMax", "ArgMin")
def arg_extreme(c: NodeContext) -> relax.Expr:
    """Return the position of the first, or on request the last, largest or smallest element."""
    axis, keepdims = c.axis(0), bool(c.attribute("keepdims", 1))
    x, largest = c.input(), c.op_type == "ArgMax"
    if not c.attribute("select_last_index", 0):
        return first_extreme(x, axis, keepdims, largest)
    if not c.is_float():
        return _last_extreme(c, x, axis, keepdims, largest)
    lowest = c.constant(-np.inf if largest else np.inf)
    is_number = x >= c.constant(-np.inf)
    numbers = R.where(is_number, x, lowest)
    # NaN is never the extreme, even if all numbers are infinite: then it is the last number.
    extreme = (R.max if largest else R.min)(numbers, [axis], keepdims=keepdims)
    others = _last_extreme(c, numbers, axis, keepdims, largest)
    last_number = _last_extreme(c, R.astype(is_number, "float32"), axis, keepdims, largest=True)
    position = R.where(R.equal(extreme, lowest), last_number, others)
    # The first element is an exception: if it is NaN, it is the extreme.
    first = R.strided_slice(x, [axis], [0], [1])
    first = first if keepdims else R.squeeze(first, [axis])
    return R.where(first >= c.constant(-np.inf), position, constant(np.array(0, np.int64)))


def _last_extreme(
    c: NodeContext, x: relax.Expr, axis: int, keepdims: bool, largest: bool
) -> relax.Expr:
    position = first_extreme(R.flip(x, axis), axis, keepdims, largest)
    return constant(np.array(c.shape()[axis] - 1, np.int64)) - position


def first_extreme(x: relax.Expr, axis: int, keepdims: bool, largest: bool) -> relax.Expr:
    """Return the position of the first largest or smallest element along an axis."""
    position = (R.argmax if largest else R.argmin)(x, axis, keepdims)
    # Relax searches for an element above the type's smallest number (or below its largest), and
    # returns -1 if all elements are that number.
    return R.maximum(position, constant(np.array(0, np.int64)))


@converts("CumSum", "CumProd")
def cumulative(c: NodeContext) -> relax.Expr:
    """Return the sum or product of all elements up to each one, or from the end to each one."""
    axis = normalized_axis(int(c.array(1, "axis").reshape(())), len(c.shape()))
    exclusive, backwards = bool(c.attribute("exclusive", 0)), bool(c.attribute("reverse", 0))
    x = R.flip(c.input(), axis) if backwards else c.input()
    accumulate = R.cumsum if c.op_type == "CumSum" else R.cumprod
    total = accumulate(x, axis, dtype=c.dtype(), exclusive=exclusive)
    return R.flip(total, axis) if backwards else total


@converts("TopK")
def top_k(c: NodeContext) -> list[relax.Expr]:
    """Return the k largest or smallest elements in order, and their positions."""
    axis = c.axis(-1)  # the result is also sorted with sorted=0, which allows any order
    k = int(c.array(1, "number of elements").reshape(())) if c.has(1) else c.required("k")
    largest = bool(c.attribute("largest", 1))
    x, dtype = c.input(), c.dtype()
    if not c.is_float() and dtype not in _SORTED_IN:
        pair = R.topk(x, k, axis, "both", largest, "int64")
        return [relax.TupleGetItem(pair, 0), relax.TupleGetItem(pair, 1)]
    keys = c.cast(x, _SORTED_IN.get(dtype, dtype))
    if c.is_float():
        # As in ONNX Runtime NaN is the largest: it becomes infinity, and infinity less.
        finite = R.minimum(keys, c.constant(np.finfo(c.dtype()).max, dtype_of(keys)))
        is_number = keys >= c.constant(-np.inf, dtype_of(keys))
        keys = R.where(is_number, finite, c.constant(np.inf, dtype_of(keys)))
    elif dtype == "uint64":
        # As int64 the upper half of uint64 is negative; flipping the sign bit restores the order.
        keys = R.bitwise_xor(keys, constant(np.array(np.iinfo(np.int64).min)))
    places = c.emit(R.topk(keys, k, axis, "indices", largest, "int64"))
    return [R.gather_elements(x, places, axis), places]
