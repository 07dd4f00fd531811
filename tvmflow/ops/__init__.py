"""Define custom operators: nodes of the ONNX domain ``ai.tvmflow``.

Importing this package imports neither TVM nor NumPy; the first access to an operator does.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir import operators
from ..ir.operators import BUILT_IN, OPERATORS

if TYPE_CHECKING:
    from ..ir.operator import Operand, Operator
    from ..ir.tensors import TensorType
    from .compiled import compile_operator
    from .ragged import mask_of, pack

#: Names that need NumPy or TVM, and the modules that define them; imported on first use.
_LAZY = {
    "Operand": "..ir.operator",
    "Operator": "..ir.operator",
    "TensorType": "..ir.operator",
    "compile_operator": ".compiled",
    "mask_of": ".ragged",
    "pack": ".ragged",
}
__all__ = [
    "OPERATORS", "Operand", "Operator", "TensorType", "compile_operator", "load", "mask_of", "pack",
    "register",
]  # fmt: skip


def register(operator: Operator) -> Operator:
    """Register an operator and its gradient, so that models can use them.

    It replaces an operator that was registered under the same name.

    Returns
    -------
    Operator
        The given operator, so that it can be bound to a name.

    Raises
    ------
    OperatorError
        If an operator of this package or of ONNX has the name, or the name is no identifier.
    """
    from .onnx_form import check_name

    added = [operator] if operator.gradient is None else [operator, operator.gradient]
    for item in added:
        check_name(item.name, BUILT_IN)
    operators.REGISTERED.update({item.name: item for item in added})
    return operator


def load(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers operators.

    Raises
    ------
    OperatorError
        If the file cannot be run, or registers nothing.
    """
    from ..errors import OperatorError

    file, before = Path(path), dict(operators.REGISTERED)
    what = f"Loading operators from {file}"
    if not file.is_file():
        raise OperatorError(f"{what} failed: there is no such file.", remedy="Check the name.")
    name = f"_tvmflow_ops_{file.stem}"
    loader = SourceFileLoader(name, str(file))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the names of their annotations there
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, OperatorError):
            raise
        raise OperatorError(
            f"{what} failed: {type(error).__name__}: {error}",
            remedy="Run the file with Python; it must end without an error.",
            details=_place(error, str(file)),
        ) from error
    if all(before.get(name) is operator for name, operator in operators.REGISTERED.items()):
        raise OperatorError(
            f"{what} failed: it registers no operator.",
            remedy="Call tvmflow.ops.register(operator) in it.",
        )


def _place(error: BaseException, file: str) -> str | None:
    """Return the line of a file that an error comes from."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{file}, line {lines[-1].lineno}: {lines[-1].line}" if lines else None


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
