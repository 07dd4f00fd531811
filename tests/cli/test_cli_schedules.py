"""``tvmflow schedules``, ``inspect --schedules`` and ``compile --knobs``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_model import tiny_model

COMPILE = ("--shape", "x/in=1,3,8,8", "--device", "adreno", "-o", "net.so")


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "models" / "net.onnx"
    path.parent.mkdir()
    path.write_bytes(tiny_model().SerializeToString())
    return path


def test_families_knobs_and_constraints_are_listed(cli):
    listed = cli("schedules").stdout
    assert "conv2d: Direct convolution of any window over the blocked layout" in listed
    assert "tile_w" in listed
    assert "must fit the device's registers" in listed
    families = json.loads(cli("schedules", "--json").stdout)
    assert families[-1]["name"] == "fallback"
    (conv2d,) = (f for f in families if f["name"] == "conv2d")
    assert {"name", "type", "meaning"} == set(conv2d["knobs"][0])


def test_a_module_tells_its_schedules_and_takes_them_back(cli, network):
    cli("compile", network, *COMPILE)
    shown = cli("inspect", "net.so", "--schedules").stdout
    assert "heuristic" in shown
    assert "tile_w=" in shown
    schedules = json.loads(cli("inspect", "net.so", "--json").stdout)["schedules"]
    name, entry = next((n, e) for n, e in schedules.items() if "tile_w" in e["knobs"])
    Path("knobs.json").write_text(json.dumps({name: {**entry["knobs"], "tile_w": 1}}))
    cli("compile", network, *COMPILE, "--knobs", "knobs.json")
    assert "given" in cli("inspect", "net.so", "--schedules").stdout


def test_knobs_that_do_not_fit_are_warned_of(cli, network):
    cli("compile", network, *COMPILE)
    schedules = json.loads(cli("inspect", "net.so", "--json").stdout)["schedules"]
    name, entry = next((n, e) for n, e in schedules.items() if "tile_w" in e["knobs"])
    Path("knobs.json").write_text(json.dumps({name: {**entry["knobs"], "tile_w": 4096}}))
    result = cli("compile", network, *COMPILE, "--knobs", "knobs.json").succeeded()
    assert f"The knobs given for {name} do not fit" in result.stderr
    assert "They are not used." in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "should be an object of names and values"),
        ('{"f": 3}', "The knobs of f in knobs.json should be an object"),
        ("{", "could not be read"),
    ],
)
def test_a_file_that_holds_no_knobs(cli, network, tmp_path, text, message):
    Path("knobs.json").write_text(text)
    result = cli("compile", network, *COMPILE, "--knobs", "knobs.json")
    result.refused(message, "Remedy")
    assert not (tmp_path / "net.so").exists()


def test_algorithms_are_shown_and_can_be_asked_for(cli, network):
    cli("compile", network, *COMPILE)
    algorithms = json.loads(cli("inspect", "net.so", "--json").stdout)["algorithms"]
    name = algorithms[0]["convolution"]
    Path("one.json").write_text(json.dumps({name: "direct"}))
    result = cli("compile", network, *COMPILE, "--algorithms", "one.json", "-v")
    assert f"algorithm {name}  direct  asked for" in result.stderr
    assert "algorithms for 1 convolutions" in cli("inspect", "net.so").stdout
    assert "asked for" in cli("inspect", "net.so", "--schedules").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"nothing": "direct"}', "'nothing', which is no convolution"),
        ('{"nothing": "fast"}', "is 'fast'; expected one of direct, gemm, winograd2, winograd4"),
        ("[]", "The algorithms in one.json should be an object of names and values"),
    ],
)
def test_invalid_algorithms_file_is_refused(cli, network, text, message):
    Path("one.json").write_text(text)
    cli("compile", network, *COMPILE, "--algorithms", "one.json").refused(message, "Remedy")
