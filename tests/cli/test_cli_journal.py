"""``tvmflow journal`` and ``compile --journal``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_model import tiny_model

from tvmflow.tuning_logs import shipped

LINE = {
    "input": [
        "opencl -device=adreno",
        "conv2d_nchwc.image2d",
        [
            *(["TENSOR", [1, 3, 8, 8], "float32"], ["TENSOR", [4, 3, 3, 3], "float32"]),
            *([1, 1], [1, 1, 1, 1], [1, 1], "float32"),
        ],
        {},
    ],
    "config": {
        "index": 1,
        "code_hash": None,
        "entity": [
            *(["tile_fc", "sp", [-1, 1, 1]], ["tile_y", "sp", [-1, 2, 4]]),
            *(["tile_x", "sp", [-1, 4, 2]], ["tile_rcc", "sp", [-1, 1]]),
        ],
    },
    "result": [[0.00125], 0, 2.5, 1690835256.9],
    "version": 0.2,
    "tvm_version": "0.8.dev0",
}


@pytest.fixture
def journal(cli) -> Path:
    """Return a journal imported from a log with one good and one bad line."""
    Path("a.log").write_text(json.dumps(LINE) + "\nnonsense\n")
    result = cli(
        "journal", "import", "a.log", "--journal", "a.journal", "--device-name", "A 660"
    ).succeeded()
    assert "a.log: imported 1 of 2 lines: line 2 is no JSON" in result.stderr
    return Path("a.journal")


def test_what_is_imported_is_listed_shown_and_good(cli, journal):
    listed = cli("journal", "ls", journal)
    assert "1.25 ms" in listed.stdout
    (described,) = cli("journal", "ls", journal, "--json").json
    (entry,) = described["workloads"]
    assert (entry["family"], entry["trials"], entry["best_ms"]) == ("conv2d", 1, 1.25)
    (best,) = cli("journal", "best", journal, "--json").json
    assert best["knobs"]["tile_w"] == 4
    assert best["provenance"] == {"file": "a.log", "line": 1}
    assert "tile_w=4" in cli("journal", "best", journal).stdout
    (shown,) = cli("journal", "show", journal, "--workload", entry["workload"][:6], "--json").json
    assert shown == best
    assert cli("journal", "show", journal, "--workload", "ff" * 16, "--json").json == []
    assert cli("journal", "show", journal, "--events", "--json").json == []
    good = cli("journal", "verify", journal).succeeded()
    assert "Good" in good.stderr


def test_damage_is_said_and_counted(cli, journal):
    data = bytearray(journal.read_bytes())
    data[200] ^= 1
    journal.write_bytes(data)
    result = cli("journal", "verify", journal)
    assert result.status == 1
    assert "no frame matches its checksum" in result.stderr
    (checked,) = cli("journal", "verify", journal, "--json").json
    assert checked["good"] is False
    assert cli("journal", "ls", journal).status == 0
    cli("journal", "compact", journal)
    assert cli("journal", "verify", journal).status == 0


def test_journals_are_exported_merged_and_compacted(cli, journal):
    cli("journal", "export", journal, "--format", "autotvm", "-o", "b.log")
    assert json.loads(Path("b.log").read_text()) == LINE
    cli("journal", "export", journal, "-o", "b.json")
    result = cli("journal", "export", journal, "--format", "metaschedule", "-o", "ms")
    assert "exported 0 of 1 trials: 1 have no MetaSchedule trace" in result.stderr
    cli("journal", "import", "b.json", "--journal", "c.journal")
    result = cli("journal", "merge", "d.journal", journal, "c.journal")
    assert "1 trials and 0 events added, 1 already present" in " ".join(result.stderr.split())
    compacted = cli("journal", "compact", "d.journal", "-o", "e.journal", "--best", "1", "--json")
    assert compacted.json["trials"] == 1
    assert "adreno" in cli("journal", "ls", "adreno740", "--json").stdout


def test_compile_uses_a_journal_and_says_so(cli, journal):
    Path("net.onnx").write_bytes(tiny_model().SerializeToString())
    options = ("--shape", "x/in=1,3,8,8", "--device", "adreno", "--storage", "texture")
    cli("compile", "net.onnx", *options, "--journal", journal, "-o", "net.so").succeeded()
    schedules = cli("inspect", "net.so", "--json").json["schedules"]
    (choice,) = (c for c in schedules.values() if c["family"] == "conv2d")
    assert choice["source"] == "journal"
    assert choice["origin"] == "a.journal: 1.25 ms on A 660, autotvm, fp32, a.log:1"
    assert choice["knobs"]["tile_w"] == 4
    assert "journal (a.journal: 1.25 ms" in " ".join(
        cli("inspect", "net.so", "--schedules").stdout.split()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ls", "none.journal"), ["none.journal failed: No such file"]),
        (("ls", "text.journal"), ["expected to be a tuning journal", "begins with"]),
        (("import", "text.journal", "--journal", "x.journal"), ["imported 0 of 1 lines: line 1"]),
        (("import", "a.log", "--journal", "text.journal"), ["expected to be a tuning journal"]),
        (("export", "adreno660", "--format", "xml", "-o", "x"), ["The format 'xml' is not known"]),
        (("export", "adreno660", "-o", "no/x"), ["the folder no does not exist"]),
        (("merge", "x.journal", "none.journal"), ["none.journal failed"]),
        (("compact", "none.journal"), ["none.journal failed"]),
    ],
)
def test_mistakes_are_refused(cli, arguments: tuple[str, ...], words: list[str]):
    Path("text.journal").write_text("nonsense, long enough to be a file of another kind\n")
    Path("a.log").write_text(json.dumps(LINE))
    result = cli("journal", *arguments)
    result.refused(*words)
    assert "Remedy" in result.stderr


def test_compile_refuses_what_is_no_journal(cli):
    Path("net.onnx").write_bytes(tiny_model().SerializeToString())
    options = ("--shape", "x/in=1,3,8,8", "--device", "adreno", "-o", "net.so")
    cli("compile", "net.onnx", *options, "--journal", "none").refused("Opening the journal none")
    Path("text").write_text("no journal")
    result = cli("compile", "net.onnx", *options, "--journal", "text")
    result.refused("expected to be a tuning journal")
    assert not Path("net.so").exists()


def test_a_journal_that_does_not_exist(cli, model):
    """The message names the shipped journals and the one with the nearest name."""
    shape = ("--shape", "x/in=1,3,8,8")
    for command in (("compile", model, "--target", "llvm", *shape, "--journal"), ("journal", "ls")):
        refused = cli(*command, "adreno74")
        refused.refused("adreno74 failed", "nearest are adreno740", "Remedy", *shipped())
