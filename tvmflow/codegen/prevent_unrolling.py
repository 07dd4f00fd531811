"""Prevention of loop unrolling by GPU compilers, for loops that read many texels.

Some compilers unroll a loop of constant extent completely, and then move the reads of all
iterations to the front: Mesa's for Adreno 660 read 166 texels of a pointwise convolution ahead, had
no register left for the sums, and two waves a core.  Its optimiser ignores `#pragma nounroll`, but
not a count that is unknown at compile time::

    for (int i = 0; i < 8; ++i)                 for (int i = 0; i < tvmflow_times(8); ++i)

The number is the same, as a launch has at least one dimension.  If an iteration reads few texels,
overlapping those of several iterations is faster, and a loop that indexes private memory must be
unrolled to turn it into registers: such loops stay unchanged, and so do those of kernels with one
item a group, which are for CPUs.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import nodes_in, uses, with_fields
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name
from .textures import LOAD

#: Texels of an iteration that are enough to hide each other's latency: weights of four channels.
ENOUGH_TEXELS = 4
#: Texels that a loop may read ahead: half of the most vectors of an Adreno's work-item.
MOST_TEXELS = 24

NAME = "tvmflow_times"
DEFINITION = f"#ifndef {NAME}\n#define {NAME}(n) ((n) * (int)min(get_work_dim(), 1u))\n#endif\n"


@prim_func_pass("opencl")
def PreventLoopUnrolling(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Hide the extents of loops that read many texels; runs last, on kernels."""
    items = [
        attr.value
        for attr in nodes_in(function.body, tirx.AttrStmt)
        if attr.attr_key == "thread_extent" and attr.node.thread_tag.startswith("threadIdx")
    ]
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in items):
        return function
    return map_nodes(function, (tirx.For, _keep))


def _keep(loop: tirx.For) -> tirx.For:
    if nodes_in(loop.body, tirx.For) or not isinstance(loop.extent, tirx.IntImm):
        return loop
    texels = sum(op_name(call) == LOAD for call in nodes_in(loop.body, Call))
    if texels < ENOUGH_TEXELS or texels * int(loop.extent) <= MOST_TEXELS:
        return loop
    loads = [(x.source, x.indices) for x in nodes_in(loop.body, TensorLoad)]
    stores = [(x.buffer, x.indices) for x in nodes_in(loop.body, tirx.BufferStore)]
    for buffer, indices in loads + stores:
        if buffer.scope() == "local" and any(uses(i, loop.loop_var) for i in indices):
            return loop
    extent = tirx.call_pure_extern(loop.loop_var.ty, NAME, loop.extent)
    return with_fields(loop, extent=extent)
