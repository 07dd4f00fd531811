"""Loading, running and unloading modules again and again does not grow the process."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

import tvmflow
from tvmflow.models import build

#: Growth that is no leak.
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


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory):
    """Compile a small MobileNetV2: 34 kernels."""
    folder = tmp_path_factory.mktemp("mobilenet")
    build("mobilenet_v2", folder / "network.onnx", size=32, width=0.35)
    tvmflow.compile(folder / "network.onnx", target="opencl").save(folder / "network.so")
    return folder / "network.so"


#: Every module's program is built again, as if it were a new one.
REBUILD = {"TVMFLOW_KEPT_PROGRAMS": "0"}


def leaked(script, module, cycles, *options, env=None):
    """The least growth of several runs of cycles: a leak is in each of them."""
    return min(script("leak.py", module, cycles, LIMIT_BYTES, *options, env=env))


@pytest.mark.opencl
@pytest.mark.parametrize("kept", ["0", "8"])
def test_a_hundred_cycles(network, kept, script):
    env = {"TVMFLOW_KEPT_PROGRAMS": kept}
    assert leaked(script, network, 100, env=env) < LIMIT_BYTES


@pytest.mark.opencl
def test_a_hundred_cycles_of_a_network(mobilenet, script):
    assert leaked(script, mobilenet, 100, "network") < LIMIT_BYTES


@pytest.mark.slow
def test_a_thousand_cycles_on_every_driver(network, driver, script):
    assert (
        min(script("leak.py", network, 1000, LIMIT_BYTES, env=driver.env | REBUILD)) < LIMIT_BYTES
    )


@pytest.mark.slow
def test_a_thousand_cycles_of_a_network_on_every_driver(mobilenet, driver, script):
    if driver.name in ("rusticl", "oclgrind"):
        pytest.skip("a run of a network takes this driver too long to repeat it")
    assert (
        min(script("leak.py", mobilenet, 1000, LIMIT_BYTES, "network", env=driver.env))
        < LIMIT_BYTES
    )
