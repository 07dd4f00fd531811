"""Values of a network's inputs that its custom operators look at, at each call.

A compiler writes a note for each such node into the module's metadata; here a call reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..runtime.json_types import JsonMapping
from .values import is_on_host, on_host, shared, unknown


@dataclass(frozen=True)
class CallCheck:
    """The check of one node's operator."""

    node: str
    operator: str
    attributes: JsonMapping
    #: For each operand the name of the network's input that it is, or its type; ``None`` for one
    #: that is left out.
    operands: tuple[str | TensorType | None, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs whose values it looks at."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    @classmethod
    def read(cls, note: JsonMapping) -> CallCheck:
        """Read one from the metadata, which has its fields."""
        operands = tuple(
            TensorType(tuple(o["shape"]), o["dtype"]) if isinstance(o, Mapping) else o
            for o in note["operands"]
        )
        # JSON has no tuples.
        attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in note["attributes"].items()
        }
        return cls(note["node"], note["operator"], attributes, operands)

    def look_at(self, values: Mapping[str, object]) -> None:
        """Check arrays and DLPack tensors for the network's inputs, where the host has them.

        An `InputError` says that one is out of range, with the inputs' names.
        """
        brought = {name: shared(name, values[name]) for name in self.inputs if name in values}
        seen = {name: on_host(value) for name, value in brought.items() if is_on_host(value)}
        look = OPERATORS[self.operator].check
        if not seen or look is None:
            return
        try:
            look([_operand(operand, seen) for operand in self.operands], self.attributes)
        except InputError as error:
            plural = "s" if len(seen) > 1 else ""
            raise InputError(
                f"The input{plural} {', '.join(map(repr, seen))} cannot be used by the node "
                f"{self.node!r}: {error.message}",
                remedy=error.remedy,
                details=error.details,
            ) from error


def call_checks(metadata: JsonMapping) -> tuple[CallCheck, ...]:
    """Read the checks that a module's call makes: those of operators that this process knows."""
    checks = (CallCheck.read(note) for note in metadata.get("call_checks", ()))
    return tuple(check for check in checks if check.operator in OPERATORS)


def _operand(operand: str | TensorType | None, seen: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return what a check sees of an operand: a value, of floats the shape, or nothing."""
    if isinstance(operand, str) or operand is None:
        return seen.get(operand or "")
    return unknown(operand) if operand.dtype.startswith(("float", "bfloat")) else None
