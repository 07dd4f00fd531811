"""Throughput over batches, threads and devices."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from support.drivers import POCL
from support.timings import timing
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.compiler.options import CompileOptions
from tvmflow.errors import DeviceError, InputError, ShapeError
from tvmflow.explain.scaling import measure
from tvmflow.explain.scaling.devices import LocalDevices
from tvmflow.explain.scaling.measure import scale
from tvmflow.explain.scaling.sources import Network, from_model, from_models, from_modules
from tvmflow.frontend.shapes import batch_shapes
from tvmflow.runtime.devices import DeviceInfo

MODULES = {1: Path("1.so"), 4: Path("4.so")}
SEVERAL = {"x/in": ("1..2", 3, 8, 8)}
NETWORK = Network("llvm", "", MODULES, frozenset(["x"]))
CPU = DeviceInfo("llvm", 0, "a CPU", version="LLVM 22", compute_units=2)
OTHER = DeviceInfo("llvm", 1, "another", compute_units=2)
PLACE = LocalDevices((CPU,), cores=2)


def milliseconds(batch: int, threads: int, devices: int) -> float:
    """A call takes 2 ms and 1 ms a sample, of which a fifth is done by one thread.

    Devices do not disturb each other.
    """
    return (2 + batch) * (0.2 + 0.8 / threads)


@pytest.fixture
def simulated(monkeypatch):
    def ask(worker, place, path, batched, devices, threads, seconds, seed, limit_s):
        ms = milliseconds(int(path.stem), threads or 1, devices)
        share = 0.4 if path.stem == "4" else 0.2
        return timing(ms, 0.9 * ms, 1.25 * ms, share)

    monkeypatch.setattr(measure, "_ask", ask)


def points(result):
    return {(p.batch, p.threads, p.devices): p for p in result.points}


def test_every_batch_is_measured_with_every_number_of_threads(simulated):
    result = scale(NETWORK, PLACE, batches=[4, 1], threads=[2, 1, 2])
    order = [(p.devices, p.threads, p.batch) for p in result.points]
    assert order == [(1, 1, 1), (1, 1, 4), (1, 2, 1), (1, 2, 4)]
    for point in result.points:
        ms = milliseconds(point.batch, point.threads, 1)
        assert (point.median_ms, point.items_per_s) == pytest.approx((ms, point.batch / ms * 1e3))
        assert point.low_per_s == pytest.approx(point.items_per_s / 1.25)
        assert point.high_per_s == pytest.approx(point.items_per_s / 0.9)


def test_several_devices_are_measured_with_the_most_threads(simulated):
    place = LocalDevices((CPU, OTHER), cores=2)
    result = scale(NETWORK, place, batches=[1, 4], threads=[1, 2], devices=[2])
    assert result.device_name == "1 × a CPU, 1 × another"
    found = points(result)
    # Two devices are compared with one.
    assert found.keys() == {(b, t, d) for b in (1, 4) for t, d in ((1, 1), (2, 1), (2, 2))}
    assert found[4, 2, 2].items_per_s == pytest.approx(2 * found[4, 2, 1].items_per_s)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"batches": [1, 16]}, "Numbers of batches have to be 1, 4, got 16"),
        ({"threads": [8]}, "Numbers of threads have to be from 1 to 2, got 8"),
        ({"devices": [1, 3]}, "Numbers of devices have to be from 1 to 1, got 3"),
    ],
)
def test_what_does_not_exist_is_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        scale(NETWORK, PLACE, **{"batches": [1], **numbers})


def test_facts_as_json(simulated):
    facts = json.loads(json.dumps(scale(NETWORK, PLACE, batches=[1, 4], threads=[2]).described()))
    (point,) = (p for p in facts["points"] if p["batch"] == 4)
    assert (point["threads"], point["devices"]) == (2, 1)
    assert point["items_per_s"] == pytest.approx(4 / milliseconds(4, 2, 1) * 1e3)
    assert facts["driver"] == PLACE.driver == "LLVM 22"
    assert facts["versions"]["tvmflow"] == tvmflow.__version__


def test_the_point_that_others_disturbed_most_counts(simulated, caplog):
    assert scale(NETWORK, PLACE, batches=[1, 4]).described()["others_share"] == 0.4
    assert "Other programs took 40% of the processors" in caplog.text


@pytest.mark.parametrize("name", ["batches", "threads", "devices"])
def test_impossible_numbers_are_refused(simulated, name):
    with pytest.raises(InputError, match=f"Numbers of {name} have to be .*, got 0, -3, 10{{400}}"):
        scale(NETWORK, PLACE, **{"batches": [1], name: [1, 0, -3, 10**400]})


def test_a_device_that_is_missing_is_refused():
    with pytest.raises(DeviceError, match="no llvm device 1"):
        LocalDevices.find("llvm", 1)


def test_threads_of_a_gpu_are_refused(simulated):
    place = LocalDevices((DeviceInfo("opencl", 0, "a GPU", platform="Mali"),), cores=2)
    with pytest.raises(DeviceError, match="threads of a GPU"):
        scale(NETWORK, place, batches=[1], threads=[1])


def test_a_batch_is_the_first_open_dimension():
    inputs = tiny_model().graph.input
    assert batch_shapes(inputs, {}, 4) == {"x/in": (4, 3, 8, 8)}
    assert batch_shapes(inputs, {"x/in": (1, 3, 8, 8)}, 2) == {"x/in": (2, 3, 8, 8)}


def open_input(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def test_other_open_dimensions_are_those_of_any_input():
    inputs = [open_input("a", "N", "H"), open_input("b", "N", 3, "H"), open_input("c", "M")]
    assert batch_shapes(inputs, {"a": (1, 9)}, 2) == {"a": (2, 9), "b": (2, 3, 9)}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), "has 4 dimensions"),
        ((1, 3, 8), "has 4 dimensions"),
        ((1, 3, 9, 8), "contradicts the given"),
        ((1, 3, 8.5, 8), "positive whole numbers"),
    ],
)
def test_given_shapes_that_do_not_fit_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        batch_shapes([open_input("x", None, 3, 8, "W")], {"x": shape}, 2)


OPTIONS = CompileOptions(target="llvm")


def fixed(folder, batch):
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, folder / f"batch{batch}.onnx")
    return folder / f"batch{batch}.onnx"


def test_a_model_without_an_open_batch_is_refused(tmp_path):
    with pytest.raises(ShapeError, match="none of whose inputs has an open first dimension"):
        from_model(fixed(tmp_path, 1), [2], tmp_path, OPTIONS)


def test_models_of_several_batches_are_one_network(tmp_path):
    network = from_models([fixed(tmp_path, 3), fixed(tmp_path, 2)], tmp_path, OPTIONS)
    assert (sorted(network.modules), network.batched) == ([2, 3], {"x/in"})


def test_a_network_is_measured(tmp_path):
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    network = from_model(tmp_path / "tiny.onnx", [1, 4], tmp_path, OPTIONS)
    place = LocalDevices.find("llvm", 0)
    result = scale(network, place, batches=[1, 4], threads=[1, 2], seconds=0.1)
    assert set(points(result)) == {(b, t, 1) for b in (1, 4) for t in (1, 2)}
    for point in result.points:
        assert point.items_per_s == pytest.approx(point.batch / point.median_ms * 1e3)
        assert 0 < point.p10_ms <= point.median_ms <= point.p90_ms


@pytest.mark.opencl
@pytest.mark.skipif(not POCL.path, reason="Debian's PoCL is not installed")
def test_threads_of_pocl_are_those_that_were_asked_for(run_python):
    """It is seen by the processor time of a call: not more than so many threads have."""
    code = """
