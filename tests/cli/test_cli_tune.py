"""``tvmflow tasks`` and ``tvmflow tune``, on a network of a few small layers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import onnx
import pytest

# Modules of other folders' tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))

from tunables import model

OPTIONS = ("--device", "cpu", "--search", "random", "--workers", "1")


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    return path


def test_tasks_are_listed(cli, network):
    found = cli("tasks", network, "--device", "adreno", "--json").json
    by_family = {entry["family"]: entry for entry in found}
    assert by_family["conv2d_1x1"]["calls"] == 2
    assert len(by_family["conv2d_1x1"]["functions"]) == 1
    assert by_family["conv2d"]["candidates"] > 10
    assert sum(entry["share"] for entry in found) == pytest.approx(1)
    assert "conv2d_1x1" in cli("tasks", network, "--device", "adreno").stdout


@pytest.mark.opencl
def test_tuning_leaves_a_journal_that_compiling_uses(cli, network, tmp_path):
    journal, report = tmp_path / "a.journal", tmp_path / "report.html"
    command = ("tune", network, "--journal", journal, *OPTIONS)
    first = cli(*command, "--trials", "3", "--report", report, "--json").json
    assert first["before_ms"] > 0
    assert first["after_ms"] > 0
    tunable = [task for task in first["tasks"] if task["trials"] > 1]
    assert all(task["trials"] == 3 for task in tunable)
    assert {task["family"] for task in tunable} >= {"conv2d", "conv2d_1x1", "depthwise"}
    assert all(task["failures"] == 0 for task in first["tasks"])
    for task in tunable:
        assert task["best_s"] <= task["heuristic_s"]
    again = cli(*command, "--trials", "4", "--no-compare", "--json").json
    assert again["before_ms"] is None
    # One more of each, and what was known is still known.
    assert again["trials"] == first["trials"] + len(tunable)
    module = tmp_path / "net.so"
    cli("compile", network, "--device", "cpu", "--journal", journal, "-o", module)
    taken = cli("inspect", module, "--json").json["schedules"]
    for task in again["tasks"]:
        for name in task["functions"]:
            assert taken[name]["knobs"] == task["knobs"]
            assert taken[name]["source"] == "journal"
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") == page.count("</svg>") == len(first["tasks"])
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)
    assert "The whole network" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--search", "genetic"), ("'genetic' is not known", "evolutionary, random")),
        (("--tracker", "127.0.0.1:1", "--key", "k"), ("needs the preset of its devices", "auto")),
        (
            ("--device", "cpu", "--tracker", "127.0.0.1:1", "--key", "k"),
            ("127.0.0.1:1", "cannot be reached"),
        ),
        (("--journal", "/nowhere/a.journal"), ("/nowhere/a.journal",)),
    ],
)
def test_what_cannot_be_tuned_is_said(cli, network, tmp_path, arguments, words):
    journal = () if "--journal" in arguments else ("--journal", tmp_path / "a.journal")
    cli("tune", network, *journal, *arguments).refused(*words)
