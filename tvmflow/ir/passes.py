"""Passes of ours in the form of TVM's, so that its instruments see them.

What a Python callback raises arrives from TVM's C++ code as a ``RuntimeError`` with the same text.
What such a pass raises is kept, and raised again by whoever runs passes within `original_errors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import tvm
from tvm import IRModule, tirx
from tvm.ir.transform import Pass

from ..errors import CompileError

_raised = threading.local()


def module_pass(name: str) -> Callable[[Callable[[IRModule], IRModule]], Pass]:
    """Make a pass of a function from module to module."""

    def make(function: Callable[[IRModule], IRModule]) -> Pass:
        @tvm.transform.module_pass(opt_level=0, name=f"tvmflow.{name}")
        def run(mod: IRModule, _context: Any) -> IRModule:
            return _kept(function, mod)

        return run

    return make


def prim_func_pass(name: str) -> Callable[[Callable[[tirx.PrimFunc], tirx.PrimFunc]], Pass]:
    """Make a pass of a function from primary function to primary function."""

    def make(function: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> Pass:
        @tirx.transform.prim_func_pass(opt_level=0, name=f"tvmflow.{name}")
        def run(primary: tirx.PrimFunc, _mod: Any, _context: Any) -> tirx.PrimFunc:
            return _kept(function, primary)

        return run

    return make


def _kept(function: Callable[[Any], Any], program: Any) -> Any:
    try:
        return function(program)
    except BaseException as error:
        if getattr(_raised, "error", None) is None:
            _raised.error = error
        raise


def refuse(message: str, remedy: str) -> NoReturn:
    """Raise a :class:`CompileError` out of a pass, also out of what TVM calls within it."""
    _raised.error = CompileError(message, remedy=remedy)
    raise _raised.error


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise what a pass of ours raised, in place of what TVM made of it."""
    _raised.error = None
    try:
        yield
    except Exception as error:
        if _raised.error is None or _raised.error is error:
            raise
        raise _raised.error from None
    finally:
        _raised.error = None
