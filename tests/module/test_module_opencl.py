"""Modules on an OpenCL device: data on host and device, device times, many loads."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support.operators import build

import tvmflow
from tvmflow.errors import DeviceError, InputError
from tvmflow.module.module import Module
from tvmflow.verify.tolerance import assert_close

pytestmark = pytest.mark.opencl

X = np.random.default_rng(1).standard_normal((2, 48)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((48, 32)).astype(np.float32)


def reference(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) @ W).clip(0).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return ``y = relu(x @ w)`` and ``s = -x`` with the weight in a sidecar."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
        helper.make_node("Neg", ["x"], ["s"]),
    ]
    model = build(nodes, {"x": (2, 48)}, ["y", "s"], {"w": W})
    target = tmp_path_factory.mktemp("opencl") / "dense.so"
    with tvmflow.compile(model, device="cpu", embed_limit_bytes=0) as module:
        module.save(target)
    return target


@pytest.fixture
def module(path: Path):
    with tvmflow.load(path) as loaded:
        yield loaded


def test_arrays_in_and_out(module: Module):
    for scale in (1, -2):
        outputs = module(scale * X)
        assert_close(outputs["y"], reference(scale * X))
        np.testing.assert_array_equal(outputs["s"], -scale * X)


def test_tensors_of_the_device_are_used_as_they_are(module: Module):
    import tvm

    device = tvm.device("opencl", 0)
    x = tvm.runtime.tensor(X, device)
    outputs = module.run([x], output="dlpack")
    assert outputs["y"].device == device
    assert_close(outputs["y"].numpy(), reference(X))
    # A result becomes an input without leaving the device.
    again = module.run([outputs["s"]], output="dlpack")
    np.testing.assert_array_equal(again["s"].numpy(), X)
    np.testing.assert_array_equal(outputs["s"].numpy(), -X)


def test_tensors_of_the_host_are_copied(module: Module):
    import tvm

    outputs = module(tvm.runtime.tensor(X))
    assert_close(outputs["y"], reference(X))
    with pytest.raises(InputError, match="shape"):
        module(tvm.runtime.tensor(X[:1]))


def test_device_times_of_every_launch(module: Module):
    times = module.profile([X], runs=4)
    assert times
    assert all(t.clock == "device" and 0 <= t.median_us <= t.p90_us for t in times)
    assert all(t.global_size for t in times)
    kernels = {kernel["name"] for kernel in module.metadata["kernels"]}
    assert {t.kernel for t in times} <= kernels
    assert_close(module(X)["y"], reference(X))


def test_a_device_that_is_not_there(path: Path):
    with pytest.raises(DeviceError, match="opencl:99") as caught:
        tvmflow.load(path, device=99)(X)
    assert caught.value.remedy


def test_loading_and_unloading_leaves_nothing(path: Path):
    def opened() -> int:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sum(str(path.parent) in line for line in maps)

    def anonymous_bytes() -> int:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    def cycle() -> None:
        with tvmflow.load(path) as module:
            module(X)

    def growth(cycles: int) -> int:
        before = anonymous_bytes()
        for _ in range(cycles):
            cycle()
        return anonymous_bytes() - before

    growth(50)
    # A leaked copy of inputs, outputs and weights would be 200 x 7 kB, of the library more;
    # memory that the driver's threads keep is kept only once.
    assert any(growth(200) < 1_000_000 for _ in range(3))
    gc.collect()
    assert opened() == 0
