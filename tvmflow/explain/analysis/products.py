"""Sums of products: whether dot products or tensor cores compute them, and what prevents that.

A dot product multiplies four pairs of bytes at once, which must be contiguous in memory along the
summed axis.  Tensor cores multiply tiles of 16 x 16 numbers of 16 or 8 bits.  The sum over ``k`` of
``a[i, k] * b[j, k]`` has rows ``i``, which only ``a`` has, columns ``j``, which only ``b`` has, and
depth ``k``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import IterVar

from ...devices.target import TargetSpec
from ...ir.dot_products import DOT
from ...ir.evaluate import variables
from ...ir.expressions import nodes_in
from ...ir.rewriter import op_name
from ...ir.traffic import points_of
from ..profiling.record import Finding
from .global_memory import step_along
from .hardware import hardware_of
from .lowered import InKernel, LoweredKernel, of_kernels

#: Pairs of bytes that a dot product multiplies.
_PAIRS = 4
#: Rows, columns and depth of a tile of tensor cores.
_TILE = 16
#: Names of faster units, and their products per cycle relative to fp32 (an A100's tensor cores have
#: 312 TFLOP/s in fp16, and 19.5 in fp32).
_UNITS = {"dot-product": ("Dot products", _PAIRS), "tensor-core": ("Tensor cores", 16)}
_REMEDY = {
    "dot-product": "Pack four numbers of the summed axis into 32 bits, padded with zeros "
    "(tvmflow.ir.dot_products.dot).",
    "tensor-core": "Store tensors with `dtype=fp16` and use tiles of at least 16 x 16 x 16, "
    "padded where they are smaller.",
}
_BYTES = frozenset({"int8", "uint8"})


@dataclass(frozen=True)
class Product(InKernel):
    """A sum of products in a kernel, and the unit that computes it; the text names its tensors."""

    #: Types of the factors in memory.
    dtypes: tuple[str, str]
    multiply_adds: int
    rows: int
    columns: int
    depth: int
    #: Unit that computes it: ``dot-product`` or ``arithmetic``.
    unit: str
    #: Reasons why it cannot be a dot product; empty if it can.
    no_dot_product: tuple[str, ...]
    #: Reasons why tensor cores cannot compute it; empty if they can.
    no_tensor_core: tuple[str, ...]


@of_kernels
def products(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Product]:
    """Find sums of products, the units that compute them, and obstacles to faster units.

    Tensor cores are known on ``cuda`` only.  Products that already use them are not listed, because
    their code has no such sum any more.
    """
    for block, loads, is_dot in _sums(kernel.source):
        store = block.body
        reduced = [v.var for v in block.iter_vars if v.iter_type == IterVar.CommReduce]
        total, first, second = (str(b.name) for b in (store.buffer, *(x.source for x in loads)))
        # Reads first: the first write may be the initialization.
        sites = sorted((s for s in kernel.sites if s.name == total), key=lambda s: s.is_store)
        if not sites:
            continue
        extents = {v.var: int(v.dom.extent) for v in block.iter_vars}
        pairs = _PAIRS if is_dot else 1
        own, other = (set(variables(load.indices)) for load in loads)
        sizes = {
            "rows": prod(n for var, n in extents.items() if var in own - other),
            "columns": prod(n for var, n in extents.items() if var in other - own),
            "depth": prod(extents[var] for var in reduced) * pairs,
        }
        left, right = (str(load.source.dtype) for load in loads)
        runs = [extents[v] for v in reduced if all(_steps_by_one(load, v) for load in loads)]
        yield Product(
            kernel=kernel.name,
            text=f"{total} += {first} * {second}",
            line=kernel.line(*sites),
            dtypes=(left, right),
            multiply_adds=prod(extents.values()) * pairs,
            **sizes,
            unit="dot-product" if is_dot else "arithmetic",
            no_dot_product=() if is_dot else tuple(_no_dot((left, right), runs)),
            no_tensor_core=tuple(_no_tensor((left, right), sizes, target)),
        )


def multiply_adds_of(function: tirx.PrimFunc) -> int:
    """Count the multiply-adds of a primary function's sums of products, scheduled or not."""
    return sum(points_of(block) * (_PAIRS if is_dot else 1) for block, _, is_dot in _sums(function))


