"""Converters of matrix products, Einstein sums and determinants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial, reduce
from math import prod

import numpy as np
from tvm import relax, topi
from tvm.relax import op as R

from ...ir.rewriter import constant, shape_of
from ...schedules import dense
from ..converter import InvalidNode, NodeContext, Refusal, converts, dtype_of, formulas
from .quantization import difference, integer_product, requantize


@converts("MatMul")
def matmul(c: NodeContext) -> relax.Expr:
    """Compute a matrix product with the semantics of NumPy."""
    integers = integer_product(c, 1) if len(c.shape(1)) == 2 <= len(c.shape()) else None
    if integers is not None:
        return integers.scaled(c, R.matmul(integers.x, constant(integers.weight)), -1)
    return R.matmul(c.input(0), c.input(1))


@converts("NibbleProduct")
def nibble_product(c: NodeContext) -> relax.Expr:
    """Compute a product with int4 weights, two in a byte (:mod:`..int4`)."""
    *lead, depth = c.shape()
    compute = partial(dense.compute_nibbles, units=c.result.shape[-1], offset=c.required("offset"))
    rows = R.reshape(c.input(), (prod(lead), depth))
    product = c.builder.call_te(compute, c.emit(rows), *c.inputs()[1:], primfunc_name_hint="dense")
    return R.reshape(product, c.result.shape)


formulas(
    # Zero points are subtracted from the 8-bit matrices first, in int32.
    MatMulInteger=lambda c: R.matmul(difference(c, 0, 2, -2), difference(c, 1, 3, -1))
)


@converts("QLinearMatMul")
def qlinear_matmul(c: NodeContext) -> relax.Expr:
    """Compute a product of quantized matrices, and quantize the result."""
    product = R.matmul(difference(c, 0, 2, -2), difference(c, 3, 5, -1))
    return requantize(c, product, scales=(1, 4, 6), zero=7, axis=-1)


@converts("Gemm")
def gemm(c: NodeContext) -> relax.Expr:
    """Compute alpha · A' · B' + beta · C; transposition and alpha are folded into a constant B."""
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
    """Compute an Einstein sum, two operands at a time if that takes fewer multiplications.

    ::

        before  ab,bc,cd->ad          a sum of b * c products for each element
        after   ab,bc->ac, ac,cd->ad
    """
    terms, result = _einsum_terms(c.required("equation").replace(" ", ""))
    values = c.inputs()
    assert all(dtype_of(value) == c.result.dtype for value in values)
    left = list(range(len(terms)))
    for places in _contractions(f"{','.join(terms)}->{result}", [shape_of(x) for x in values]):
        # Operands keep their written order, in which neighbours often need no transpose.
        own = sorted(left[place] for place in places)
        left = [number for number in left if number not in own]
        kept = "".join(terms[number] for number in left) + result
        own_terms = [terms[number] for number in own]
        axes = _kept_axes(own_terms, kept) if left else result
        value = _einsum_step(c, own_terms, [values[number] for number in own], axes)
        # The last value is not emitted here, so that it gets the node's name.
        terms[own[0]], values[own[0]] = axes, c.emit(value) if left else value
        left.append(own[0])
    return values[0]


#: Largest intermediate tensor of an Einstein sum, in elements, unless an operand is larger.
_MOST_BETWEEN = 1 << 20


def _einsum_terms(equation: str) -> tuple[list[str], str]:
    """Return the axes of the operands and of the result, which equations may omit."""
    inputs, arrow, result = equation.partition("->")
    if not arrow:
        # By default the result has the axes that occur once, in alphabetical order.
        letters = inputs.replace(",", "").replace(".", "")
        result = "..." if "." in inputs else ""
        result += "".join(sorted(a for a in letters if letters.count(a) == 1))
    return inputs.split(","), result


def _contractions(equation: str, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the positions of each step's operands; its result is appended to the others."""
    most = max(_MOST_BETWEEN, *map(prod, shapes))
    operands = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    _, *steps = np.einsum_path(equation, *operands, optimize=("greedy", most))[0]
    return steps


def _kept_axes(terms: Sequence[str], kept: str) -> str:
    """Return the kept axes that occur in terms, in the order of the terms."""
    letters = "".join(terms)
    axes = "".join(axis for axis in dict.fromkeys(letters.replace(".", "")) if axis in kept)
    return f"...{axes}" if "." in letters else axes


def _einsum_step(
    c: NodeContext, terms: list[str], values: list[relax.Expr], result: str
) -> relax.Expr:
    """Return an Einstein sum, as a matrix product if it is one."""
    if np.dtype(c.result.dtype).kind == "f" and _is_product(terms, result):
        return _einsum_product(c, terms, values, result)
    compute = partial(topi.einsum, f"{','.join(terms)}->{result}")
    return c.builder.call_te(compute, *values, primfunc_name_hint="einsum")


def _is_product(terms: list[str], result: str) -> bool:
    """Return whether an Einstein sum is a (batched) matrix product of two operands."""
    if len(terms) != 2 or "." in "".join(terms):
        return False
    left, right = terms
    whole = all(len(set(axes)) == len(axes) for axes in (left, right, result))
    # An axis that is in one operand only and summed would need a reduction before the product.
    alone = (set(left) ^ set(right)) - set(result)
    summed = set(left) & set(right) - set(result)
    if not whole or alone or not summed or not set(result) <= set(left + right):
        return False
    # Without rows and columns of its own, the sum is a row reduction.
    return bool(set(left) - set(right) and set(right) - set(left))


def _einsum_product(
    c: NodeContext, terms: list[str], values: list[relax.Expr], result: str
) -> relax.Expr:
    """Transpose and merge axes to batch, rows, depth and columns, and return a matrix product."""
    left, right = terms
    sizes = dict(zip(left + right, (*shape_of(values[0]), *shape_of(values[1])), strict=True))
    batch = [a for a in result if a in left and a in right]
    rows = [a for a in result if a in left and a not in right]
    columns = [a for a in result if a in right and a not in left]
    depth = [a for a in left if a in right and a not in result]

    def matrices(operand: int, first: list[str], second: list[str]) -> relax.Expr:
        order = [*batch, *first, *second]
        value, axes = values[operand], terms[operand]
        if order != list(axes):
            value = c.emit(R.permute_dims(value, [axes.index(a) for a in order]))
        if len(first) == len(second) == 1:
            return value
        return c.emit(R.reshape(value, [*shape(batch), prod(shape(first)), prod(shape(second))]))

    def shape(axes: list[str]) -> list[int]:
        return [sizes[a] for a in axes]

    product = R.matmul(matrices(0, rows, depth), matrices(1, depth, columns))
    order = [*batch, *rows, *columns]
    if len(rows) + len(columns) > 2:
        product = R.reshape(c.emit(product), shape(order))
    if order == list(result):
        return product
    return R.permute_dims(c.emit(product), [order.index(a) for a in result])


#: Largest matrix whose determinant is expanded, with 24 products.
_LARGEST_DETERMINANT = 4


@converts("Det")
def determinant(c: NodeContext) -> relax.Expr:
    """Compute determinants of square matrices by Laplace expansion along the rows."""
    size = c.shape()[-1]
    if c.shape()[-2] != size:
        raise InvalidNode(f"its matrices are {c.shape()[-2]} × {size}, expected square ones")
    if size > _LARGEST_DETERMINANT:
        raise Refusal(
            f"determinants of {size} × {size} matrices are not supported, only up to 4 × 4"
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
