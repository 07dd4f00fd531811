"""Names of operands, by which they are told apart and a gradient's are understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import OperatorError

if TYPE_CHECKING:
    from .operator import Operator


def check_operands(operator: Operator) -> None:
    """Check that an operator's operands can be told apart, and that its gradient's fit.

    Raises
    ------
    OperatorError
        If not.
    """
    for kind, operands in ("inputs", operator.inputs), ("outputs", operator.outputs):
        names = [operand.name for operand in operands]
        if not all(name.isidentifier() for name in names) or len(set(names)) < len(names):
            raise OperatorError(
                f"The {kind} of {operator.name} are called {', '.join(map(repr, names))}; expected "
                "different Python identifiers.",
                remedy="Rename them.",
            )
    gradient = operator.gradient
    if gradient is None:
        return
    inputs = {operand.name for operand in operator.inputs}
    outputs = {operand.name for operand in operator.outputs}
    allowed = (
        ("inputs", gradient.inputs, inputs | outputs | {f"grad_{name}" for name in outputs}),
        ("outputs", gradient.outputs, {f"grad_{name}" for name in inputs}),
    )
    for kind, operands, known in allowed:
        strange = [operand.name for operand in operands if operand.name not in known]
        if strange:
            raise OperatorError(
                f"The gradient of {operator.name}, {gradient.name}, has {strange[0]!r} among its "
                f"{kind}, expected some of {', '.join(sorted(known))}.",
                remedy="Name it after an operand of the operator, with grad_ before it for a "
                "gradient.",
            )
    if strange := [name for name in gradient.attributes if name not in operator.attributes]:
        raise OperatorError(
            f"The gradient of {operator.name}, {gradient.name}, has the attribute {strange[0]!r}, "
            f"which {operator.name} has not.",
            remedy="Give both the attribute.",
        )
