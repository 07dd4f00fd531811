"""Straight code for one box: named values once, boxes read and written as a whole.

A block that computes a coordinate of a box, with shared values as ``let`` expressions and an
index for the coordinate, becomes statements that compute all four::

    out[b, m, k] = let w = x[b, m, 2] - x[b, m, 0] in select(k == 0, -w, select(k == 1, 0, ...))

    box[0:4] = x[b, m, 0:4]
    w = box[2] - box[0]
    result[0] = -w;  result[1] = 0.0;  ...
    out[b, m, 0:4] = result[0:4]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

#: Coordinates of a box.
COORDINATES = 4

Expr = Any
_LAZY = Op.get("prim.if_then_else")
_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or,
)  # fmt: skip


@dataclass
class Code:
    """Statements, and what is known where they end."""

    #: From a tensor's load to an expression that reads a copy, or the same load.
    read: Callable[[Code, TensorLoad], Expr]
    statements: list[tirx.Stmt] = field(default_factory=list)
    #: Values that have a name, and expressions for names that occur in code to come.
    values: list[tuple[Expr, tirx.Var]] = field(default_factory=list)
    names: list[tuple[tirx.Var, Expr]] = field(default_factory=list)
    #: Boxes that were copied: tensor, index, and the copy.
    copies: list[tuple[Any, list[Expr], Any]] = field(default_factory=list)

    def nested(self) -> Code:
        """Code inside of this one: it knows the same, and what it adds is known there only."""
        return Code(self.read, [], [*self.values], [*self.names], [*self.copies])

    def lift(self, expr: Expr) -> Expr:
        """The expression without ``let``, whose values become statements.

        What only one branch of a condition reads stays in it.
        """
        expr = self.peel(expr)
        if isinstance(expr, tirx.Var):
            return next((value for name, value in self.names if name.same_as(expr)), expr)
        if isinstance(expr, TensorLoad):
            indices = [self.lift(index) for index in expr.indices]
            return self.read(self, tirx.BufferLoad(expr.source, indices))
        if isinstance(expr, _BINARY):
            return type(expr)(self.lift(expr.a), self.lift(expr.b))
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
            return tirx.Select(*map(self.lift, parts))
        if isinstance(expr, tirx.Not):
            return tirx.Not(self.lift(expr.a))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(expr.ty.dtype, self.lift(expr.value))
        if isinstance(expr, Call) and not expr.op.same_as(_LAZY):
            return Call(expr.op, [self.lift(a) for a in expr.args], expr.attrs, ret_ty=expr.ty)
        return self._renamed(expr)

    def peel(self, expr: Expr) -> Expr:
        """The expression with its outer names as statements, else as it is."""
        while isinstance(expr, tirx.Let):
            self.names.append((expr.var, self._named(expr.var, self.lift(expr.value))))
            expr = expr.body
        return expr

    def _named(self, var: tirx.Var, value: Expr) -> Expr:
        """A variable that has a value already, or a new one.

        Arithmetic goes through private memory: TVM writes it wherever the variable is used, over
        and over, but not what is read.
        """
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        for known, name in self.values:
            if tvm_ffi.structural_equal(known, value):
                return name
        name = tirx.Var(var.name, value.ty)
        self.values.append((value, name))
        if isinstance(value, TensorLoad):
            self.statements.append(tirx.Bind(name, value))
            return name
        memory = self.private(f"{var.name}_value", 1, str(value.ty.dtype))
        self.statements.append(tirx.BufferStore(memory, value, [0]))
        self.statements.append(tirx.Bind(name, tirx.BufferLoad(memory, [0])))
        return name

    def private(self, name: str, numbers: int, dtype: str) -> Any:
        """New private memory."""
        memory = tirx.decl_buffer((numbers,), dtype, name, scope="local")
        self.statements.append(tirx.AllocBuffer(memory))
        return memory

    def _renamed(self, expr: Expr) -> Expr:
        """An expression as it is, with names as they are here."""
        return substituted(expr, self.names)


def substituted(expr: Expr, values: Sequence[tuple[tirx.Var, Expr]]) -> Expr:
    """The expression with variables replaced."""

    def replace(var: tirx.Var) -> Expr:
        return next((value for name, value in values if name.same_as(var)), var)

    return tvm_ffi.structural_map(expr, (tirx.Var, replace)) if values else expr


def choice(expr: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Condition and both values of an expression that computes one of them only."""
    if isinstance(expr, Call) and expr.op.same_as(_LAZY):
        return tuple(expr.args)
    return None


def lanes_of(body: Expr, lane: tirx.Var | None) -> list[Expr]:
    """The expression for each coordinate; one where there are none."""
    if lane is None:
        return [body]
    simplify = Analyzer().simplify
    return [
        simplify(substituted(body, [(lane, tirx.const(k, lane.ty.dtype))]))
        for k in range(COORDINATES)
    ]
