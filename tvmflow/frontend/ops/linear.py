"""Matrix products."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, topi

from ..converter import NodeContext, Refusal, constant, converts, dtype_of, shape_of
from .quantization import difference, integer_product, requantize

R = relax.op


@converts("MatMul")
def matmul(c: NodeContext) -> relax.Expr:
    """Matrix product as NumPy's."""
    integers = integer_product(c, 1) if len(c.shape(1)) == 2 <= len(c.shape()) else None
    if integers is not None:
        return integers.scaled(c, R.matmul(integers.x, constant(integers.weight)), -1)
    return R.matmul(c.input(0), c.input(1))


@converts("MatMulInteger")
def matmul_integer(c: NodeContext) -> relax.Expr:
    """Product of 8-bit matrices without their zero points, in int32."""
    return R.matmul(difference(c, 0, 2, -2), difference(c, 1, 3, -1))


@converts("QLinearMatMul")
def qlinear_matmul(c: NodeContext) -> relax.Expr:
    """Product of quantized matrices, quantized again."""
    product = c.emit(R.matmul(difference(c, 0, 2, -2), difference(c, 3, 5, -1)))
    return requantize(c, product, scales=(1, 4, 6), zero=7, axis=-1)


@converts("Gemm")
def gemm(c: NodeContext) -> relax.Expr:
    """alpha · A' · B' + beta · C; a constant B takes transposition and alpha in."""
    alpha, beta = c.attribute("alpha", 1.0), c.attribute("beta", 1.0)
    left = c.input(0)
    transposed = bool(c.attribute("transB", 0))
    plain = alpha == 1.0 and not c.attribute("transA", 0)
    integers = integer_product(c, 0 if transposed else 1) if plain else None
    if integers is not None:
        weight = integers.weight.T if transposed else integers.weight
        total = R.matmul(integers.x, constant(np.ascontiguousarray(weight)))
        return _with_addend(c, integers.scaled(c, total, 1), beta)
    if c.attribute("transA", 0):
        left = c.emit(R.permute_dims(left))
    right, taken = _gemm_weight(c, alpha)
    inner = shape_of(left)[-1], shape_of(right)[0]
    if inner[0] != inner[1]:
        raise Refusal(f"the inner extents of its matrices differ: {inner[0]} and {inner[1]}")
    product = R.matmul(left, right)
    if alpha != 1.0 and not taken:
        product = R.multiply(c.emit(product), c.constant(alpha))
    return _with_addend(c, product, beta)


def _with_addend(c: NodeContext, product: relax.Expr, beta: float) -> relax.Expr:
    """Add beta times the third input, if there is one."""
    if not c.has(2) or beta == 0.0:
        return product
    bias = c.input(2)
    if beta != 1.0:
        values = c.known(2)
        bias = (
            c.emit(R.multiply(bias, c.constant(beta)))
            if values is None
            else c.constant(values.astype(np.float64) * beta)
        )
    return R.add(c.emit(product), bias)


def _gemm_weight(c: NodeContext, alpha: float) -> tuple[relax.Expr, bool]:
    """Return B transposed as asked for, and True if alpha is multiplied in already."""
    weight, transposed = c.input(1), bool(c.attribute("transB", 0))
    values = c.known(1)
    if values is None or isinstance(weight, relax.Var):  # computed, or too large to rewrite
        return (c.emit(R.permute_dims(weight)) if transposed else weight), False
    taken = alpha != 1.0 and values.dtype.kind == "f"
    if not transposed and not taken:
        return weight, False
    values = values.T if transposed else values
    if taken:
        values = values.astype(np.float64) * alpha
    return c.constant(np.ascontiguousarray(values)), taken


@converts("Einsum")
def einsum(c: NodeContext) -> relax.Expr:
    """Einstein summation."""
    equation = c.required("equation").replace(" ", "")
    operands = c.inputs()
    assert all(dtype_of(operand) == c.result.dtype for operand in operands)

    def compute(*tensors: tvm.te.Tensor) -> tvm.te.Tensor:
        return topi.einsum(equation, *tensors)

    return c.builder.call_te(compute, *operands, primfunc_name_hint="einsum")
