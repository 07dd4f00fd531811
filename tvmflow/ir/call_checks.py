"""Notes for each call: which inputs of a network its custom operators check.

A compiler writes a note for each such node into the module's metadata; a call reads it
(`tvmflow.module.call_checks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime.json_types import JsonMapping
from .tensors import TensorType


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
        """Return the names of the network's inputs whose values it checks."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    @classmethod
    def read(cls, note: JsonMapping) -> CallCheck:
        """Return the check that a note in the metadata has the fields of."""
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
