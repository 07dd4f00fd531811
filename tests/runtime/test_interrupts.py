"""Ctrl-C in a Python function that TVM calls."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_it_is_still_one_behind_tvm():
    """Not an error of TVM, which callers may take for a reason to go on."""
    with pytest.raises(KeyboardInterrupt):
        tvm_ffi.convert(stop)()


def test_it_is_still_one_behind_a_pass():
    stopping = tvm.ir.transform.module_pass(stop, opt_level=0)
    with pytest.raises(KeyboardInterrupt):
        tvm.transform.Sequential([stopping])(tvm.IRModule({}))
