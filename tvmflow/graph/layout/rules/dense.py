"""Rules for matrix products of plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import relax, te

from ....ir import blocked
from ....ir.expressions import INJECTIVE
from ....ir.half_sums import fits_half
from ....ir.limits import LARGE_WEIGHT_BYTES
from ....ir.rewriter import constant_array, shape_of
from ....schedules import dense, gemm, matmul
from ..layout import LayoutPass, Result, rule
from ..quantized import quantized
from . import resize

#: With fewer rows than this, the matrices of a batch are multiplied as one.
FEW_ROWS = 8


@rule("relax.matmul")
def matmul_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite a product with constant weights, with large weights, or of two computed tensors.

    Constant weights are packed; large ones stay ``[K, N]`` or ``[N, K]``.
    """
    x, weight = call.args
    shape, rank = shape_of(call), len(shape_of(weight))
    if len(shape) == 4 and (mixed := resize.mix_rule(layout, call)) is not None:
        return mixed
    if str(call.ty.dtype) not in ("float32", "int32") or min(len(shape_of(x)), rank) < 2:
        return None
    array, rows = constant_array(weight), layout.transposed.get(weight)
    if rank > 2 or (array is None and rows is None and not _stays(layout, call)):
        return _computed(layout, call)
    compute: Callable[..., te.Tensor] = dense.compute_packed
    excess = None
    integers = None if array is None else quantized(layout, x, array, (0,), dots=True)
    if integers is not None:
        x, array, excess = integers.source, integers.weight, integers.excess
        compute = integers.integers.around(compute)
    elif array is not None and _pays(layout, call, prod(shape[:-1])):
        left = layout.plain_as(x, (prod(shape[:-1]), array.shape[0]))
        extents = gemm.padded_depth(len(array)), gemm.padded(array.shape[1])
        weights = blocked.pad_matrix(array, *extents)
        return Result(_shaped(_product(layout, left, layout.constant(weights), call), shape), False)
    # With few rows, the matrices of the batch are flattened to one.
    flat = shape[-2] < FEW_ROWS or array is None
    left = layout.plain_as(x, (prod(shape[:-1]), shape_of(x)[-1])) if flat else layout.substitute(x)
    if array is not None:
        weights = blocked.split_axis(array.T, 0, layout.block)
        if layout.device.is_cpu:
            panels = dense.whole_panels(array.shape[1], layout.block)
            weights = blocked.pad_axis(weights, 0, panels)
        packed = layout.constant(weights)
        sums = layout.sums(call, array.shape[0], array.T)
        expr = layout.emit("dense", compute, left, packed, array.shape[1], sums=sums)
        if excess is not None:
            expr = layout.bb.emit(relax.op.subtract(expr, layout.constant(excess)))
    elif rows is None:
        columns = layout.substitute(weight)
        expr = layout.emit("dense", dense.compute_columns, left, columns, layout.block)
    else:
        expr = layout.emit("dense", dense.compute_rows, left, rows, layout.block)
    return Result(_shaped(expr, shape), False)


def _pays(layout: LayoutPass, call: relax.Call, rows: int) -> bool:
    """Return whether CUDA's matrix schedules are faster for matrices of ``rows`` rows."""
    gpu = layout.device.multiprocessors
    if gpu is None or (layout.half and not gpu.tensor_cores) or str(call.ty.dtype) != "float32":
        return False
    weight = constant_array(call.args[1])
    if layout.half and weight is not None and not fits_half(weight):
        return False
    shape = shape_of(call)
    batch = prod(shape[:-1]) // rows
    return gemm.pays(rows, shape[-1], shape_of(call.args[0])[-1], batch)


def _product(
    layout: LayoutPass, left: relax.Expr, right: relax.Expr, call: relax.Call
) -> relax.Var:
    units = shape_of(call)[-1]
    return layout.emit("matmul", gemm.compute_matmul, left, right, units, half=layout.half)


def _stays(layout: LayoutPass, call: relax.Call) -> bool:
    """Return whether a right operand is read unchanged: it is large, or few rows are."""
    weight = call.args[1]
    if not layout.is_parameter(weight):
        return False
    units = shape_of(weight)[1]
    in_vectors = units % layout.block == 0 and shape_of(call)[-2] < FEW_ROWS
    return in_vectors or 4 * prod(shape_of(weight)) >= LARGE_WEIGHT_BYTES


def _computed(layout: LayoutPass, call: relax.Call) -> Result:
    """Emit a product of two computed tensors: tiled in local memory, or with packed columns."""
    left, right = (layout.substitute(arg) for arg in call.args)
    if _pays(layout, call, shape_of(call)[-2]):
        return Result(_product(layout, left, right, call), False)
    if not layout.device.is_cpu:
        return Result(layout.emit("matmul", matmul.compute, left, right), False)
    packed = layout.emit("pack_columns", dense.pack_columns, right, layout.block, pattern=INJECTIVE)
    units = shape_of(call)[-1]
    return Result(layout.emit("dense", dense.compute_packed, left, packed, units), False)


def _shaped(expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return expr if shape_of(expr) == shape else relax.op.reshape(expr, shape)
