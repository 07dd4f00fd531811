"""Private memory of kernels for CPUs: on the stack, where LLVM makes registers of it.

TVM asks its runtime for each buffer in the scope ``local``, once for every tile, and what comes
back may be anybody's memory: sums that should be registers are stored at every step.  Small
buffers stay what they are, which is the stack.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from ..ir.passes import prim_func_pass

#: The largest buffer that is kept there; threads have some megabytes.
LARGEST_BYTES = 64 << 10
#: What TVM calls not asking its runtime.
_KEPT = "disable_lower_builtin"


@prim_func_pass("KeepOnStack")
def KeepOnStack(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Keep private buffers of up to 64 KiB on the stack; runs before TVM's lowering of calls."""
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.AllocBuffer, _kept)))


def _kept(statement: tirx.AllocBuffer) -> tirx.Stmt:
    buffer = statement.buffer
    if not buffer.scope().startswith("local"):
        return statement
    size = tvm_ffi.dtype(str(buffer.dtype)).itemsize
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return statement
        size *= int(extent)
    if size > LARGEST_BYTES:
        return statement
    return tirx.AllocBuffer(buffer, {**statement.annotations, _KEPT: tirx.IntImm("int32", 1)})
