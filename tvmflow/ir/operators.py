"""Registry of custom operators: those of `tvmflow.ops`, imported on first use, and users'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operator import Operator

#: Names of the operators that each module of `tvmflow.ops` defines in its ``OPERATORS``.
_DEFINED = {
    "tvmflow.ops.box_decode": ("BoxDecode", "BoxDecodeGrad"),
    "tvmflow.ops.giou": ("GIoU", "GIoUGrad", "GIoULoss", "GIoULossGrad"),
}
#: The module that defines each built-in operator.
BUILT_IN = {name: module for module, names in _DEFINED.items() for name in names}
#: Operators that users registered.
REGISTERED: dict[str, Operator] = {}


class _Operators(Mapping[str, "Operator"]):
    def __getitem__(self, name: str) -> Operator:
        if name in BUILT_IN:
            operators = import_module(BUILT_IN[name]).OPERATORS
            return next(operator for operator in operators if operator.name == name)
        return REGISTERED[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*BUILT_IN, *REGISTERED))

    def __len__(self) -> int:
        return len(BUILT_IN) + len(REGISTERED)


#: Every operator that a model can use, by name.
OPERATORS: Mapping[str, Operator] = _Operators()
