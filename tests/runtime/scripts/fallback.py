"""Compiles a kernel and writes its serialized OpenCL module as a C array.

Without the plug-in, TVM makes a module that does nothing but that.  Argument: the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tvm
import tvm_ffi
from tvm import te


def build() -> tvm_ffi.Module:
    n = te.var("n", "int32")
    x = te.placeholder((n,), name="x")
    a = te.var("a", "float32")
    y = te.compute((n,), lambda i: x[i] * a + tvm.tirx.const(1, "float32"), name="y")
    function = te.create_prim_func([x, a, y])
    schedule = tvm.s_tir.Schedule(function)
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    outer, inner = schedule.split(loop, [None, 32])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    named = schedule.mod["main"].with_attr("global_symbol", "affine")
    target = tvm.target.Target({"kind": "opencl"}, host="llvm")
    return tvm.tirx.build(tvm.IRModule({"affine": named}), target=target, pipeline="s_tir")


library = build()
(module,) = library.imports
runtime = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl", allow_missing=True)
# The modules that travel inside a library, as the bytes that are embedded in it.
pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToC")
Path(sys.argv[1]).write_text(str(pack(library, False, "")))
print(json.dumps({"kind": module.kind, "with_runtime": runtime is not None}))
