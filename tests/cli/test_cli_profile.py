"""``tvmflow profile``."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support import tiny_network
from support.onnx_models import model_of
from support.profiles import synthetic_profile

from tvmflow.cli.profile import _print
from tvmflow.cli.text import ms_text
from tvmflow.explain.isa.record import Report
from tvmflow.explain.profiling.measure import host_finding
from tvmflow.explain.profiling.reading import from_json
from tvmflow.module import elf
from tvmflow.module.artifact import write_artifact
from tvmflow.runtime.devices import cuda_devices
from tvmflow.runtime.timing import Spread

pytestmark = pytest.mark.usefixtures("known_ceilings")


@pytest.fixture
def printed(cli, tmp_path):
    """Return a function that prints a profile, with its words separated by one blank."""

    def show(profile):
        (tmp_path / "net.json").write_text(json.dumps(profile.to_json()))
        return " ".join(cli("profile", "net.json").stdout.split())

    return show


def test_a_table_for_people(cli, compiled):
    result = cli("profile", compiled, "--runs", "3").succeeded()
    for word in ("first call", "host and copies", "Ceilings of", "10.0 GB/s", "launches a run"):
        assert word in result.stdout
    assert any(bound in result.stdout for bound in ("latency", "bandwidth", "arithmetic"))
    for column in ("p10 - p90", "share", "MFLOP", "MB", "GFLOP/s", "GB/s", "FLOP/B", "roofline"):
        assert column in result.stdout


def test_small_numbers_are_told(printed):
    """One launch is no launches, and a time below a microsecond not none."""
    profile = synthetic_profile(kernels=1)
    kernel = replace(profile.kernels[0], median_us=0.43, p10_us=0.4, p90_us=0.5)
    text = printed(replace(profile, kernels=(kernel,), runs=1))
    assert "1 launch a run, 0.4 µs in total" in text
    assert ", 1 run " in text


def test_a_profile_that_is_shown_again_is_not_measured(cli, tmp_path):
    (tmp_path / "net.json").write_text(json.dumps(synthetic_profile(kernels=1).to_json()))
    result = cli("profile", "net.json", "--runs", "20", "--no-findings")
    assert result.status == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert "--runs, --no-findings are for modules: net.json is shown as it was measured." in text


def test_a_narrow_terminal_has_fewer_columns():
    profile = synthetic_profile(kernels=3)
    text = io.StringIO()
    _print(Console(file=text, force_terminal=True, width=80, color_system=None), profile)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in lines if line.startswith("nodes"))
    assert head.split() == [
        *("nodes", "median", "share", "GFLOP/s", "GB/s", "FLOP/B", "roofline", "bound")
    ]
    slowest = max(profile.kernels, key=lambda kernel: kernel.median_us)
    assert any(f"{slowest.median_us:.1f} µs" in line for line in lines)


def test_ceilings_say_when_they_were_measured(printed):
    profile = synthetic_profile(kernels=1)
    ceilings = replace(profile.ceilings, date="2026-01-02T03:04:05+00:00", others_share=0.25)
    text = printed(replace(profile, ceilings=ceilings))
    assert "copy in L1 350.0 GB/s copy in L2 80.0 GB/s copy 20.0 GB/s" in text
    assert "measured 2026-01-02 03:04:05 UTC; other programs took 25% of the" in text


@pytest.mark.parametrize("clock", ["device", "host"])
def test_a_call_has_three_parts(clock):
    """Gaps between kernels count as one if the device reports them."""
    profile = synthetic_profile(kernels=5)
    kernels = [replace(kernel, clock=clock) for kernel in profile.kernels]
    profile = replace(profile, kernels=tuple(kernels))
    text = io.StringIO()
    _print(Console(file=text, width=200, color_system=None), profile)
    parts = {
        name: re.search(rf"^{name} +([\d.]+ .s), ([\d.]+)% of a call(.*)", text.getvalue(), re.M)
        for name in ("in kernels", "between kernels", "host and copies")
    }
    if clock == "host":
        assert parts.pop("between kernels") is None
    else:
        each = f"(4 gaps, {1e3 * profile.between_ms / 4:.1f} µs each)"
        assert parts["between kernels"][3].strip() == each
    assert parts["host and copies"][1] == ms_text(profile.host_ms)
    assert sum(float(part[2]) for part in parts.values()) == pytest.approx(100, abs=0.2)


def test_json_is_a_profile(cli, compiled):
    result = cli("profile", compiled, "--runs", "3", "--json").succeeded()
    profile = from_json(result.json)
    assert profile.runs == 3
    assert all(kernel.flops is not None for kernel in profile.kernels)


def test_another_engine_s_times_are_printed_if_asked_for(cli, tmp_path):
    weights = {"w": np.ones((384, 64, 1, 1), np.float32)}
    model = model_of("y = Conv(x, w)", {"x": (1, 64, 14, 14)}, {"y": (1, 384, 14, 14)}, weights)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    cli("compile", "net.onnx", "--target", "llvm", "-o", "net.so").succeeded()
    result = cli("profile", "net.so", "--runs", "2", "--no-findings", "--yardstick").succeeded()
    assert "TFLite's GPU delegate in 16 bits" in result.stdout
    assert "Times of another engine on other devices" in result.stdout
    head = next(line for line in result.stdout.splitlines() if "Adreno 640" in line)
    assert head.split()[:4] == ["nodes", "operator", "measured", "here"]
    row = next(line for line in result.stdout.splitlines() if "64 → 384" in line)
    assert "conv2d 1×1, 64 → 384, 14×14 the same" in " ".join(row.split())

    options = "--runs", "2", "--no-findings", "--json"
    profile = from_json(cli("profile", "net.so", *options, "--yardstick").succeeded().json)
    (known,) = (kernel.yardstick for kernel in profile.kernels if kernel.yardstick)
    assert known.distance == 0
    assert 0 < known.own_us <= sum(kernel.median_us for kernel in profile.kernels)
    # A profile in a file keeps the times; a profile without the option has none.
    (tmp_path / "with.json").write_text(json.dumps(profile.to_json()))
    assert "Adreno 616" in cli("profile", "with.json").stdout
    without = from_json(cli("profile", "net.so", *options).succeeded().json)
    assert not any(kernel.yardstick for kernel in without.kernels)


def test_a_network_without_measured_operators_is_reported(cli, compiled):
    result = cli("profile", compiled, "--runs", "2", "--no-findings", "--yardstick").succeeded()
    assert "was measured with no operator near those of this network." in result.stdout


def test_findings_are_printed_the_largest_first(printed):
    profile = synthetic_profile(kernels=14)
    text = printed(profile)
    assert "14 findings, 10 that may save most" in text
    largest = max(profile.findings, key=profile.worth_us)
    section = text.split("10 that may save most")[1]
    assert section.strip().startswith(f"{largest.kernel}: {largest.kind}")
    assert section.count(largest.remedy) == 10
    few = replace(profile, findings=profile.findings[:1])
    assert " 1 finding " in printed(few)


def test_a_finding_of_the_call_is_printed(printed):
    profile = synthetic_profile(kernels=5)
    whole = Spread(10 * profile.kernels_ms, 9 * profile.kernels_ms, 11 * profile.kernels_ms)
    profile = replace(profile, whole=whole)
    found = host_finding(profile)
    text = printed(replace(profile, findings=(*profile.findings, found)))
    assert f"6 findings the call: host: {found.sentence} costs " in text
    assert f"{ms_text(9 * profile.kernels_ms)} a run. {found.remedy}" in text


def test_findings_can_be_left_out(cli, compiled):
    analysed = cli("profile", compiled, "--runs", "1", "--json").json["findings"]
    assert analysed, "findings on llvm, too"
    without = cli("profile", compiled, "--runs", "1", "--no-findings", "--json").json
    assert without["findings"] == []
    assert any("were not analysed" in note for note in without["notes"])


def test_a_trace_is_written(cli, compiled, tmp_path):
    result = cli("profile", compiled, "--runs", "1", "--trace", "trace.json").succeeded()
    assert "Wrote trace.json" in result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) > 4
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("where", ["no/such/trace.json", "."])
def test_a_trace_that_cannot_be_written_is_said_first(cli, compiled, monkeypatch, where):
    monkeypatch.setattr("tvmflow.explain.profiling.measure.benchmark", None)
    cli("profile", compiled, "--trace", where).refused("Writing", "failed", "Remedy")


def test_a_page_is_written_of_one_profile_or_two(cli, compiled, tmp_path):
    result = cli("profile", compiled, "--runs", "1", "--html", "one.html", "--json").succeeded()
    assert "Wrote one.html" in result.stderr
    (tmp_path / "before.json").write_text(result.stdout)
    kernel = from_json(result.json).kernels[0].name
    assert kernel in (tmp_path / "one.html").read_text()
    # A profile is shown again without a device, and with machine code that was counted elsewhere.
    code = Report("net.so", "net", "adreno", "mali-g610", "Mesa", (), (), ())
    (tmp_path / "code.json").write_text(json.dumps(code.to_json()))
    again = ("--html", "two.html", "--compare", "before.json", "--isa", "code.json")
    shown = cli("profile", "before.json", *again).succeeded()
    assert "launches a run" in shown.stdout
    page = (tmp_path / "two.html").read_text()
    assert '"pairs":[{' in page
    assert '"gpu":"mali-g610"' in page
    assert page.count(f'"name":"{kernel}"') == 2


def test_pages_that_cannot_be_made_are_refused_first(cli, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr("tvmflow.explain.profiling.measure.benchmark", None)
    assert cli("profile", compiled, "--compare", "before.json").status == 2
    assert cli("profile", compiled, "--trace", "one", "--html", "one").status == 2
    assert cli("profile", compiled, "--isa", "adreno-740").status == 2
    assert cli("profile", "one.json", "--html", "one", "--isa", "adreno-740").status == 2
    isa = ("profile", compiled, "--html", "page.html", "--isa")
    cli(*isa, "adreno-999").refused("'adreno-999' is not known", "Remedy")
    cli(*isa, "adreno-740").refused("the module is for llvm", "Remedy")
    cli(*isa, "none.json").refused("Reading none.json failed", "Remedy")
    (tmp_path / "other.json").write_text("[" * 100_000)
    cli(*isa, "other.json").refused("Reading other.json failed", "nested too deeply", "Remedy")
    cli("profile", compiled, "--html", "no/such/page.html").refused("does not exist", "Remedy")
    page = ("profile", compiled, "--html", "page.html", "--compare")
    cli(*page, "before.json").refused("Reading the profile before.json failed", "Remedy")
    (tmp_path / "other.json").write_text("[]")
    cli(*page, "other.json").refused("a profile was expected", "Remedy")
    cli("profile", "other.json").refused("a profile was expected", "Remedy")
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_bad_requests(cli, compiled, tmp_path):
    cli("profile", "none.so").refused("there is no such file", "Remedy")
    cli("profile", compiled, "--device-index", "9").refused("there is no llvm device 9", "Remedy")
    (tmp_path / "text.so").write_text("no module")
    cli("profile", "text.so").refused("a module compiled by tvmflow was expected", "Remedy")
    cli("profile", tmp_path).refused("a file was expected, but it is a folder", "Remedy")
    (tmp_path / "tuning.journal").write_text('{"format": 1, "kind": "journal"}\n')
    cli("profile", "tuning.journal").refused("a module compiled by tvmflow was expected", "Remedy")
    assert cli("profile", compiled, "--runs", "0").status == 2


def test_modules_for_other_machines_and_devices(cli, compiled, tmp_path):
    content = bytearray(compiled.read_bytes())
    native = int.from_bytes(content[18:20], "little")
    content[18:20] = next(m for m in elf.MACHINES if m != native).to_bytes(2, "little")
    (tmp_path / "phone.so").write_bytes(content)
    cli("profile", "phone.so").refused("its host code is for", "but this machine is", "Remedy")
    if not cuda_devices():
        write_artifact(
            tiny_network.build(),
            tmp_path / "gpu.so",
            metadata=tiny_network.metadata(target="cuda"),
            weights={"w": tiny_network.weight()},
        )
        cli("profile", "gpu.so").refused("there is no cuda device on this machine", "Remedy")
