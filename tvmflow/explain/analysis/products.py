"""Sums of products: whether dot products or tensor cores compute them, and what prevents that.

A dot product multiplies four pairs of bytes at once, which stand side by side in memory along
the axis that is summed.  Tensor cores multiply tiles of 16 x 16 numbers of 16 or 8 bits.  A sum
over ``k`` of ``a[i, k] * b[j, k]`` has rows ``i``, which only ``a`` has, columns ``j``, which only
``b`` has, and depth ``k``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tvm import s_tir, tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad
from tvm.tirx import IterVar

from ...codegen.dot_products import NAME as DOT
from ...devices.target import TargetSpec
from ...ir.evaluate import variables
from ...ir.expressions import nodes_in
from ..profiling.record import Finding
from .global_memory import step_along
from .hardware import hardware_of
from .lowered import InKernel, LoweredKernel, of_kernels

#: Pairs of bytes that a dot product multiplies.
_PAIRS = 4
#: Rows, columns and depth of a tile of tensor cores.
_TILE = 16
#: Products a cycle against those of fp32: an A100's 312 TFLOP/s in fp16 against 19.5.
_TENSOR_SPEED = 16


@dataclass(frozen=True)
class Product(InKernel):
    """A sum of products in a kernel, and what computes it; its text has sum and factors."""

    #: As they are in memory.
    dtypes: tuple[str, str]
    multiply_adds: int
    rows: int
    columns: int
    depth: int
    #: What computes it: ``dot-product`` or ``arithmetic``.
    unit: str
    #: Why it is no dot product; empty if it could be one, or is.
    no_dot_product: tuple[str, ...]
    #: Why tensor cores do not compute it; empty if they could, or do.
    no_tensor_core: tuple[str, ...]


@of_kernels
def products(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Product]:
    """Find sums of products, what computes them, and what prevents faster units.

    Tensor cores are known on ``cuda`` only.  What is already in instructions of tensor cores has no
    such sum any more, and is not listed.
    """
    names = {site.name for site in kernel.sites}
    for block in nodes_in(kernel.source.body, s_tir.SBlock):
        product = _product(kernel, block, target)
        if product is not None and str(block.body.buffer.name) in names:
            yield product


def _product(kernel: LoweredKernel, block: s_tir.SBlock, target: TargetSpec) -> Product | None:
    store = block.body
    reduced = [v.var for v in block.iter_vars if v.iter_type == IterVar.CommReduce]
    if not isinstance(store, tirx.BufferStore) or not reduced:
        return None
    factors = _factors(store)
    if factors is None:
        return None
    first, second, is_dot = factors
    extents = {v.var: int(v.dom.extent) for v in block.iter_vars}
    of = [set(variables(load.indices)) for load in (first, second)]
    rows = prod(n for var, n in extents.items() if var in of[0] - of[1])
    columns = prod(n for var, n in extents.items() if var in of[1] - of[0])
    depth = prod(extents[var] for var in reduced)
    pairs = _PAIRS if is_dot else 1
    total = str(store.buffer.name)
    dtypes = (str(first.source.dtype), str(second.source.dtype))
    side_by_side = [
        var for var in reduced if all(_steps_by_one(load, var) for load in (first, second))
    ]
    whole = any(extents[var] % _PAIRS == 0 for var in side_by_side)
    # The first write may be its beginning.
    sites = sorted((s for s in kernel.sites if s.name == total), key=lambda site: site.is_store)
    return Product(
        kernel=kernel.name,
        text=f"{total} += {first.source.name} * {second.source.name}",
        line=kernel.line(*sites),
        dtypes=dtypes,
        multiply_adds=prod(extents.values()) * pairs,
        rows=rows,
        columns=columns,
        depth=depth * pairs,
        unit="dot-product" if is_dot else "arithmetic",
        no_dot_product=() if is_dot else _no_dot(dtypes, bool(side_by_side), whole),
        no_tensor_core=_no_tensor(dtypes, rows, columns, depth * pairs, target),
    )


def _factors(store: tirx.BufferStore) -> tuple[TensorLoad, TensorLoad, bool] | None:
    """The two tensors whose products are summed, and true where they are four at a time."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for total, term in ((value.a, value.b), (value.b, value.a)):
        if not (isinstance(total, TensorLoad) and total.source.same_as(store.buffer)):
            continue
        inner = _uncast(term)
        if isinstance(inner, Call) and isinstance(inner.op, Op) and inner.op.name == DOT:
            operands, is_dot = inner.args[1:], True
        elif isinstance(inner, tirx.Mul):
            operands, is_dot = (inner.a, inner.b), False
        else:
            return None
        first, second = (_load(operand) for operand in operands)
        if first is not None and second is not None:
            return first, second, is_dot
    return None


