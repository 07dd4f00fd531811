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

from .masked_terms import replaced
from .statements import sequence

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
    #: Private memory, allocated ahead of all statements.
    memory: list[tirx.Stmt] = field(default_factory=list)
    statements: list[tirx.Stmt] = field(default_factory=list)
    #: Of boxes in the lanes of a vector: the lane, and how many there are.
    lane: tirx.Var | None = None
    lanes: int = 1
    #: Values that have a name, and expressions for names that occur in code to come.
    values: list[tuple[Expr, tirx.Var]] = field(default_factory=list)
    names: list[tuple[tirx.Var, Expr]] = field(default_factory=list)
    #: Boxes that were copied: tensor, index, and the copy.
    copies: list[tuple[Any, list[Expr], Any]] = field(default_factory=list)

    def nested(self) -> Code:
        """Code inside of this one: it knows the same, and what it adds is known there only."""
        known = [*self.values], [*self.names], [*self.copies]
        return Code(self.read, self.memory, [], self.lane, self.lanes, *known)

    def finish(self) -> tirx.Stmt:
        """All statements."""
        return sequence([*self.memory, *self.statements])

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
            value = self.lift(expr.value)
            return value if value.ty == expr.ty else tirx.Cast(expr.ty.dtype, value)
        if isinstance(expr, Call) and not expr.op.same_as(_LAZY):
            return Call(expr.op, [self.lift(a) for a in expr.args], expr.attrs, ret_ty=expr.ty)
        return self._renamed(expr)

    def peel(self, expr: Expr) -> Expr:
        """The expression with its outer names as statements, else as it is."""
        while isinstance(expr, tirx.Let):
            self.names.append((expr.var, self.name(expr.var.name, self.lift(expr.value))))
            expr = expr.body
        return expr

    def name(self, label: str, value: Expr) -> Expr:
        """A variable that has a value already, or a new one.

        Arithmetic goes through private memory: TVM writes it wherever the variable is used, over
        and over, but not what is read.
        """
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        for known, name in self.values:
            if tvm_ffi.structural_equal(known, value):
                return name
        name = tirx.Var(label, value.ty)
        self.values.append((value, name))
        if isinstance(value, TensorLoad):
            self.statements.append(tirx.Bind(name, value))
            return name
        memory = self.private(f"{label}_value", (self.lanes,), str(value.ty.dtype))
        place = [0 if self.lane is None else self.lane]
        self.statements.append(tirx.BufferStore(memory, value, place))
        self.statements.append(tirx.Bind(name, tirx.BufferLoad(memory, place)))
        return name

    def private(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        """New private memory."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope="local")
        self.memory.append(tirx.AllocBuffer(buffer))
        return buffer

    def copied(self, load: TensorLoad) -> Any:
        """The copy of the box that a load takes a coordinate of, or ``None``."""
        *box, _ = load.indices
        for tensor, index, copy in self.copies:
            if tensor.same_as(load.source) and tvm_ffi.structural_equal(index, box):
                return copy
        return None

    def _renamed(self, expr: Expr) -> Expr:
        """An expression as it is, with names as they are here."""
        return replaced(expr, self.names)


def is_of_box(load: TensorLoad) -> bool:
    """Whether a load takes a known coordinate of a box."""
    if len(load.indices) < 2 or not isinstance(load.indices[-1], tirx.IntImm):
        return False
    extent = load.source.shape[-1]
    return isinstance(extent, tirx.IntImm) and int(extent) == COORDINATES


def choice(expr: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Condition and both values of an expression that computes one of them only."""
    if isinstance(expr, Call) and expr.op.same_as(_LAZY):
        return tuple(expr.args)
    return None


def lanes_of(body: Expr, lane: tirx.Var | None) -> list[Expr]:
    """The expression for each coordinate, before it is rounded; one where there are none."""
    if isinstance(body, tirx.Cast) and str(body.value.ty.dtype) == "float32":
        body = body.value
    if lane is None:
        return [body]
    simplify = Analyzer().simplify
    return [
        simplify(replaced(body, [(lane, tirx.const(k, lane.ty.dtype))])) for k in range(COORDINATES)
    ]
