"""Rules of single operators: their calls, rewritten to the blocked layout.

A rule gets the pass and the old call.  It returns a :class:`Result`; or ``LATER`` for a
call that is computed in the plain layout if and when something reads it; or ``None`` to
decline: the operator then reads and writes plain tensors.

Each file of this folder has rules for a family of operators.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING

from tvm import relax

if TYPE_CHECKING:
    from ..layout import LayoutPass


@dataclass(frozen=True)
class Result:
    """The expression that a call became, and whether that is in the blocked layout."""

    expr: relax.Expr
    is_blocked: bool


class Later(Enum):
    """Result of a rule for a call that is emitted only if something reads it."""

    LATER = 0


Rule = Callable[["LayoutPass", relax.Call], "Result | Later | None"]

#: By operator.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def is_float(expr: relax.Expr) -> bool:
    """True for a tensor of floating-point numbers."""
    return str(expr.ty.dtype).startswith("float")


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