def _uncast(expr: tirx.Expr) -> tirx.Expr:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _load(expr: tirx.Expr) -> TensorLoad | None:
    """The only load in a factor: padding and zero points may be around it."""
    found = nodes_in(expr, TensorLoad)
    return found[0] if len(found) == 1 else None


def _steps_by_one(load: TensorLoad, var: tirx.Var) -> bool:
    """True if the next number along an axis is the next one in memory."""
    *others, last = load.indices
    return var not in variables(others) and step_along(last, var) == 1


def _no_dot(dtypes: tuple[str, str], side_by_side: bool, whole: bool) -> tuple[str, ...]:
    reasons = []
    if not all(dtype in ("int8", "uint8") for dtype in dtypes):
        reasons.append(f"its factors are {_both(dtypes)}, not integers of 8 bits")
    if not side_by_side:
        reasons.append("its factors are not both side by side in memory along the summed axis")
    elif not whole:
        reasons.append(f"the summed axis is no multiple of {_PAIRS}")
    return tuple(reasons)


def _no_tensor(
    dtypes: tuple[str, str], rows: int, columns: int, depth: int, target: TargetSpec
) -> tuple[str, ...]:
    reasons = []
    gpu = target.device.multiprocessors
    if gpu is None or not gpu.tensor_cores:
        reasons.append("the target has no tensor cores that are known")
    if not all(dtype in ("float16", "bfloat16", "int8", "uint8") for dtype in dtypes):
        reasons.append(f"its factors are {_both(dtypes)}, not of 16 or 8 bits")
    sizes = {"rows": rows, "columns": columns, "depth": depth}
    small = [f"{size} {name}" for name, size in sizes.items() if size < _TILE]
    if small:
        reasons.append(f"it has only {' and '.join(small)} for tiles of {_TILE}")
    return tuple(reasons)


def _both(dtypes: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(dtypes))


def product_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Products that a faster unit could compute, or would but for one reason."""
    wave = hardware_of(target).wave
    gpu = target.device.multiprocessors
    for product in products(kernel, target):
        if product.unit == "arithmetic" and all(d in ("int8", "uint8") for d in product.dtypes):
            yield _finding(
                product,
                "dot-product",
                product.no_dot_product,
                wave,
                _PAIRS,
                "Pack four numbers of the summed axis into 32 bits, padded with zeros "
                "(tvmflow.codegen.dot_products.dot).",
            )
        if gpu is not None and gpu.tensor_cores and len(product.no_tensor_core) < 2:
            yield _finding(
                product,
                "tensor-core",
                product.no_tensor_core,
                wave,
                _TENSOR_SPEED,
                "Store tensors with `dtype=fp16` and use tiles of at least 16 x 16 x 16, "
                "padded where they are smaller.",
            )


def _finding(
    product: Product, kind: str, reasons: Sequence[str], wave: int, speed: int, remedy: str
) -> Finding:
    name = {"dot-product": "Dot products", "tensor-core": "Tensor cores"}[kind]
    why = f" do not, as {' and '.join(reasons)}." if reasons else " could."
    return product.finding(
        kind,
        # A wave's multiply-adds are a cycle.
        {"cycles": product.multiply_adds / wave * (1 - 1 / speed)},
        1 - 1 / speed,
        f"{product.multiply_adds:,} multiply-adds are computed by {product.unit}. {name}{why}",
        remedy,
    )
