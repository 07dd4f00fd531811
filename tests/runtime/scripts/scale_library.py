"""Exports a library whose function ``triple`` multiplies 100 numbers by 3."""

from __future__ import annotations

import sys

import tvm
from tvm import te

x = te.placeholder((100,), name="x")
y = te.compute((100,), lambda i: x[i] * tvm.tirx.const(3, "float32"), name="y")
schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
(loop,) = schedule.get_loops(schedule.get_sblock("y"))
outer, inner = schedule.split(loop, [None, 16])
schedule.bind(outer, "blockIdx.x")
schedule.bind(inner, "threadIdx.x")
named = schedule.mod["main"].with_attr("global_symbol", "triple")
target = tvm.target.Target({"kind": "opencl"}, host="llvm")
library = tvm.tirx.build(tvm.IRModule({"triple": named}), target=target, pipeline="s_tir")
library.export_library(sys.argv[1])
