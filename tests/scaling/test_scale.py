"""Throughput over batches, threads and devices: what is measured, and what is predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tiny_model import tiny_model

from tvmflow.errors import DeviceError, InputError, ShapeError
from tvmflow.frontend.shapes import batch_shapes
from tvmflow.runtime.devices import DeviceInfo
from tvmflow.scaling import measure
from tvmflow.scaling.fit import AMDAHL, LINEAR
from tvmflow.scaling.measure import scale
from tvmflow.scaling.sources import Network, from_model

NETWORK = Network("llvm", {1: Path("1.so"), 4: Path("4.so")}, frozenset(["x"]))


def milliseconds(batch: int, threads: int, devices: int) -> float:
    """A call takes 2 ms and 1 ms a sample, of which a fifth is done by one thread."""
    return (2 + batch) * (0.2 + 0.8 / threads)


@pytest.fixture
def simulated(monkeypatch):
    cpu = DeviceInfo("llvm", 0, "a CPU", compute_units=2)
    monkeypatch.setattr(measure, "list_devices", lambda: [cpu])

    def ask(worker, path, batched, devices, threads, seconds, seed):
        ms = milliseconds(int(path.stem), threads or 1, len(devices))
        return ms, ms, ms

    monkeypatch.setattr(measure, "_ask", ask)


def points(result):
    return {(p.batch, p.threads, p.devices): p for p in result.points}


def test_what_exists_is_measured_and_the_rest_is_predicted(simulated):
    result = scale(NETWORK, batches=[1, 4, 16], threads=[1, 2, 8], devices=[1, 2])
    found = points(result)
    assert len(found) == 3 * 3 + 3
    measured = {place for place, point in found.items() if point.measured}
    assert measured == {(1, 1, 1), (4, 1, 1), (1, 2, 1), (4, 2, 1)}
    for batch, threads in ((1, 8), (4, 8), (16, 1), (16, 8)):
        point = found[batch, threads, 1]
        wanted = batch / milliseconds(batch, threads, 1) * 1e3
        assert point.items_per_s == pytest.approx(wanted), (batch, threads)
        assert AMDAHL in point.law
    # One device says nothing of two: as if they did not disturb each other.
    assert found[4, 8, 2].items_per_s == pytest.approx(2 * found[4, 8, 1].items_per_s)
    assert LINEAR in found[4, 8, 2].law
    threads = [law for law in result.laws if law.axis == "threads"]
    assert [law.fit.contention for law in threads] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("name", ["batches", "threads", "devices"])
def test_numbers_below_one_are_refused(simulated, name):
    with pytest.raises(InputError, match=f"Numbers of {name} have to be 1 or more, got 0"):
        scale(NETWORK, **{"batches": [1], name: [2, 0]})


def test_a_device_that_is_missing_is_refused(simulated):
    with pytest.raises(DeviceError, match="no llvm device 1"):
        scale(NETWORK, batches=[1], device_index=1)


def test_threads_of_a_gpu_are_refused(simulated, monkeypatch):
    infos = [DeviceInfo("opencl", 0, "a GPU", platform="Mali"), *measure.list_devices()]
    monkeypatch.setattr(measure, "list_devices", lambda: infos)
    with pytest.raises(DeviceError, match="threads of a GPU"):
        scale(replace(NETWORK, target="opencl"), batches=[1], threads=[1])


def test_a_batch_is_the_first_open_dimension():
    inputs = tiny_model().graph.input
    assert batch_shapes(inputs, {}, 4) == {"x/in": (4, 3, 8, 8)}
    assert batch_shapes(inputs, {"x/in": (1, 3, 8, 8)}, 2) == {"x/in": (2, 3, 8, 8)}


def test_a_model_without_an_open_batch_is_refused(tmp_path):
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "fixed.onnx")
    with pytest.raises(ShapeError, match="none of whose inputs has an open first dimension"):
        from_model(tmp_path / "fixed.onnx", [2], tmp_path, target="llvm", device="auto", shapes={})


def test_a_network_is_measured(tmp_path):
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    network = from_model(
        tmp_path / "tiny.onnx", [1, 4], tmp_path, target="llvm", device="auto", shapes={}
    )
    result = scale(network, batches=[1, 4], threads=[1, 2], seconds=0.1)
    assert set(points(result)) == {(b, t, 1) for b in (1, 4) for t in (1, 2)}
    for point in result.points:
        assert point.measured
        assert point.items_per_s == pytest.approx(point.batch / point.median_ms * 1e3)
        assert 0 < point.p10_ms <= point.median_ms <= point.p90_ms
