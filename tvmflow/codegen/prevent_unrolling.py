"""Prevention of loop unrolling by GPU compilers, for loops that read many texels.

Some compilers unroll a loop of constant extent completely, and then move the reads of all
iterations to the front: Mesa's for Adreno 660 read 166 texels of a pointwise convolution ahead, had
no register left for the sums, and two waves a core.  Its optimiser ignores `#pragma nounroll`, but
not a count that is unknown at compile time::

    for (int i = 0; i < 8; ++i)                 for (int i = 0; i < tvmflow_times(8); ++i)

The number is the same, as a launch has at least one dimension.  If an iteration reads few texels,
overlapping those of several iterations is faster, and a loop that indexes private memory must be
unrolled to turn it into registers: such loops stay unchanged, and so do those of kernels with one
item a group, which are for CPUs.  Extents that depend on an outer loop are hidden, too: once that
loop is unrolled, they are constant.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..ir.annotations import MOST_TEXELS
from ..ir.expressions import nodes_in, uses, with_fields
from ..ir.passes import map_nodes, prim_func_pass
from ..ir.rewriter import op_name
from .textures import LOAD

#: Texels of an iteration that are enough to hide each other's latency: weights of four channels.
ENOUGH_TEXELS = 4
#: Upper bound of an extent of which nothing is known: the largest 32-bit integer.
_UNBOUNDED = 2**31 - 1

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
    most = _most_iterations(loop)
    # A loop inside that is kept ends what a compiler moves to the front.
    if most is None or None in map(_most_iterations, nodes_in(loop.body, tirx.For)):
        return loop
    texels = _texels(loop.body)
    if texels < ENOUGH_TEXELS or texels * most <= MOST_TEXELS:
        return loop
    loads = [(x.source, x.indices) for x in nodes_in(loop.body, TensorLoad)]
    stores = [(x.buffer, x.indices) for x in nodes_in(loop.body, tirx.BufferStore)]
    for buffer, indices in loads + stores:
        if buffer.scope() == "local" and any(uses(i, loop.loop_var) for i in indices):
            return loop
    extent = tirx.call_pure_extern(loop.loop_var.ty, NAME, loop.extent)
    return with_fields(loop, extent=extent)


def _most_iterations(loop: tirx.For) -> int | None:
    """Return the most iterations of a loop; ``None`` if they are unknown at compile time."""
    most = int(Analyzer().const_int_bound(loop.extent).max_value)
    return most if most < _UNBOUNDED else None


def _texels(body: tirx.Stmt) -> int:
    """Return the number of texels that a statement reads, in all iterations of its loops."""
    texels, times = 0, 1

    def count(call: Call, visitor: tvm_ffi.StructuralVisitor) -> None:
        nonlocal texels
        texels += times * (op_name(call) == LOAD)
        visitor.default_visit(call)

    def repeat(loop: tirx.For, visitor: tvm_ffi.StructuralVisitor) -> None:
        nonlocal times
        before = times
        times *= _most_iterations(loop) or 1
        visitor.default_visit(loop)
        times = before

    tvm_ffi.structural_visit(body, [(Call, count), (tirx.For, repeat)])
    return texels
