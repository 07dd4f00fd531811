"""The benchmark that compares predicted costs with a device: its kernels, and its results."""

from __future__ import annotations

import json
import sys

import analysis as benchmark
import common
import pytest

from tvmflow.devices.target import resolve

SMALL = 1 << 15


def costs_of(target, name):
    (series,) = (s for s in benchmark.all_series(target, SMALL) if s.name == name)
    return list(benchmark.predicted(series, target).predicted.values())


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("opencl", "adreno"),
        pytest.param("opencl", "mali", marks=pytest.mark.slow),
        pytest.param("opencl", "nvidia", marks=pytest.mark.slow),
        ("cuda", "nvidia"),
    ],
)
def test_kernels_are_built_from_good_to_bad(kind, device):
    target = resolve(kind, device)
    for series in benchmark.all_series(target, SMALL):
        result = benchmark.predicted(series, target)
        costs = list(result.predicted.values())
        if device == "mali" and series.name == "bank conflicts":
            assert not costs
            assert "no banks" in result.verdict
            continue
        if kind == "cuda" and series.name == "texture locality" and not costs:
            assert "no images" in result.verdict
            continue
        assert costs == sorted(set(costs)), series.name
        assert len(result.pairs) >= len(costs) - 1 >= 1


def test_lines_of_each_order():
    """Reads of lines of 64 bytes, and as many writes as rows have."""
    read = [SMALL // 16, SMALL // 4, SMALL, SMALL + SMALL // 16]
    expected = [lines + SMALL // 16 for lines in read]
    assert costs_of(resolve("opencl", "adreno"), "coalescing") == expected
    # A CPU's vector of 16 items is a quarter of such a wave.
    assert costs_of(resolve("opencl", "cpu"), "coalescing") == expected


def test_lanes_that_wait():
    """For the other sides' 64 steps: of half of the items with two accesses, of half with three."""
    items, steps = SMALL // 128, 64 * 2.5
    costs = costs_of(resolve("opencl", "adreno"), "divergence")
    assert costs == [0, items * steps, 3 * items * steps]


def test_cycles_of_banks():
    """Eight groups of 8 waves write 4 times and read 32 times, up to 32 words of a bank."""
    groups = SMALL // 4096
    cycles = [groups * 8 * (4 + 32 * degree) for degree in (1, 8, 32)]
    assert costs_of(resolve("opencl", "nvidia"), "bank conflicts") == cycles


def test_order_is_judged_round_by_round():
    pair = benchmark.Pair("rows", "columns", 16.0)
    slow_round = {"rows": [1.0, 9.0, 1.0], "columns": [2.0, 18.0, 3.0]}
    judged = benchmark._judged(pair, slow_round)
    assert (judged.measured, judged.agrees) == (2.0, True)
    same = {"rows": [1.0, 1.0], "columns": [1.02, 0.99]}
    result = benchmark.Result("p", "lines", {}, pairs=(judged, benchmark._judged(pair, same)))
    assert result.verdict == "no: columns no slower than rows"
    faster = benchmark._judged(pair, {"rows": [2.0], "columns": [1.0]})
    assert benchmark.Result("p", "lines", {}, pairs=(faster,)).verdict.endswith("faster than rows")


@pytest.mark.slow
@pytest.mark.opencl
def test_results_of_a_device(tmp_path, monkeypatch, capsys):
    """Every part of the JSON; times and orders are the device's own matter."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    arguments = ["analysis.py", "--elements", str(SMALL), "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    said = capsys.readouterr().out
    data = json.loads((tmp_path / "analysis.json").read_text())
    assert {"cpu", "versions", "date"} <= data["machine"].keys()
    assert data["device"]["driver"]
    assert data["elements"] == SMALL
    names = [result["property"] for result in data["properties"]]
    assert names[:3] == ["coalescing", "divergence", "bank conflicts"]
    for result in data["properties"]:
        assert result["times_ms"].keys() == result["predicted"].keys()
        assert bool(result["pairs"]) == (not result["not_shown"])
        for pair in result["pairs"]:
            assert pair["measured"] > 0
            assert pair["predicted"] > 1
        assert f"{result['property']}: {result['verdict']}" in said


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_a_device_that_is_not_there(target, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["analysis.py", "--target", target, "--device-index", "99"])
    benchmark.main()
    assert capsys.readouterr().out == f"no {target} device 99: nothing measured\n"
