"""Which of its parameters a kernel reads, and which ones it writes."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad

from .half import PREFIX as HALF_PREFIX
from .textures import STORE, image_of

#: The pointer of a buffer, whatever is done with it.
_POINTER = "tirx.buffer_data"


def accesses_of(kernel: tirx.PrimFunc) -> dict[Any, tuple[bool, bool]]:
    """For each parameter, whether the kernel reads and whether it writes what is behind it."""
    behind: dict[Any, Any] = {param: param for param in kernel.params}
    read: set[Any] = set()
    written: set[Any] = set()

    def declare(statement: tirx.DeclBuffer) -> None:
        if image_of(statement.data) in behind:
            behind[statement.buffer] = behind[image_of(statement.data)]

    def load(load: TensorLoad) -> None:
        if load.source in behind:
            read.add(behind[load.source])

    def store(statement: tirx.BufferStore) -> None:
        if statement.buffer in behind:
            written.add(behind[statement.buffer])

    def call(call: Call) -> None:
        if not isinstance(call.op, Op) or call.op.name == _POINTER:
            return
        pointers = [image_of(a) for a in call.args]
        used = [behind[p] for p in pointers if _is_key(p) and p in behind]
        (written if _stores(call) else read).update(used)

    tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, declare))
    tvm_ffi.structural_walk(
        kernel.body, [(TensorLoad, load), (tirx.BufferStore, store), (Call, call)]
    )
    return {param: (param in read, param in written) for param in kernel.params}


def _is_key(value: Any) -> bool:
    return isinstance(value, tirx.Var) or tirx.is_buffer_var(value)


def _stores(call: Call) -> bool:
    """Whether a call writes to the pointer among its arguments."""
    if call.op.name == STORE:
        return True
    name = getattr(call.args[0], "value", "") if call.args else ""
    return isinstance(name, str) and name.startswith(
        (f"{HALF_PREFIX}store", f"{HALF_PREFIX}scatter")
    )
