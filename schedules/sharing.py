"""Memory that more than one work-item reads: local memory of a group, constant memory."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..codegen.opencl_source import CONSTANT_SUFFIX
from .common import LANES, Block, Loop, Workload

#: The least that OpenCL 1.2 guarantees of constant memory and of local memory, in bytes.
CONSTANT_BYTES = 65536
LOCAL_BYTES = 32768


def share(workload: Workload, reader: Block, index: int, above: Loop) -> None:
    """Copy what a block reads to local memory, all items of a group together.

    Parameters
    ----------
    workload
        Its loops are bound to threads already.
    reader, index
        The block, and which of its ``reads``.
    above
        The loop in whose every iteration the copy is made anew.
    """
    sch = workload.sch
    copy = sch.cache_read(reader, index, "shared")
    sch.compute_at(copy, above)
    loops = workload.loops_below(copy, above)
    lanes = int(sch.get(loops[-1]).extent)
    deal_out(workload, reader, loops, lanes if lanes in LANES and len(loops) > 1 else 1)


def deal_out(workload: Workload, reader: Block, loops: list[Loop], lanes: int) -> None:
    """Deal out the loops of a copy, in vectors of ``lanes``, to the items of a reader's group."""
    sch = workload.sch
    items = thread_extents(workload, reader)
    *rest, last = loops
    if lanes > 1:
        last, lane = sch.split(last, [None, lanes])
        sch.vectorize(lane)
    fused = sch.fuse(*rest, last) if rest else last
    _, *parts = sch.split(fused, [None, *items.values()])
    for name, part in zip(items, parts, strict=True):
        sch.bind(part, name)


def thread_extents(workload: Workload, block: Block) -> dict[str, int]:
    """Work-items of a group along each bound axis, the fastest last."""
    found = {}
    for loop in (workload.sch.get(x) for x in workload.sch.get_loops(block)):
        if loop.thread_binding is not None and loop.thread_binding.thread_tag.startswith("thread"):
            found[str(loop.thread_binding.thread_tag)] = int(loop.extent)
    return dict(sorted(found.items(), reverse=True))


def local_bytes(schedule: s_tir.Schedule) -> int:
    """Local memory of a scheduled function, in bytes."""
    if not _shared(schedule.mod["main"]):
        return 0
    # What is copied under a loop has its size only after it was made as small as its use.
    transform = s_tir.transform
    passes = tvm.transform.Sequential(
        [
            transform.CanonicalizeLoop(),
            transform.LowerCrossThreadReduction(),
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.CompactBufferAllocation(),
        ]
    )
    return sum(
        prod(int(d) for d in buffer.shape) * tvm_ffi.dtype(buffer.dtype).itemsize
        for buffer in _shared(passes(schedule.mod)["main"])
    )


def _shared(function: tirx.PrimFunc) -> list[Any]:
    """Buffers in local memory."""
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    return [b for block in blocks for b in block.alloc_buffers if b.scope() == "shared"]


def to_constant_memory(schedule: s_tir.Schedule, source: tirx.Var) -> s_tir.Schedule | None:
    """The same with a parameter, the tensor ``source``, that kernels read from constant memory.

    ``None`` where the tensor is no parameter, but computed in the function.
    """
    function = schedule.mod["main"]
    old = next((param for param in function.params if param.name == source.name), None)
    if old is None:
        return None
    new = tirx.decl_buffer(old.shape, old.dtype, old.name + CONSTANT_SUFFIX, scope=old.scope())

    def replace(var: tirx.Var) -> tirx.Var:
        return new if var.same_as(old) else var

    body = tvm_ffi.structural_map(function.body, (tirx.Var, replace))
    params = [new if param.same_as(old) else param for param in function.params]
    renamed = tirx.PrimFunc(params, body, function.ret_type, function.attrs)
    return s_tir.Schedule(renamed)
