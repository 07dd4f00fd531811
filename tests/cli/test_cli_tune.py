"""``tvmflow tasks`` and ``tvmflow tune``, on a network of a few small layers."""

from __future__ import annotations

import re
import sys
from io import StringIO

import onnx
import pytest
from rich.console import Console
from support.networks import Graph
from support.tunables import model, tasks

import tvmflow
from tvmflow._versions import install_command
from tvmflow.cli import tune as tune_command
from tvmflow.errors import DeviceError
from tvmflow.explain.isa import mesa
from tvmflow.module import link
from tvmflow.tuning import session, tuner
from tvmflow.tuning.measure import Standing
from tvmflow.tuning.tuner import Point, Progress

OPTIONS = ("--device", "cpu", "--search", "random", "--workers", "1")
BUFFER = ("--storage", "buffer")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Repeat disturbed measurements at once instead of after a pause."""
    monkeypatch.setattr(tuner, "PAUSE_S", 0.0)


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    return path


@pytest.fixture
def idle(monkeypatch):
    """Nothing that takes long may begin."""
    monkeypatch.setattr(session.Network, "job", lambda self: pytest.fail("the work has begun"))


def test_a_package_that_is_missing_is_named_before_the_work(cli, tmp_path, monkeypatch, idle):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    result = cli("tune", "net.onnx", "--journal", tmp_path / "a.journal")
    result.refused("needs the package xgboost", "pip install", "--search random")
    assert not (tmp_path / "a.journal").exists()


@pytest.mark.parametrize("report", ["no/such/folder/report.html", "."])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(cli, tmp_path, idle, report):
    options = ("--journal", tmp_path / "a.journal", "--report", report)
    cli("tune", "net.onnx", *options).refused("Writing", "folder", "Remedy")
    assert not (tmp_path / "a.journal").exists()


def test_a_host_that_nothing_links_for_is_refused_before_the_work(
    cli, network, tmp_path, monkeypatch
):
    monkeypatch.setattr(link, "tools", lambda host: iter(()))
    monkeypatch.setattr(session, "alternatives_of", lambda job: pytest.fail("the work has begun"))
    options = ("--host", "linux-arm64", "--device", "cpu", "--target", "llvm")
    result = cli("tune", network, "--journal", tmp_path / "a.journal", *options)
    result.refused("aarch64-linux-gnu failed: no linker for it was found", install_command("cross"))
    assert not (tmp_path / "a.journal").exists()


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
    command = ("tune", network, "--journal", journal, *OPTIONS, *BUFFER)
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
    cli("compile", network, "--device", "cpu", *BUFFER, "--journal", journal, "-o", module)
    taken = cli("inspect", module, "--json").json["schedules"]
    for task in again["tasks"]:
        for name in task["functions"]:
            assert taken[name]["knobs"] == task["knobs"]
            assert taken[name]["source"] == "journal"
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") == page.count("</svg>") == len(first["tasks"])
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)
    assert "The whole network" in page


@pytest.mark.slow
@pytest.mark.opencl
def test_tuning_from_python_goes_on_with_the_same_journal(cli, network, tmp_path):
    journal = tmp_path / "a.journal"
    options = {"device": "cpu", "storage": "buffer", "search": "random", "compare": False}
    found = tvmflow.tune(network, journal, trials=2, **options)
    trials = sum(progress.trials for progress in found.progress)
    assert repr(found).startswith(f"<Tuned: {len(found.progress)} tasks, {trials} trials in ")
    command = ("tune", network, "--journal", journal, *OPTIONS, *BUFFER, "--no-compare", "--json")
    assert cli(*command, "--trials", "2").json["trials"] == trials
    with pytest.raises(TypeError, match="unknown"):
        tvmflow.tune(network, journal, unknown=1)


@pytest.mark.opencl
def test_algorithm_and_storage_are_settled_and_compiled(cli, tmp_path):
    graph = Graph(1, 16, 12, 12)
    onnx.save(graph.model(graph.relu(graph.conv("x", 16, 3))), "one.onnx")
    command = ("tune", "one.onnx", "--journal", "a.journal", *OPTIONS, "--trials", "1")
    tuned = cli(*command, "--report", "report.html", "--json").json
    settled = {entry["what"]: entry for entry in tuned["settled"]}
    assert settled["algorithm"]["names"] == ["t0"]
    assert set(settled["algorithm"]["costs_s"]) == {"direct", "winograd2", "winograd4"}
    assert set(settled["storage"]["costs_s"]) >= {"auto", "texture"}
    for entry in tuned["settled"]:
        assert all(cost is None or cost > 0 for cost in entry["costs_s"].values())
    assert "Algorithms and storage" in (tmp_path / "report.html").read_text(encoding="utf-8")
    again = cli(*command, "--no-compare")
    assert "cost model" in again.stdout
    assert re.search(r"winograd4 \d", again.stdout)

    cli("compile", "one.onnx", "--device", "cpu", "--journal", "a.journal", "-o", "one.so")
    found = cli("inspect", "one.so", "--json").json
    assert [c["algorithm"] for c in found["algorithms"]] == [settled["algorithm"]["choice"]]
    assert found["algorithms"][0]["reason"].startswith("journal (a.journal: ")
    assert found["settled_storage"].startswith(f"{settled['storage']['choice']}, journal (a.")
    assert "chosen by" in cli("inspect", "one.so").stdout
    assert "journal (a.journal" in cli("inspect", "one.so", "--schedules").stdout
    for shown in (("ls",), ("best",), ("show", "--last", "0")):
        text = cli("journal", shown[0], "a.journal", *shown[1:]).stdout
        assert "algorithm" in text
        assert "storage" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_of_tasks_fits_terminals(width):
    progress = Progress(tasks()["conv2d"], heuristic=2e-1, best=1e-1)
    progress.points = [Point(1e-1, None)]
    screen = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    screen.print(tune_command._progress_table([progress], width))
    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for word in ("100000.0", "2.00", "100.0%"):
        assert word in text
    assert ("family" in text) == (width == 120)


@pytest.mark.opencl
def test_a_slower_network_and_a_busy_machine_are_told(cli, tmp_path, monkeypatch, busy_machine):
    graph = Graph(1, 8, 6, 6)
    onnx.save(graph.model(graph.conv("x", 8)), "one.onnx")
    slower = session.Comparison(before_ms=10.0, after_ms=11.0, is_slower=True)
    monkeypatch.setattr(session, "compare_networks", lambda *_: slower)
    journal = tmp_path / "a.journal"
    said = cli("tune", "one.onnx", "--journal", journal, *OPTIONS, *BUFFER, "--trials", "1")
    assert "The network is slower with the knobs that were found" in said.stderr
    assert "Compile it without" in said.stderr
    assert "Other programs took 50% of the processors meanwhile" in said.stderr
    assert "Network before 10.0 ms, after 11.0 ms" in said.stderr
    assert "times as fast" not in said.stderr


def test_a_person_sees_what_each_device_did(monkeypatch):
    # Not the terminal of whoever runs this: a dumb one shows no progress.
    terminal = {"TERM": "xterm"}
    screen = Console(file=StringIO(), force_terminal=True, width=120, height=40, _environ=terminal)
    monkeypatch.setattr(tune_command, "err_console", lambda: screen)
    progress = Progress(tasks()["conv2d"], heuristic=2e-4, best=1e-4)
    progress.points = [Point(1e-4, None)]
    devices = [Standing("Adreno [1]", 7, ""), Standing("10.0.0.3:9090", 2, "it was lost")]
    with tune_command.watching(8, None) as watch:
        watch([progress], devices)
    seen = screen.file.getvalue()
    for words in ("Adreno [1]: 7 trials", "10.0.0.3:9090: 2 trials; set aside: it was lost"):
        assert words in seen
    assert "1 of at most 8 trials" in seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--search", "genetic"), ("'genetic' is not known", "evolutionary, random")),
        (("--tracker", "127.0.0.1:1", "--key", "k"), ("127.0.0.1:1", "cannot be reached")),
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


@pytest.fixture
def no_compiler(monkeypatch):
    """Pretend that Mesa is not installed."""

    def find_tree(gpu, suite):
        raise DeviceError("There is no Mesa.", remedy="tvmflow isa --setup")

    monkeypatch.setattr(mesa, "find_tree", find_tree)


def test_tuning_without_the_device_predicts_and_writes_down(cli, network, tmp_path, no_compiler):
    path = tmp_path / "predicted.journal"
    options = ("--device", "adreno740", "--offline", "--journal", path)
    found = cli("tune", network, *options, "--json").json
    assert found["gpu"] == "adreno-740"
    families = {"conv2d", "conv2d_1x1", "depthwise"}
    assert {task["family"] for task in found["tasks"]} == families
    assert all(0 < task["best_s"] <= task["heuristic_s"] < 1e-3 for task in found["tasks"])
    listed = cli("journal", "ls", path, "--json").json
    assert [entry["predicted"] for entry in listed[0]["workloads"]] == [True] * len(found["tasks"])
    again = cli("tune", network, *options)
    assert "Predicted for adreno-740" in again.stdout
    assert found["verification"] in again.stderr
    assert "No machine code: There is no Mesa. tvmflow isa --setup" in again.stderr


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("auto", ("--offline needs --device", "adreno740")),
        ("adreno618", ("adreno-618", "rates", "adreno-740")),
        ("adreno7400", ("'adreno7400'", "not known")),
    ],
)
def test_a_device_that_nothing_is_predicted_for_is_refused(cli, network, tmp_path, device, words):
    options = ("--offline", "--device", device, "--journal", tmp_path / "a.journal")
    cli("tune", network, *options).refused(*words)
