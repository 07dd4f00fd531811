"""Private memory of kernels for CPUs is on the stack, if there is little of it."""

from __future__ import annotations

import pytest
import tvm
from support.onnx_models import model_of
from support.operators import random
from tvm import tirx

import tvmflow
from tvmflow.codegen.llvm_passes import LARGEST_BYTES, KeepOnStack


def test_kernels_for_cpus_ask_nobody_for_their_registers(tmp_path):
    nodes = "a = Conv<pads = [1,1,1,1]>(x, w) y = Conv<pads = [1,1,1,1], group = 20>(a, d)"
    weights = {"w": random((20, 18, 3, 3)), "d": random((20, 1, 3, 3))}
    model = model_of(nodes, {"x": (1, 18, 14, 14)}, "y", weights)
    with tvmflow.compile(model, target="llvm") as module:
        path = module.save(tmp_path / "net.so")
    assert b"TVMBackendAllocWorkspace" not in path.read_bytes()


@pytest.mark.parametrize(
    ("scope", "dtype", "extents", "kept"),
    [
        ("local", "float32", (LARGEST_BYTES // 4,), True),
        ("local.picked", "float32x16", (14,), True),
        ("local", "float32", (LARGEST_BYTES // 4 + 1,), False),
        ("local", "int8", (LARGEST_BYTES, 2), False),
        ("global", "float32", (14,), False),
    ],
)
def test_small_private_buffers_stay(scope, dtype, extents, kept):
    buffer = tirx.decl_buffer(extents, dtype, "b", scope=scope)
    function = tirx.PrimFunc([], tirx.AllocBuffer(buffer))
    allocation = KeepOnStack(tvm.IRModule({"main": function}))["main"].body
    assert ("disable_lower_builtin" in allocation.annotations) == kept
