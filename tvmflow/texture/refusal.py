"""Errors of TIR passes, which TVM's pass manager would turn into others.

An exception that leaves a Python callback through TVM's C++ code arrives as a
``RuntimeError`` with the same text. The one raised here is kept and raised again by
whoever ran the passes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ..errors import CompileError

_raised = threading.local()


def refuse(message: str, remedy: str) -> NoReturn:
    """Raise a :class:`CompileError` out of a TIR pass."""
    _raised.error = CompileError(message, remedy=remedy)
    raise _raised.error


@contextmanager
def refusals() -> Iterator[None]:
    """Raise what a pass refused in place of what TVM made of it."""
    _raised.error = None
    try:
        yield
    except Exception as error:
        if _raised.error is None or _raised.error is error:
            raise
        raise _raised.error from None
    finally:
        _raised.error = None
