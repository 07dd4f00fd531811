"""OpenCL modules of many kernels, generated in linear time.

TVM's code generator declares all kernels of a module before each of them, and walks through a
kernel's whole body for its declaration, which takes quadratic time: a minute for a thousand
kernels.  No kernel calls another one, and `opencl_source.postprocess` removes the declarations
anyway.  Code is therefore generated kernel by kernel, and the plug-in joins the results to one
module.
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
    """Build a module from lowered kernels, in their order; replaces TVM's function of this name."""
    plugin.load()
    single = (IRModule({gv: f}, attrs=mod.attrs) for gv, f in mod.functions.items())
    parts = [_build_whole(kernel, target) for kernel in single]
    return tvm_ffi.get_global_func("tvmflow.opencl.join")(parts)
