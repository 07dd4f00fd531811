"""Interface of the rules that rewrite calls of single operators to the blocked layout.

A rule gets the pass and the old call.  It returns a :class:`Result`; or ``LATER`` for a
call that is computed in the plain layout if something reads it; or ``None`` to decline: the
operator then reads and writes plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from tvm import relax, te

from ...devices.target import Device
from ...ir.expressions import PRODUCT
from .algorithms import Convolution


@dataclass(frozen=True)
class Result:
    """The expression that replaces a call, and whether it is in the blocked layout."""

    expr: relax.Expr
    is_blocked: bool


class Later(Enum):
    """The result of a rule for a call that is emitted only if something reads it."""

    LATER = 0


class Layout(Protocol):
    """The part of the layout pass that rules use."""

    #: Builder of the new function.
    bb: relax.BlockBuilder
    device: Device
    #: Channels in a block.
    block: int
    #: Whether tensors are stored in 16 bits.
    half: bool
    #: Values of the old variables.
    definitions: dict[relax.Var, relax.Expr]
    #: Large weights that the graph transposes, by the transposed variable.
    transposed: dict[relax.Var, relax.Expr]
    #: Blocked forms whose lanes after the last channel are zeros.
    zero_lanes: set[relax.Expr]

    def substitute(self, expr: relax.Expr) -> relax.Expr:
        """Return the plain form of an old expression."""
        ...

    def plain_as(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """Return the plain form of an old expression, in another shape of the same elements."""
        ...

    def is_blocked(self, expr: relax.Expr) -> bool:
        """Return whether the blocked form of an old expression exists already."""
        ...

    def blocked(self, expr: relax.Expr) -> relax.Expr:
        """Return the blocked form of an old expression of rank 4."""
        ...

    def blocked_as(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """Return the blocked form of an old expression of less than four axes, as ``shape``."""
        ...

    def existing(self, expr: relax.Expr) -> relax.Expr:
        """Return the blocked form of an old expression if it exists already, else the plain one."""
        ...

    def is_parameter(self, expr: relax.Expr) -> bool:
        """Return whether ``expr`` is an unchanged input or large weight of the model."""
        ...

    def algorithm(self, convolution: Convolution, dtype: np.dtype) -> str:
        """Choose an algorithm for the convolution that is being rewritten."""
        ...

    def sums(self, call: relax.Call, length: int, weight: np.ndarray | None = None) -> str | None:
        """Return how a call's products are added, as `.dtype_of_sums` does."""
        ...

    def constant(self, array: np.ndarray | np.generic) -> relax.Expr:
        """Return a new constant of the graph, with at least one axis."""
        ...

    def emit(
        self,
        name: str,
        compute: Callable[..., te.Tensor],
        *arguments: object,
        pattern: int | None = PRODUCT,
        **options: object,
    ) -> relax.Var:
        """Emit a primary function of this name, which TVM fuses as ``pattern`` says."""
        ...

    def emit_blocked(
        self, name: str, compute: Callable[..., te.Tensor], *arguments: object, **options: Any
    ) -> Result:
        """Emit a primary function whose result is blocked."""
        ...


Rule = Callable[[Layout, relax.Call], Result | Later | None]

#: Rules by operator.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def is_float(expr: relax.Expr) -> bool:
    """Return whether a tensor has floating-point elements."""
    return str(expr.ty.dtype).startswith("float")
