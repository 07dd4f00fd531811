"""OpenCL modules of many kernels, generated in time that grows with their number.

TVM's code generator declares all kernels of a module before each of them, and for a declaration
walks through the whole body of that kernel: the time grows with the square of their number, a
minute for a thousand.  No kernel calls another one, and `opencl_source.postprocess` removes the
declarations.  So code is generated kernel by kernel, and the plug-in makes one module of all.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import IRModule

from ..runtime import plugin

_BUILD = "target.build.opencl"
_build_whole = tvm_ffi.get_global_func(_BUILD)


@tvm_ffi.register_global_func(_BUILD, override=True)
def build(mod: IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """TVM calls this with lowered kernels; the result has them in the order of the module."""
    plugin.load()
    single = (IRModule({gv: f}, attrs=mod.attrs) for gv, f in mod.functions.items())
    parts = [_build_whole(kernel, target) for kernel in single]
    return tvm_ffi.get_global_func("tvmflow.opencl.join")(parts)
