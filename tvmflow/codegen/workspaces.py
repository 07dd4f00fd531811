"""The device's memory that a primary function allocates between its kernels, as parameters."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx


def allocates(function: tirx.PrimFunc) -> bool:
    """Whether a function allocates memory of the device while it runs."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, lambda b: found.extend(b.alloc_buffers)))
    tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, lambda a: found.append(a.buffer)))
    return any(_is_global(buffer) for buffer in found)


def with_workspaces(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Any]]:
    """A scheduled function with the device's memory that it allocates as parameters, and these."""
    body = function.body
    if not (isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"):
        return function, []
    root = body.block
    found = [b for b in root.alloc_buffers if _is_global(b)]
    if not found:
        return function, found
    kept = [b for b in root.alloc_buffers if not _is_global(b)]
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, root.body, root.init, kept,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    body = s_tir.SBlockRealize(body.iter_values, body.predicate, block)
    params = [*function.params, *found]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), found


def _is_global(buffer: Any) -> bool:
    return buffer.scope() == "" or buffer.scope().startswith("global")
