"""Modules of several OpenCL kernels, generated one by one."""

from __future__ import annotations

import re

import pytest
import tvm
import tvm_ffi
from tvm import IRModule
from tvm.script import tirx as T

from tvmflow.codegen import opencl_modules
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE


@T.prim_func(s_tir=True)
def twice(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("twice"):
            v = T.axis.spatial(64, i)
            y[v] = x[v] + x[v]


@T.prim_func(s_tir=True)
def square(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("square"):
            v = T.axis.spatial(64, i)
            y[v] = x[v] * x[v]


@T.prim_func(s_tir=True)
def serial(x: T.Buffer((4,), "float32")):
    for i in range(4):
        x[i] = x[i] + x[i]


def source(names):
    """Generated source of functions that are built together."""
    functions = {"twice": twice, "square": square}
    mod = IRModule({n: functions[n].with_attr("global_symbol", n) for n in names})
    target = tvm.target.Target("opencl", host="llvm")
    (device,) = tvm.tirx.build(mod, target=target, pipeline=TIR_PIPELINE).imports
    return str(device.inspect_source())


def test_kernels_of_a_module_are_what_each_is_alone():
    whole = source(["square", "twice"])
    assert re.findall(r"// Function: (\w+)", whole) == ["square_kernel", "twice_kernel"]
    assert whole == source(["square"]) + source(["twice"])


def test_no_kernel_is_generated_beside_others(monkeypatch):
    counts, build = [], opencl_modules._build_whole
    monkeypatch.setattr(
        opencl_modules,
        "_build_whole",
        lambda mod, target: counts.append(len(mod.functions)) or build(mod, target),
    )
    source(["square", "twice"])
    assert counts == [1, 1]


def test_only_opencl_modules_are_joined():
    mod = IRModule({"serial": serial.with_attr("global_symbol", "serial")})
    host = tvm.tirx.build(mod, target="llvm")
    with pytest.raises(ValueError, match="kind opencl"):
        tvm_ffi.get_global_func("tvmflow.opencl.join")([host])
