"""Loading, running and unloading modules again and again does not grow the process."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

LIMIT_BYTES = 5_000_000


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Export max(2 x - 20, 0) as three kernels."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            doubled = builder.emit(relax.op.multiply(x, relax.const(2.0)))
            moved = builder.emit(relax.op.subtract(doubled, relax.const(20.0)))
            y = builder.emit_output(relax.op.nn.relu(moved))
        builder.emit_func_output(y)
    target = tvm.target.Target({"kind": "opencl"}, host="llvm")
    with target:
        schedule = tvm.s_tir.dlight.ApplyDefaultSchedule(tvm.s_tir.dlight.gpu.Fallback())
        module = schedule(relax.transform.LegalizeOps()(builder.get()))
    path = tmp_path_factory.mktemp("network") / "network.so"
    relax.build(module, target).export_library(str(path))
    return path


@pytest.mark.opencl
def test_a_hundred_cycles(network, script):
    assert script("leak.py", network, 100) < LIMIT_BYTES


@pytest.mark.slow
def test_a_thousand_cycles_on_every_driver(network, driver, script):
    assert script("leak.py", network, 1000, env=driver.env) < LIMIT_BYTES
