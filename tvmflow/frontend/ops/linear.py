"""Matrix products."""

from __future__ import annotations

from functools import cache, partial, reduce
from math import prod

import numpy as np
from tvm import relax, topi
from tvm.relax import op as R

from ...ir.rewriter import constant
from ...schedules import dense
from ..converter import InvalidNode, NodeContext, Refusal, converts, dtype_of, formulas
from .quantization import difference, integer_product, requantize


@converts("MatMul")
def matmul(c: NodeContext) -> relax.Expr:
    """Matrix product as NumPy's."""
    integers = integer_product(c, 1) if len(c.shape(1)) == 2 <= len(c.shape()) else None
    if integers is not None:
        return integers.scaled(c, R.matmul(integers.x, constant(integers.weight)), -1)
    return R.matmul(c.input(0), c.input(1))


@converts("NibbleProduct")
def nibble_product(c: NodeContext) -> relax.Expr:
    """Product with weights of 4 bits, two in a byte (:mod:`..int4`)."""
    *lead, depth = c.shape()
    compute = partial(dense.compute_nibbles, units=c.result.shape[-1], offset=c.required("offset"))
    rows = R.reshape(c.input(), (prod(lead), depth))
    product = c.builder.call_te(compute, c.emit(rows), *c.inputs()[1:], primfunc_name_hint="dense")
    return R.reshape(product, c.result.shape)


formulas(
    # Of 8-bit matrices without their zero points, in int32.
    MatMulInteger=lambda c: R.matmul(difference(c, 0, 2, -2), difference(c, 1, 3, -1))
)


@converts("QLinearMatMul")
def qlinear_matmul(c: NodeContext) -> relax.Expr:
    """Product of quantized matrices, quantized again."""
    product = R.matmul(difference(c, 0, 2, -2), difference(c, 3, 5, -1))
    return requantize(c, product, scales=(1, 4, 6), zero=7, axis=-1)


@converts("Gemm")
def gemm(c: NodeContext) -> relax.Expr:
    """alpha · A' · B' + beta · C; a constant B takes transposition and alpha in."""
    alpha, transposed = c.attribute("alpha", 1.0), bool(c.attribute("transB", 0))
    turned = bool(c.attribute("transA", 0))
    plain = alpha == 1.0 and not turned
    integers = integer_product(c, 1, transposed=transposed) if plain else None
    if integers is not None:
        total = R.matmul(integers.x, constant(integers.weight))
        return _with_addend(c, integers.scaled(c, total, 1))
    depth, own_depth = c.shape(0)[0 if turned else 1], c.shape(1)[1 if transposed else 0]
    if depth != own_depth:
        raise Refusal(f"the inner extents of its matrices differ: {depth} and {own_depth}")
    left, right, values = c.input(0), c.input(1), c.known(1)
    if values is None or isinstance(right, relax.Var):  # computed, or too large to rewrite
        right = R.permute_dims(right) if transposed else right
    elif transposed or alpha != 1.0:
        values = values.T if transposed else values
        if alpha != 1.0 and values.dtype.kind == "f":
            values, alpha = values.astype(np.float64) * alpha, 1.0
        right = c.constant(values)
    product = R.matmul(R.permute_dims(left) if turned else left, right)
    return _with_addend(c, product if alpha == 1.0 else product * c.constant(alpha))


def _with_addend(c: NodeContext, product: relax.Expr) -> relax.Expr:
    """Add beta times the third input, if there is one."""
    beta = c.attribute("beta", 1.0)
    if not c.has(2) or beta == 0.0:
        return product
    if beta == 1.0:
        return product + c.input(2)
    values = c.known(2)
    if values is None:
        return product + c.input(2) * c.constant(beta)
    return product + c.constant(values.astype(np.float64) * beta)


