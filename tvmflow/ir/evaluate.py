"""Evaluation of TIR indices and conditions for many values at once, with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from .expressions import CHOICE, nodes_in
from .rewriter import op_name

Array = NDArray[np.int64]
#: A loop variable and its extent; its values start at 0.
Axis = tuple[tirx.Var, int]


class UnknownError(Exception):
    """Raised for an expression that depends on the contents of memory."""


def _truncated(a: Array, b: Array) -> Array:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


_BINARY: dict[type, Callable[[Array, Array], Array]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod,
    tirx.Div: _truncated, tirx.Mod: lambda a, b: a - b * _truncated(a, b),
    tirx.Min: np.minimum, tirx.Max: np.maximum,
    tirx.LT: np.less, tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal,
    tirx.EQ: np.equal, tirx.NE: np.not_equal,
    tirx.And: np.logical_and, tirx.Or: np.logical_or,
    tirx.LShift: np.left_shift, tirx.RShift: np.right_shift,
    tirx.BitwiseAnd: np.bitwise_and, tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
}  # fmt: skip

#: Intrinsic calls that may occur in indices, by name.
CALLS: dict[str, Callable[..., Array]] = {
    CHOICE: np.where,
    "prim.likely": lambda value: value,
}


def evaluate(expr: tirx.Expr, values: Mapping[tirx.Var, Array]) -> Array:
    """Evaluate an integer expression for arrays of its variables' values, which broadcast.

    The result has one number for each value; the lanes of vectors are the last axis.  Raises
    `UnknownError` if the expression depends on anything but those variables.
    """
    at = partial(evaluate, values=values)
    if (operation := _BINARY.get(type(expr))) is not None:
        return operation(at(expr.a), at(expr.b))
    if isinstance(expr, tirx.IntImm):
        return np.asarray(int(expr), np.int64)
    if isinstance(expr, tirx.Var) and expr in values:
        return values[expr]
    if isinstance(expr, tirx.Not):
        return np.logical_not(at(expr.a))
    if isinstance(expr, tirx.Cast) and is_whole(expr):
        return np.asarray(at(expr.value)).astype(np.int64)
    if isinstance(expr, tirx.Broadcast):
        value = np.asarray(at(expr.value))[..., None]
        return np.broadcast_to(value, (*value.shape[:-1], int(expr.lanes)))
    if isinstance(expr, tirx.Ramp):
        base, stride = (np.asarray(at(e))[..., None] for e in (expr.base, expr.stride))
        return base + stride * np.arange(int(expr.lanes))
    if isinstance(expr, tirx.Select):
        return np.where(at(expr.condition), at(expr.true_value), at(expr.false_value))
    if (name := op_name(expr)) in CALLS:
        return CALLS[name](*map(at, expr.args))
    raise UnknownError(str(expr))


def is_whole(expr: tirx.Expr) -> bool:
    """Return whether an expression is an integer or a truth value."""
    return str(expr.ty.dtype).startswith(("int", "uint", "bool"))


def all_hold(
    conditions: Iterable[tirx.Expr],
    values: Mapping[tirx.Var, Array],
    shape: int | tuple[int, ...],
) -> NDArray[np.bool_]:
    """Return a mask of the values for which all conditions hold."""
    mask = np.ones(shape, bool)
    for condition in conditions:
        mask &= np.broadcast_to(np.asarray(evaluate(condition, values), bool), shape)
    return mask


def variables(exprs: Iterable[tirx.Expr]) -> list[tirx.Var]:
    """Return the variables of expressions, each once."""
    return list(dict.fromkeys(nodes_in(list(exprs), tirx.Var)))


def values_at(points: Array, axes: Sequence[Axis]) -> dict[tirx.Var, Array]:
    """Return the variables' values at points that are numbered in row-major order."""
    values: dict[tirx.Var, Array] = {}
    for var, extent in reversed(axes):
        points, values[var] = np.divmod(points, extent)
    return values
