"""Custom operators: nodes of the ONNX domain ``ai.tvmflow`` that models may have.

Importing this package imports neither TVM nor NumPy; the first look at an operator does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operator import Operator

#: Names of the operators that each module of this package defines in its ``OPERATORS``.
_BUILT_IN = {
    ".box_decode": ("BoxDecode", "BoxDecodeGrad"),
}
_MODULES = {name: module for module, names in _BUILT_IN.items() for name in names}
_registered: dict[str, Operator] = {}


class _Operators(Mapping[str, "Operator"]):
    """Operators by name: those of this package, imported on first use, and registered ones."""

    def __getitem__(self, name: str) -> Operator:
        if name in _MODULES:
            operators = import_module(_MODULES[name], __name__).OPERATORS
            return next(operator for operator in operators if operator.name == name)
        return _registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*_MODULES, *_registered))

    def __len__(self) -> int:
        return len(_MODULES) + len(_registered)


#: Every operator that a model can use, by name.
OPERATORS: Mapping[str, Operator] = _Operators()


def register(operator: Operator) -> Operator:
    """Let models use an operator, and its gradient.

    An operator that was registered under the same name before is replaced.

    Returns
    -------
    Operator
        The same, so that it can be bound to a name.

    Raises
    ------
    OperatorError
        If an operator of this package has the name.
    """
    from ..errors import OperatorError

    added = [operator] if operator.gradient is None else [operator, operator.gradient]
    for item in added:
        if item.name in _MODULES:
            raise OperatorError(
                f"Registering {item.name} failed: tvmflow has an operator of this name.",
                remedy="Give yours another name.",
            )
    _registered.update({item.name: item for item in added})
    return operator
