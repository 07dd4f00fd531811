"""Our passes as TVM passes, so that its instruments see them.

An exception of a Python callback arrives from TVM's C++ code as a ``RuntimeError`` with the same
text.  The original is stored, and `original_errors` raises it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir.transform import Pass

from ..errors import CompileError

if TYPE_CHECKING:
    from tvm.ir import Node
    from tvm.ir.transform import PassContext

    #: Classes of nodes, and the function that replaces each node.
    Callback = tuple[type | tuple[type, ...], Callable[[Node], Node]]

_Program = TypeVar("_Program")
_raised = threading.local()


def module_pass(name: str) -> Callable[[Callable[[IRModule], IRModule]], Pass]:
    """Make a pass from a function that maps modules to modules."""
    make = tvm.transform.module_pass(opt_level=0, name=f"tvmflow.{name}")
    return lambda function: make(lambda mod, _context: _run(function, mod))


def prim_func_pass(*targets: str) -> Callable[[Callable[[tirx.PrimFunc], tirx.PrimFunc]], Pass]:
    """Make a pass, with the function's name, from a function that maps primary functions.

    With ``targets``, functions that are not bound to one of these target kinds are left unchanged.
    """

    def make(function: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> Pass:
        def run(primary: tirx.PrimFunc, _mod: IRModule, _context: PassContext) -> tirx.PrimFunc:
            runs = not targets or target_kind(primary) in targets
            return _run(function, primary) if runs else primary

        return tirx.transform.prim_func_pass(run, 0, f"tvmflow.{function.__name__}")

    return make


def node_pass(
    *kinds: type, targets: tuple[str, ...] = ()
) -> Callable[[Callable[[Any], Node]], Pass]:
    """Make a pass over primary functions from a function that replaces nodes of these classes."""

    def make(change: Callable[[Any], Node]) -> Pass:
        run = wraps(change)(lambda function: map_nodes(function, (kinds, change)))
        return prim_func_pass(*targets)(run)

    return make


def map_nodes(function: tirx.PrimFunc, *callbacks: Callback) -> tirx.PrimFunc:
    """Replace nodes in the body of a primary function, inner ones first."""
    return function.with_body(tvm_ffi.structural_map(function.body, list(callbacks)))


def target_kind(function: tirx.PrimFunc) -> str | None:
    """Return the target kind of a function, such as ``opencl``; ``None`` if it has no target."""
    target = (function.attrs or {}).get("target")
    return None if target is None else str(target.kind.name)


def _run(function: Callable[[_Program], _Program], program: _Program) -> _Program:
    try:
        return function(program)
    except BaseException as error:
        if getattr(_raised, "error", None) is None:
            _raised.error = error
        raise


def refuse(function: tirx.PrimFunc, what: str, remedy: str) -> NoReturn:
    """Raise a :class:`CompileError` about a primary function, also inside a callback of TVM."""
    name = (function.attrs or {}).get("global_symbol", "(without a name)")
    _raised.error = CompileError(f"The primary function {name} {what}.", remedy=remedy)
    raise _raised.error


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise the original exception of one of our passes instead of TVM's translation."""
    _raised.error = None
    try:
        yield
    except Exception as error:
        if _raised.error is None or _raised.error is error:
            raise
        raise _raised.error from None
    finally:
        _raised.error = None
