"""Checks of input values by the network's custom operators, at each call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import InputError
from ..ir.call_checks import CallCheck
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..runtime.json_types import JsonMapping
from .values import is_on_host, on_host, shared, unknown


def call_checks(metadata: JsonMapping) -> tuple[CallCheck, ...]:
    """Return the checks of a module's calls, for operators registered in this process."""
    checks = (CallCheck.read(note) for note in metadata.get("call_checks", ()))
    return tuple(check for check in checks if check.operator in OPERATORS)


def validate(check: CallCheck, values: Mapping[str, object]) -> None:
    """Check the input values of a custom operator that are in the host's memory.

    ``values`` are arrays and DLPack tensors by input name.  Raises `InputError`, with the inputs'
    names, if a value is out of range.
    """
    brought = {name: shared(name, values[name]) for name in check.inputs if name in values}
    seen = {name: on_host(value) for name, value in brought.items() if is_on_host(value)}
    look = OPERATORS[check.operator].check
    if not seen or look is None:
        return
    try:
        look([_operand(operand, seen) for operand in check.operands], check.attributes)
    except InputError as error:
        plural = "s" if len(seen) > 1 else ""
        raise InputError(
            f"The input{plural} {', '.join(map(repr, seen))} cannot be used by the node "
            f"{check.node!r}: {error.message}",
            remedy=error.remedy,
            details=error.details,
        ) from error


def _operand(operand: str | TensorType | None, seen: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return an operand for a check: its value, NaNs of its shape for floats, or ``None``."""
    if isinstance(operand, str) or operand is None:
        return seen.get(operand or "")
    return unknown(operand) if operand.dtype.startswith(("float", "bfloat")) else None
