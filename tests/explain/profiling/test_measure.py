"""Profiles of networks that run on this machine."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from support.counted_network import small_network
from support.operators import build, random

import tvmflow
from tvmflow.errors import ArtifactError, DeviceError, InputError
from tvmflow.explain.profiling import ceilings as ceilings_module
from tvmflow.explain.profiling.reading import from_json
from tvmflow.explain.profiling.record import BOUNDS, FINDING_KINDS, Ceilings
from tvmflow.explain.profiling.trace import trace
from tvmflow.module.bench import benchmark

pytestmark = pytest.mark.usefixtures("known_ceilings")


@pytest.fixture(scope="module", params=["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "net.so"
    with tvmflow.compile(small_network(), target=request.param) as module:
        module.save(path)
    return path


def told(found):
    """Return the notes without the one on a busy machine, which this one may be."""
    return [note for note in found.notes if not note.startswith("Runs whose kernels")]


def test_a_profile_is_complete(path, known_ceilings):
    found = tvmflow.profile(path, runs=4, analyse=False)
    assert found.runs == 4
    assert found.ceilings == known_ceilings
    assert found.module.path == str(path)
    assert set(found.module.versions) == {"tvmflow", "tvm", "tvm_ffi"}
    assert found.device.name
    assert told(found) == ["Kernels were not analysed: findings were not asked for."]
    assert found.findings == ()
    for kernel in found.kernels:
        assert kernel.flops is not None
        assert kernel.bytes_read > 0
        assert kernel.bytes_written > 0
        assert 0 < kernel.p10_us <= kernel.median_us <= kernel.p90_us
        assert kernel.gflops == pytest.approx(kernel.flops / kernel.median_us / 1e3)
        assert 0 <= kernel.roofline_share <= 1
        assert kernel.bound in BOUNDS
        assert kernel.family
        assert f"def {kernel.function}(" in found.tir[kernel.function]
    named = {node for kernel in found.kernels for node in kernel.nodes}
    assert {"first/Conv", "second/Conv", "mean", "probabilities"} <= named


@pytest.mark.opencl
def test_findings_name_kernels_and_lines():
    """The network is for another device, whose waves and cache lines count."""
    with tvmflow.compile(small_network(), target="opencl", device="adreno") as module:
        found = tvmflow.profile(module, runs=2)
    # A network as small as this may spend most time on the host: that finding is the call's.
    of_kernels = [finding for finding in found.findings if finding.kernel]
    assert of_kernels
    functions = {kernel.name: kernel.function for kernel in found.kernels}
    for finding in of_kernels:
        assert finding.kind in FINDING_KINDS
        assert 0 < finding.share <= 1
        assert all(cost > 0 for cost in finding.cost.values())
        assert 0 < found.worth_us(finding) <= 1e3 * found.kernels_ms
        text = found.tir[functions[finding.kernel]].splitlines()
        tensor, bracket, _ = finding.access.partition("[")
        if finding.line and bracket:
            assert re.sub(r"\W", "_", tensor) in text[finding.line - 1]
    assert any(finding.line for finding in found.findings)
    assert told(found) == []


def test_times_are_a_run(path):
    found = tvmflow.profile(path, runs=4)
    starts = [kernel.start_us for kernel in found.kernels]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert 0 < found.whole.p10_ms <= found.whole.median_ms <= found.whole.p90_ms
    assert 0 < found.kernels_ms <= found.queue_ms + 1e-9
    gaps_ms = found.between_ms if found.has_device_clock else 0.0
    assert found.kernels_ms + gaps_ms + found.host_ms >= found.whole.median_ms - 1e-9
    assert found.first_call.load_ms > 0
    assert found.first_call.upload_ms >= 0
    assert found.first_call.build_ms >= 0


def test_memory_is_what_lives_at_each_call(path):
    found = tvmflow.profile(path, runs=1)
    plan = tvmflow.load(path).metadata["memory"]
    assert [step.function for step in found.memory] == plan["steps"]
    assert max(step.live_bytes for step in found.memory) >= plan["lower_bound_bytes"]
    assert found.weights_bytes == sum(w["bytes"] for w in tvmflow.load(path).metadata["weights"])


def test_kernels_have_their_source(path):
    found = tvmflow.profile(path, runs=1)
    if found.module.target == "llvm":
        assert found.sources == {}
        return
    assert set(found.sources) == {kernel.name for kernel in found.kernels}
    for name, text in found.sources.items():
        attribute, _, definition = text.partition("\n")
        assert attribute.startswith("__attribute__((reqd_work_group_size(")
        assert definition.startswith(f"__kernel void {name}(")
        assert text.count("{") == text.count("}")


def test_a_profile_survives_being_json(path):
    found = tvmflow.profile(path, runs=2)
    assert from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_a_module_that_is_open_is_measured_as_it_is(path):
    values = {"x": random((1, 16, 14, 14))}
    with tvmflow.load(path) as module:
        found = tvmflow.profile(module, values, runs=2)
        expected = module(values)["y"]
    assert len(found.kernels) > 3
    np.testing.assert_array_equal(tvmflow.load(path)(values)["y"], expected)


def test_a_trace_is_one_of_complete_events(path):
    found = tvmflow.profile(path, runs=2)
    events = trace(found)["traceEvents"]
    json.dumps(events, allow_nan=False)
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    kernels = [event for event in events if event["ph"] == "X" and "kernel" in event["args"]]
    assert [event["args"]["kernel"] for event in kernels] == [k.name for k in found.kernels]
    for event in kernels:
        assert event["ts"] >= 0
        assert event["dur"] > 0
        assert event["pid"] == 2
    for before, after in itertools.pairwise(kernels):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    phases = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert phases == ["load", "upload weights", "build kernels", "run"]
    counters = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert counters == [step.live_bytes for step in found.memory]


@pytest.mark.opencl
def test_kernels_that_fill_a_queue_sum_up_to_it():
    """Launches and gaps take less than a tenth of kernels of milliseconds."""
    nodes, weights, last = [], {}, "x"
    for number in range(4):
        weights[f"w{number}"] = random((512, 512), 0.05, seed=number)
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"t{number}"]))
        last = f"t{number}"
    model = build(nodes, {"x": (1024, 512)}, [last], weights)
    with tvmflow.compile(model) as module:
        found = tvmflow.profile(module, runs=9)
    assert found.has_device_clock
    assert found.kernels_ms == pytest.approx(found.queue_ms, rel=0.1)
    products = sum(kernel.flops for kernel in found.kernels)
    # Additions of the tiles' partial sums count, too.
    assert products == pytest.approx(4 * 2 * 1024 * 512 * 512, rel=0.01)


@pytest.mark.opencl
@pytest.mark.cross
def test_a_standalone_library_has_times_and_names(tmp_path):
    with tvmflow.compile(small_network(), target="opencl", format="standalone") as module:
        path = module.save(tmp_path / "net.so")
    found = tvmflow.profile(path, runs=2)
    assert found.kernels
    assert all(kernel.flops is None and kernel.clock == "device" for kernel in found.kernels)
    assert found.weights_bytes > 0
    assert found.tir == {}
    assert any("Profile the module that" in sentence for sentence in found.notes)


def test_ceilings_that_a_device_refuses_are_missing(path, monkeypatch):
    def refuse(self):
        raise DeviceError("Building a kernel failed.")

    monkeypatch.setattr(ceilings_module._Device, "measure", refuse)
    found = tvmflow.profile(path, runs=1)
    assert found.ceilings is None
    assert all(kernel.gflops is not None and kernel.bound is None for kernel in found.kernels)
    assert any("ceilings could not be measured" in sentence for sentence in found.notes)


def test_ceilings_of_a_busy_machine_are_noticed(path, monkeypatch):
    """Ceilings are measured again; if the machine is still busy, there is a note."""
    slow = Ceilings(10.0, 1e-6, 0.001, int8_gops=1e-6)
    fast = Ceilings(10.0, 1e6, 0.001, int8_gops=1e6)
    measured = [slow]
    monkeypatch.setattr(ceilings_module._Device, "measure", lambda self: measured.pop())
    found = tvmflow.profile(path, runs=1, analyse=False, fresh_ceilings=True)
    assert (measured, found.ceilings) == ([], slow)
    assert any("Measure it again, with `fresh_ceilings`" in note for note in found.notes)
    measured += [fast, slow]
    found = tvmflow.profile(path, runs=1)
    assert (measured, found.ceilings, told(found)) == ([], fast, [])
    assert all(kernel.gflops < 1e6 for kernel in found.kernels)


def test_runs_that_take_longer_than_calls_are_told(path, monkeypatch):
    def fast(*arguments, **options):
        timing = benchmark(*arguments, **options)
        return replace(timing, median_ms=1e-6, p10_ms=1e-6, p90_ms=1e-6)

    monkeypatch.setattr("tvmflow.explain.profiling.measure.benchmark", fast)
    found = tvmflow.profile(path, runs=1)
    assert "The host's part is not known" in found.notes[-1]
    assert f"took {found.explained_ms:.2f} ms, calls 0.00 ms" in found.notes[-1]
    assert found.host_ms == 0


def test_calls_that_are_mostly_the_hosts_are_found(path, monkeypatch):
    def slow(*arguments, **options):
        timing = benchmark(*arguments, **options)
        return replace(timing, median_ms=1e4, p10_ms=1e4, p90_ms=1e4)

    monkeypatch.setattr("tvmflow.explain.profiling.measure.benchmark", slow)
    found = tvmflow.profile(path, runs=1)
    first = found.findings[0]
    assert (first.kind, first.kernel) == ("host", "")
    assert first.cost == {"µs": pytest.approx(1e7 - 1e3 * found.kernels_ms)}
    assert "host" not in {finding.kind for finding in found.findings[1:]}
    assert tvmflow.profile(path, runs=1, analyse=False).findings == ()


def test_on_a_busy_machine_findings_are_held_back(path, busy_machine):
    found = tvmflow.profile(path, runs=1)
    assert found.others_share == 0.5
    assert found.findings == ()
    assert not any(kernel.bound for kernel in found.kernels)
    said = "Other programs took 50% of the processors meanwhile"
    assert found.notes[0].startswith(said)
    assert "held back; `busy` gives them" in found.notes[0]
    assert from_json(json.loads(json.dumps(found.to_json()))) == found
    anyway = tvmflow.profile(path, runs=1, busy=True)
    assert anyway.findings
    assert anyway.notes[0].startswith(said)
    assert "held back" not in anyway.notes[0]


def test_bad_requests_are_refused(path, tmp_path):
    with pytest.raises(InputError, match="Measuring 0 runs"):
        tvmflow.profile(path, runs=0)
    with pytest.raises(InputError, match="no_such"):
        tvmflow.profile(path, {"no_such": random((1, 2))})
    with pytest.raises(DeviceError, match=r"[Tt]here is no"):
        tvmflow.profile(path, device=99)
    with pytest.raises(ArtifactError, match="there is no such file"):
        tvmflow.profile(tmp_path / "none.so")


def test_pandas_has_a_row_for_each_launch(path):
    pandas = pytest.importorskip("pandas")
    found = tvmflow.profile(path, runs=1)
    table = found.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["name"]) == [kernel.name for kernel in found.kernels]
    assert table["flops"].sum() == sum(kernel.flops for kernel in found.kernels)


def test_without_pandas_the_remedy_is_its_name(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(tvmflow.TvmflowError, match="pip install pandas"):
        tvmflow.profile(path, runs=1).to_pandas()


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_a_network_that_launches_nothing(target):
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    with tvmflow.compile(build(nodes, {"x": (2, 3)}, ["y"], {}), target=target) as module:
        found = tvmflow.profile(module, runs=2)
    assert (found.kernels, found.findings, found.notes) == ((), (), ())
    assert found.whole.median_ms > 0
    assert [event["ph"] for event in trace(found)["traceEvents"]] == [*"MMXXXX"]