@converts("Einsum")
def einsum(c: NodeContext) -> relax.Expr:
    """Einstein summation; of two operands, whose shared axes are summed or kept, as a product."""
    equation = c.required("equation").replace(" ", "")
    operands = c.inputs()
    assert all(dtype_of(operand) == c.result.dtype for operand in operands)
    axes = _product_axes(equation)
    if axes is not None and np.dtype(c.result.dtype).kind == "f":
        return _einsum_product(c, *axes)
    return c.builder.call_te(partial(topi.einsum, equation), *operands, primfunc_name_hint="einsum")


def _product_axes(equation: str) -> tuple[str, str, str] | None:
    """The axes of two operands and of the result of a sum that is a (batched) matrix product."""
    inputs, arrow, result = equation.partition("->")
    left, comma, right = inputs.partition(",")
    if not comma or "," in right or "." in equation:
        return None
    if not arrow:
        # Axes that occur once, by their names.
        result = "".join(sorted(a for a in left + right if (left + right).count(a) == 1))
    whole = all(len(set(axes)) == len(axes) for axes in (left, right, result))
    # An axis of one operand alone would be summed before the product.
    alone = (set(left) ^ set(right)) - set(result)
    summed = set(left) & set(right) - set(result)
    if not whole or alone or not summed or not set(result) <= set(left + right):
        return None
    if not set(left) - set(right) or not set(right) - set(left):
        return None  # sums of rows
    return left, right, result


def _einsum_product(c: NodeContext, left: str, right: str, result: str) -> relax.Expr:
    """Axes in order, and those of rows, depth and columns together, for a product of matrices."""
    sizes = dict(zip(left + right, (*c.shape(0), *c.shape(1)), strict=True))
    batch = [a for a in result if a in left and a in right]
    rows = [a for a in result if a in left and a not in right]
    columns = [a for a in result if a in right and a not in left]
    depth = [a for a in left if a in right and a not in result]

    def matrices(operand: int, axes: str, first: list[str], second: list[str]) -> relax.Expr:
        order = [*batch, *first, *second]
        value = c.input(operand)
        if order != list(axes):
            value = c.emit(R.permute_dims(value, [axes.index(a) for a in order]))
        if len(first) == len(second) == 1:
            return value
        return c.emit(R.reshape(value, [*shape(batch), prod(shape(first)), prod(shape(second))]))

    def shape(axes: list[str]) -> list[int]:
        return [sizes[a] for a in axes]

    product = R.matmul(matrices(0, left, rows, depth), matrices(1, right, depth, columns))
    order = [*batch, *rows, *columns]
    if len(rows) + len(columns) > 2:
        product = R.reshape(c.emit(product), shape(order))
    if order == list(result):
        return product
    return R.permute_dims(c.emit(product), [order.index(a) for a in result])


#: The largest matrix whose determinant is written out: of 24 products.
_LARGEST_DETERMINANT = 4


@converts("Det")
def determinant(c: NodeContext) -> relax.Expr:
    """Determinants of square matrices, expanded by their rows (P.-S. Laplace)."""
    size = c.shape()[-1]
    if c.shape()[-2] != size:
        raise InvalidNode(f"its matrices are {c.shape()[-2]} × {size}, expected square ones")
    if size > _LARGEST_DETERMINANT:
        raise Refusal(
            f"determinants of {size} × {size} matrices are not supported, only of small ones"
        )
    rank, batch = len(c.shape()), c.shape()[:-2]

    @cache
    def minor(columns: tuple[int, ...]) -> relax.Expr:
        """Return the determinant of the last rows in these columns."""
        row = size - len(columns)
        terms = []
        for position, column in enumerate(columns):
            begin = [row, column]
            value = R.strided_slice(
                c.input(), [rank - 2, rank - 1], begin, [place + 1 for place in begin]
            )
            others = tuple(other for other in columns if other != column)
            term = value * minor(others) if others else value
            terms.append(R.negative(term) if position % 2 else term)
        return c.emit(reduce(R.add, terms))

    return R.reshape(minor(tuple(range(size))), batch)
