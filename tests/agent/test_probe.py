"""Measuring this machine's device through an agent."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from support.drivers import for_programs
from support.fake_opencl import build_fake
from typer.testing import CliRunner

import tvmflow
from tvmflow.agent.device import RemoteDevice
from tvmflow.agent.transports import Local
from tvmflow.cli.app import app
from tvmflow.devices.device_file import DeviceFile
from tvmflow.devices.presets import PRESETS
from tvmflow.errors import AgentError, DeviceError
from tvmflow.probe import bench, measure
from tvmflow.probe.kernels import source
from tvmflow.probe.measure import accumulators_of, probe

pytestmark = pytest.mark.opencl

#: Rates of every device with images, and their ranges from the slowest phone to the fastest CPU.
RATES = {
    **{f"{place}_{what}gbps": (0.005, 2e4) for place in ("buffer", "image") for what in
       ("", "write_", "cached_", "fp16_cached_")},
    "buffer_read_gbps": (0.005, 2e4),
    "local_gbps": (0.05, 1e5),
    "fp32_gflops": (0.1, 1e5),
    "launch_us": (0.05, 1e4),
    "launch_recorded_us": (0.05, 1e4),
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """Measure little data in few rounds."""
    monkeypatch.setattr(measure, "_LEAST_STREAM", 4 << 20)
    monkeypatch.setattr(measure, "_MOST_STREAM", 4 << 20)
    monkeypatch.setattr(bench, "ROUNDS", 3)
    monkeypatch.setattr(bench, "ROUND_S", 1e-3)
    monkeypatch.setattr(bench, "LAUNCH_S", 1e-2)


def test_a_measured_device_is_compiled_for(local, quick, network, image, tmp_path):
    path = tmp_path / "here.json"
    local.close()
    ran = CliRunner().invoke(app, ["probe", "--on", "local", "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    file = DeviceFile.read(path)
    assert file.preset == "cpu"
    for name, (least, most) in RATES.items():
        assert least < file.rates[name].value < most, name
    assert [each["vectors"] for each in file.measurements["live_values"]] == list(measure.LIVE)
    assert {each["access"] for each in file.measurements["streams"]} == {"read", "write", "copy"}
    has_half = bool(file.facts["fp16"].value)
    assert ({"fp16_gflops", "mixed_gflops"} <= file.rates.keys()) == has_half
    assert file.measurements["not_measured"].keys() == {"image2d_from_buffer"}
    speed = file.device().texture
    assert speed.cached == pytest.approx(
        file.rates["image_cached_gbps"].value / file.rates["buffer_cached_gbps"].value, rel=1e-2
    )
    assert file.all_facts()["texture.stream"].origin == "measured"
    assert file.all_facts()["winograd.tile"].origin == "preset"
    shown = CliRunner().invoke(app, ["devices", "--show", str(path)]).output
    assert "GFLOP/s" in shown
    assert "measured" in shown
    assert "reported" in shown
    onnx.save(network, tmp_path / "net.onnx")
    with tvmflow.compile(tmp_path / "net.onnx", target="opencl", device=str(path)) as module:
        found = module(x=image)["y"]
    with tvmflow.compile(network, target="llvm") as here:
        np.testing.assert_allclose(found, here(x=image)["y"], rtol=1e-5, atol=1e-5)


@pytest.fixture
def changed(local, quick, monkeypatch):
    """Return a function that measures with a change of the kernels' source."""
    monkeypatch.setattr(measure, "LIVE", ())
    build = local.build

    def run(before: str, after: str, **options) -> DeviceFile:
        assert before in source()
        altered = lambda text, *rest: build(text.replace(before, after), *rest)  # noqa: E731
        monkeypatch.setattr(local, "build", altered)
        return probe(local, **options)

    return run


def test_arithmetic_in_half_precision(local, quick, monkeypatch):
    monkeypatch.setattr(measure._Probe, "_memory", lambda *_: None)
    monkeypatch.setattr(measure, "LIVE", ())
    local.close()
    with RemoteDevice(Local(for_programs())) as device:
        if not device.require_opencl().fp16:
            pytest.skip("Intel's runtime (the extra cpu-opencl) is missing, or has no fp16 here")
        file = probe(device)
    half, mixed = (file.rates[f"{name}_gflops"].value for name in ("fp16", "mixed"))
    assert all(0.1 < rate < RATES["fp32_gflops"][1] for rate in (half, mixed))
    assert file.measurements["not_measured"].keys() == {"image2d_from_buffer"}


def test_waves_are_subgroups(local, quick, monkeypatch):
    """Intel's runtime has subgroups, but does not list the extension."""
    local.close()
    with RemoteDevice(Local(for_programs())) as device:
        if "cl_intel_subgroups" not in device.require_opencl().extensions:
            pytest.skip("Intel's runtime (the extra cpu-opencl) is missing")
        device.facts["opencl"][0]["extensions"].append("cl_khr_subgroups")
        wave = probe(device, limit_s=0, preset="adreno").facts["wave"]
        assert wave.origin == "measured"
        assert wave.value in (4, 8, 16, 32, 64)
        assert "wave" not in probe(device, limit_s=0, preset="cpu").facts


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1", 1),
        ("256", 256),
        ("257", "have 257 work-items, expected one number from 1 to 256"),
        ("0", "have 0 work-items"),
        ("2.5f", "have 2.5 work-items"),
        ("1 + get_global_id(0)", "have 1, 2, 3, 4 work-items"),
        ("unknown()", "CL_BUILD_PROGRAM_FAILURE"),
    ],
)
def test_waves_are_plausible_sizes(changed, local, size, expected):
    local.facts["opencl"][0]["extensions"].append("cl_khr_subgroups")
    file = changed("get_max_sub_group_size()", size, limit_s=0, preset="adreno")
    if isinstance(expected, int):
        assert file.device().wave == expected
    else:
        assert expected in file.measurements["not_measured"]["wave"]
        assert file.device().wave == PRESETS["adreno"].wave
        assert file.all_facts()["wave"].origin == "assumed"


