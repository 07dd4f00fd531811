"""Memory traffic of TIR functions: sizes of stored elements, block domains, and reads of a tensor.

The counts of kernels build on these.  :mod:`tvmflow.graph.storage.uses` compares textures with
buffers by `count_reads`; :mod:`tvmflow.explain.profiling.counting` counts the distinct elements
that a scheduled kernel touches, :mod:`tvmflow.explain.analysis.accesses` lists the accesses of a
lowered one.  :mod:`tvmflow.tuning.kernel_facts` has closed forms for knobs without any TIR.
"""

from __future__ import annotations

from math import prod

import tvm_ffi
from tvm import s_tir, tirx

from .expressions import nodes_in
from .scope import is_half


def element_bytes(buffer: tirx.Buffer) -> int:
    """Return the bytes of a stored element, with all lanes of a vector."""
    dtype = tvm_ffi.dtype(buffer.dtype)
    return (2 if is_half(buffer.scope()) else (dtype.bits + 7) // 8) * dtype.lanes


def buffer_bytes(buffer: tirx.Buffer) -> int:
    """Return the size of a buffer in bytes."""
    return prod(int(extent) for extent in buffer.shape) * element_bytes(buffer)


def points_of(block: s_tir.SBlock) -> int:
    """Return the number of points in a block's domain; 1 for a block without axes."""
    return prod(int(axis.dom.extent) for axis in block.iter_vars)


def count_reads(function: tirx.PrimFunc, tensor: tirx.Var) -> int:
    """Count the elements of a tensor that an unscheduled function reads, once for each read.

    A block whose result stays in the function (padding, for example) is computed where it is read,
    and reads its sources as often: a 3x3 convolution reads its padded input nine times.
    """
    total = 0
    for block in nodes_in(function.body, s_tir.SBlock):
        if not any(region.source.same_as(tensor) for region in block.reads):
            continue
        if _is_inlined(block, function):
            total += count_reads(function, block.writes[0].source)
        elif block.iter_vars:
            total += points_of(block)
    return total


def _is_inlined(block: s_tir.SBlock, function: tirx.PrimFunc) -> bool:
    """Return whether schedules compute a block where its one inner tensor is read."""
    if not block.iter_vars or len(block.writes) != 1:
        return False
    written = block.writes[0].source
    parallel = all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)
    return parallel and not any(written.same_as(p) for p in function.params)
