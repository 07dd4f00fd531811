"""What a rule is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tvm import relax

if TYPE_CHECKING:
    from ..layout import LayoutPass

#: ``op_pattern`` of functions: how they are fused with others (TVM's numbers).
ELEMENTWISE = 1
INJECTIVE = 2
OUT_ELEMWISE_FUSABLE = 4
OPAQUE = 8


@dataclass(frozen=True)
class Result:
    """What a call became, and whether that is in the blocked layout."""

    expr: relax.Expr
    is_blocked: bool


class Later(Enum):
    """What a rule returns for a call that is emitted only if something reads it."""

    LATER = 0


Rule = Callable[["LayoutPass", relax.Call], "Result | Later | None"]


def ints(values: Iterable[Any]) -> tuple[int, ...]:
    """Python's integers of TVM's."""
    return tuple(int(v) for v in values)


def is_float(expr: relax.Expr) -> bool:
    """Whether an expression is a tensor of floating-point numbers."""
    return str(expr.ty.dtype).startswith("float")


def emit_move(
    layout: LayoutPass, name: str, compute: Callable[..., Any], *tensors: relax.Expr
) -> Result:
    """The blocked result of a function of ``tensors`` that moves their elements."""
    expr = layout.bb.emit_te(
        compute,
        *tensors,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": INJECTIVE},
    )
    return Result(expr, True)