def test_wrong_sums_leave_facts_out(changed):
    file = changed("read_imagef(source, at)", "1")
    wrong = [name for name, why in file.measurements["not_measured"].items() if "wrong sum" in why]
    assert len(wrong) == 8
    assert all("images" in name for name in wrong)
    assert "image_gbps" not in file.rates
    assert file.all_facts()["texture.stream"].origin == "assumed"
    assert {"texture.cached", "buffer_gbps"} <= file.facts.keys() | file.rates.keys()


def test_a_crash_costs_its_measurement_only(changed, local, monkeypatch):
    """Meanwhile the driver has no images, and events without meaning, as some have."""
    local.facts["opencl"][0]["images"] = False
    launch = local.launch
    monkeypatch.setattr(
        local,
        "launch",
        lambda *given, **options: [
            [replace(each, kernels_s=1e-9) for each in times] for times in launch(*given, **options)
        ],
    )
    file = changed(
        "size_t at = INDEX;\n  for (int i", "__builtin_trap(); size_t at = 0; for (int i"
    )
    reasons = file.measurements["not_measured"]
    ended = {name.partition(" of")[0] for name, why in reasons.items() if "ended by signal" in why}
    assert ended == {"write", "copy"}
    assert {"buffer_read_gbps", "buffer_cached_gbps", "local_gbps"} <= file.rates.keys()
    assert file.rates["buffer_read_gbps"].value < RATES["buffer_read_gbps"][1]
    assert file.measurements["clock"] == "wall"
    assert not any("image" in name for name in file.rates)
    assert not any(name.startswith("texture.") for name in file.facts)


def test_no_measurement_begins_after_the_time(local, quick):
    file = probe(local, limit_s=0, preset="adreno")
    assert file.rates.keys() == {"launch_us", "launch_recorded_us"}
    assert file.measurements["not_measured"]["the rest"] == "The time was over before fp32_gflops."
    assert file.device().launch_us == file.rates["launch_us"].value
    assert file.device().texture == PRESETS["adreno"].texture


def test_a_driver_that_runs_no_kernel_is_refused(local, quick, tmp_path):
    local.close()
    build_fake(tmp_path)
    driver = {"TVMFLOW_OPENCL_LIBRARY": str(tmp_path / "libOpenCL.so")}
    with (
        RemoteDevice(Local(driver)) as device,
        pytest.raises(DeviceError, match=r"no measurement succeeded. launch_us: .* wrong sum"),
    ):
        probe(device)


def test_a_driver_that_records_no_launches_is_reported(local, tmp_path):
    local.close()
    build_fake(tmp_path)
    driver = {"TVMFLOW_OPENCL_LIBRARY": str(tmp_path / "libOpenCL.so")}
    with RemoteDevice(Local(driver)) as device:
        found = measure._Probe(device, 0, None, 1.0, print)
        found._launches(measure.Program(source(), ""))
    assert not found.rates
    assert "wrong sum" in found.not_measured["launch_us"]
    assert "'Fake GPU' has neither" in found.not_measured["launch_recorded_us"]


def test_a_device_that_is_gone_ends_the_measurements(local, quick):
    agent = local.connection.process_id
    with pytest.raises(AgentError, match="broke"):
        probe(local, report=lambda what: os.kill(agent, signal.SIGKILL))


def test_errors_come_before_the_measurements(local, tmp_path):
    local.close()
    for words, expected in (
        (["-o", str(tmp_path / "none" / "d.json")], "does not exist"),
        (["-o", str(tmp_path / "d.txt")], "does not end with .json"),
        (["-o", str(tmp_path / "d.json"), "--preset", "powervr"], "expected one of cpu"),
        (["-o", str(tmp_path / "d.json"), "--device-index", "7"], "no OpenCL device 7"),
    ):
        ran = CliRunner().invoke(app, ["probe", *words])
        assert ran.exit_code == 2
        assert expected in " ".join(ran.output.replace("│", "").split()), ran.output
        assert "Measuring launches" not in ran.output
    assert not list(tmp_path.glob("*.json"))


def test_json_is_the_file(local, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "probe", partial(probe, limit_s=0))
    local.close()
    path = tmp_path / "here.json"
    ran = CliRunner().invoke(app, ["probe", "--json", "-q", "-o", str(path), "--preset", "mali"])
    assert json.loads(ran.stdout) == json.loads(path.read_text())
    assert DeviceFile.read(path).preset == "mali"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1, 1, 1.05, 1.8, 1.9], 6),
        ([1, 1.01, 1, 1, 1], None),
        ([1, 1.2, 1.5, 1.9, 2.4], None),
        ([1, 1, 2, 1, 1], None),
        ([], None),
    ],
)
def test_registers_are_known_only_from_a_clear_step(times, expected):
    series = [{"vectors": 4 * (i + 1), "ns": ns} for i, ns in enumerate(times)]
    assert accumulators_of(series) == expected