def _sums(
    function: tirx.PrimFunc,
) -> Iterator[tuple[s_tir.SBlock, tuple[TensorLoad, TensorLoad], bool]]:
    """Yield the blocks that sum up products, their two factors, and whether it is a dot product."""
    for block in nodes_in(function.body, s_tir.SBlock):
        is_sum = any(v.iter_type == IterVar.CommReduce for v in block.iter_vars)
        if is_sum and isinstance(block.body, tirx.BufferStore):
            factors = _factors(block.body)
            if factors is not None:
                yield block, *factors


def _factors(store: tirx.BufferStore) -> tuple[tuple[TensorLoad, TensorLoad], bool] | None:
    """Return the two factors of a sum of products, and whether it is a dot product."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for total, term in ((value.a, value.b), (value.b, value.a)):
        if not (isinstance(total, TensorLoad) and total.source.same_as(store.buffer)):
            continue
        inner = term
        while isinstance(inner, tirx.Cast):
            inner = inner.value
        if op_name(inner) == DOT:
            operands, is_dot = inner.args[1:], True
        elif isinstance(inner, tirx.Mul):
            operands, is_dot = (inner.a, inner.b), False
        else:
            return None
        first, second = (nodes_in(operand, TensorLoad) for operand in operands)
        # Padding and zero points may surround the only load of a factor.
        if len(first) == len(second) == 1:
            return (first[0], second[0]), is_dot
    return None


def _steps_by_one(load: TensorLoad, var: tirx.Var) -> bool:
    """Return whether numbers along an axis are contiguous in memory."""
    *others, last = load.indices
    return var not in variables(others) and step_along(last, var) == 1


def _no_dot(dtypes: Sequence[str], runs: Sequence[int]) -> Iterator[str]:
    """Yield obstacles to dot products; ``runs`` are extents of axes with contiguous factors."""
    if not _BYTES.issuperset(dtypes):
        yield f"its factors are {_both(dtypes)}, not integers of 8 bits"
    if not runs:
        yield "its factors are not both contiguous in memory along the summed axis"
    elif all(extent % _PAIRS for extent in runs):
        yield f"the summed axis is not a multiple of {_PAIRS}"


def _no_tensor(
    dtypes: Sequence[str], sizes: Mapping[str, int], target: TargetSpec
) -> Iterator[str]:
    gpu = target.device.multiprocessors
    if gpu is None or not gpu.tensor_cores:
        yield "no tensor cores are known for the target"
    if not {"float16", "bfloat16", *_BYTES}.issuperset(dtypes):
        yield f"its factors are {_both(dtypes)}, not of 16 or 8 bits"
    if small := [f"{size} {name}" for name, size in sizes.items() if size < _TILE]:
        yield f"it has only {' and '.join(small)} for tiles of {_TILE}"


def _both(names: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(names))


def product_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find products that a faster unit could compute, possibly after removing one obstacle."""
    wave = hardware_of(target).wave
    gpu = target.device.multiprocessors
    for product in products(kernel, target):
        units = []
        if product.unit == "arithmetic" and _BYTES.issuperset(product.dtypes):
            units.append(("dot-product", product.no_dot_product))
        if gpu is not None and gpu.tensor_cores and len(product.no_tensor_core) < 2:
            units.append(("tensor-core", product.no_tensor_core))
        for kind, reasons in units:
            name, speed = _UNITS[kind]
            why = f"do not, as {' and '.join(reasons)}" if reasons else "could"
            yield product.finding(
                kind,
                # A wave's multiply-adds take a cycle.
                {"cycles": product.multiply_adds / wave * (1 - 1 / speed)},
                1 - 1 / speed,
                f"{product.multiply_adds:,} multiply-adds are computed by {product.unit}. "
                f"{name} {why}.",
                _REMEDY[kind],
            )
