"""Memory of the device that a primary function allocates while it runs."""

from __future__ import annotations

from tvm import s_tir, tirx

from .expressions import nodes_in, with_fields


def allocates(function: tirx.PrimFunc) -> bool:
    """Return True if a function allocates memory of the device while it runs."""
    found = nodes_in(function.body, s_tir.SBlock, tirx.AllocBuffer)
    buffers = (n.alloc_buffers if isinstance(n, s_tir.SBlock) else [n.buffer] for n in found)
    return any(_is_global(buffer) for each in buffers for buffer in each)


def with_workspaces(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[tirx.Buffer]]:
    """Return a scheduled function with the memory that it allocates as parameters, and these."""
    body = function.body
    if not (isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"):
        return function, []
    root = body.block
    found = [b for b in root.alloc_buffers if _is_global(b)]
    if not found:
        return function, found
    kept = [b for b in root.alloc_buffers if not _is_global(b)]
    block = with_fields(root, alloc_buffers=kept)
    body = s_tir.SBlockRealize(body.iter_values, body.predicate, block)
    params = [*function.params, *found]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), found


def _is_global(buffer: tirx.Buffer) -> bool:
    return buffer.scope() == "" or buffer.scope().startswith("global")
