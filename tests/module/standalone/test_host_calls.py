"""Host code of primary functions, as TVM generates it, becomes launches or is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relax
from tvm.script import tirx as T

from tvmflow.codegen.kernels import Kernels, accesses_of, kernel_calls, split_source
from tvmflow.codegen.opencl_source import postprocess
from tvmflow.compiler.standalone.extract import PlanExtractor
from tvmflow.errors import CompileError
from tvmflow.ir.tensors import TensorInfo

# fmt: off
# ruff: noqa: E501


@T.prim_func(s_tir=True)
def scale(from_ptr: T.handle("float32", "global"), to_ptr: T.handle("float32", "global"), n: T.int32):
    source = T.decl_buffer((64,), data=from_ptr)
    target = T.decl_buffer((64,), data=to_ptr)
    for i in range(64):
        target[i] = source[i] * T.Cast("float32", n)


@T.prim_func(s_tir=True)
def one(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    first = T.decl_buffer((64,), data=x.data)
    T.call_ffi_kernel("scale", first.data, y.data, 3, 4, 5, 8, 2, launch_params=["blockIdx.z", "blockIdx.x", "threadIdx.y", "threadIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def loop(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for v in range(3):
        size: T.let[T.int32] = 2 << v
        if v != 1:
            T.call_ffi_kernel("scale", x.data, y.data, v + 7, size, 16, launch_params=["blockIdx.x", "threadIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def nothing(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.call_ffi_kernel("scale", x.data, y.data, 1, 0, 16, launch_params=["blockIdx.x", "threadIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def endless(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for _ in range(1000000):
        T.call_ffi_kernel("scale", x.data, y.data, 1, 2, launch_params=["blockIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def memory(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    own = T.alloc_buffer((64,))
    T.call_ffi_kernel("scale", x.data, own.data, 1, 2, launch_params=["blockIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def data(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.call_ffi_kernel("scale", x.data, y.data, T.Cast("int32", x[3]), 2, launch_params=["blockIdx.x"], ret_ty="int32")


@T.prim_func(s_tir=True)
def packed(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.call_packed("sort", x.data, y.data)

# fmt: on


def calls(host):
    return kernel_calls(Kernels({"f": host}, {"scale": scale}, {}), "f")


def test_sizes_are_in_the_order_of_opencl():
    (call,) = calls(one)
    # Without a block index along y there is one work-group; the scalar follows the memory.
    assert call.global_size == (5 * 2, 8, 4)
    assert call.local_size == (2, 8, 1)
    assert [a if isinstance(a, bytes) else a.source for a in call.arguments] == [
        0,
        1,
        np.int32(3).tobytes(),
    ]


def test_accesses_of_a_kernel():
    source, target, number = scale.params
    found = accesses_of(scale)
    assert (found[source], found[target]) == ((True, False), (False, True))
    assert found[number] == (False, False)


def test_loops_and_conditions_are_unrolled():
    found = calls(loop)
    assert [call.global_size for call in found] == [(2 * 16,), (8 * 16,)]
    assert [np.frombuffer(call.arguments[2], np.int32)[0] for call in found] == [7, 9]


def test_launches_of_no_work_item_are_left_out():
    assert calls(nothing) == []


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (endless, "more than 4096 launches"),
        (memory, "it has memory on the host"),
        (data, "not known before it runs"),
        (packed, "it calls .*sort.* on the host"),
    ],
)
def test_what_a_plan_cannot_hold_is_refused(host, words):
    with pytest.raises(CompileError, match=words) as caught:
        calls(host)
    assert "The function f cannot be part of a standalone module" in caught.value.message
    assert "`format=tvm`" in caught.value.remedy


def test_a_packed_function_is_refused():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        found = builder.emit(relax.call_pure_packed("their.sort", x, ty_args=x.ty))
        builder.emit_func_output(found)
    info = TensorInfo("x", (4,), "float32")
    mod = relax.transform.RemovePurityChecking()(builder.get())
    with pytest.raises(CompileError, match=r"their\.sort cannot be part") as caught:
        PlanExtractor(mod, Kernels({}, {}, {}), [info], [info], {}).run()
    assert "`format=tvm`" in caught.value.remedy


def test_source_is_split_at_kernels_and_has_no_other_declarations():
    code = """\
// Function: f_kernel
#define A 1
__kernel void f_kernel(__global float* restrict x,
                       const int n);
__kernel void g_kernel(__global float* restrict y);
__kernel void f_kernel(__global float* restrict x, const int n) {
  x[0] = A * n;
}

// Function: g_kernel
__kernel void f_kernel(__global float* restrict x, const int n);
__kernel void g_kernel(__global float* restrict y);
__kernel void g_kernel(__global float* restrict y) {
  y[0] = 2;
}
"""
    parts = re.split(r"(?=// Function: )", code)
    assert split_source("".join(postprocess(part, None) for part in parts)) == {
        "f_kernel": "#define A 1\n__kernel void f_kernel(__global float* restrict x, const int n) "
        "{\n  x[0] = A * n;\n}\n",
        "g_kernel": "__kernel void g_kernel(__global float* restrict y) {\n  y[0] = 2;\n}\n",
    }
