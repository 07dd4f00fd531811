"""``tvmflow profile``."""

from __future__ import annotations

import json

import pytest

from tvmflow.profiling import ceilings
from tvmflow.profiling.record import Ceilings, from_json


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch):
    measured = Ceilings(10.0, 100.0, 0.001, int8_gops=400.0)
    monkeypatch.setattr(ceilings._Device, "measure", lambda self: measured)
    monkeypatch.setattr(ceilings, "_kept_at", lambda info: None)


def test_a_table_for_people(cli, compiled):
    result = cli("profile", compiled, "--runs", "3")
    assert result.status == 0, result.stderr
    for word in ("first call", "host and copies", "Ceilings of", "10.0 GB/s", "launches a run"):
        assert word in result.stdout
    assert any(bound in result.stdout for bound in ("latency", "bandwidth", "arithmetic"))


def test_json_is_a_profile(cli, compiled):
    result = cli("profile", compiled, "--runs", "3", "--json")
    assert result.status == 0, result.stderr
    profile = from_json(result.json)
    assert profile.runs == 3
    assert all(kernel.flops is not None for kernel in profile.kernels)


def test_a_trace_is_written(cli, compiled, tmp_path):
    result = cli("profile", compiled, "--runs", "1", "--trace", "trace.json")
    assert result.status == 0, result.stderr
    assert "Wrote trace.json" in result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) > 4
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("where", ["no/such/trace.json", "."])
def test_a_trace_that_cannot_be_written_is_said_first(cli, compiled, monkeypatch, where):
    monkeypatch.setattr("tvmflow.profiling.measure.benchmark", None)
    cli("profile", compiled, "--trace", where).refused("Writing", "failed", "Remedy")


def test_bad_requests(cli, compiled, tmp_path):
    cli("profile", "none.so").refused("there is no such file", "Remedy")
    cli("profile", compiled, "--device-index", "9").refused("there is no llvm device 9", "Remedy")
    (tmp_path / "text.so").write_text("no module")
    cli("profile", "text.so").refused("a module compiled by tvmflow was expected", "Remedy")
    assert cli("profile", compiled, "--runs", "0").status == 2