import resource, sys, time
sys.path[:0] = sys.argv[1:]
import numpy as np, onnx, tvmflow
from onnx import TensorProto, helper
from tvmflow.explain.scaling.devices import LocalDevices
value = helper.make_tensor_value_info
graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "square",
    [value("x", TensorProto.FLOAT, [1024, 1024])], [value("y", TensorProto.FLOAT, [1024, 1024])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
LocalDevices.find("opencl", 0).check_threads(1)
with tvmflow.compile(model, target="opencl", device="cpu") as module:
    x = np.ones((1024, 1024), np.float32)
    module(x)
    started, used = time.perf_counter(), time.process_time()
    for _ in range(10):
        module(x)
    print((time.process_time() - used) / (time.perf_counter() - started))
"""
    place = LocalDevices(
        (DeviceInfo("opencl", 0, "PoCL", platform="Portable Computing Language"),), 2
    )
    env = {**POCL.variables(POCL.path), **place.environment(1)}
    process = run_python(code, env=env)
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 1.3


def test_of_several_shapes_the_first_is_taken_and_said(tmp_path, caplog):
    with closing(tvmflow.compile(tiny_model(), target="llvm", shapes=SEVERAL)) as module:
        path = module.save(tmp_path / "several.so")
    network = from_modules([path])
    assert network.modules == {1: path}
    assert (
        "has 2 shapes, of which scaling takes the first: x/in: float32[1, 3, 8, 8]" in caplog.text
    )
