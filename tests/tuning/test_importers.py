"""Logs of AutoTVM and MetaSchedule, into journals and out of them again."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from support.journals import random_trials, read, write

from tvmflow.errors import JournalError
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Device, Error, Trial
from tvmflow.tuning import maintenance
from tvmflow.tuning.importers import autotvm_line, import_file, json_of_trial
from tvmflow.tuning_logs import find_journal

#: Logs and lines that the shipped journals are made of, and a digest of the lines.
SHIPPED = {
    "adreno660": (15, 336, "2745c98713d0ba75"),
    "adreno730": (14, 466, "75a864b1fbb36390"),
    "adreno740": (12, 366, "d624c8e4581d3ddb"),
}

LINE = {
    "input": [
        "opencl -keys=adreno,opencl,gpu -device=adreno -max_num_threads=256",
        "conv2d_nchwc.image2d",
        [
            ["TENSOR", [1, 32, 15, 13], "float16"],
            ["TENSOR", [24, 32, 3, 3], "float16"],
            [2, 2],
            [0, 0, 1, 1],
            [1, 1],
            "float32",
        ],
        {},
    ],
    "config": {
        "index": 6114,
        "code_hash": None,
        "entity": [
            ["tile_fc", "sp", [-1, 2, 3]],
            ["tile_y", "sp", [-1, 4, 2]],
            ["tile_x", "sp", [-1, 3, 4]],
            ["tile_rcc", "sp", [-1, 2]],
            ["tile_ry", "sp", [-1, 1]],
            ["tile_rx", "sp", [-1, 3]],
            ["auto_unroll_max_step", "ot", 512],
            ["unroll_explicit", "ot", 1],
        ],
    },
    "result": [[0.00014646356, 0.0002], 0, 0.9256973266601562, 1643835274.7564907],
    "version": 0.2,
    "tvm_version": "0.8.dev0",
}


#: Knobs of the line's tile and work-group.
TILE = {"tile_o": 2, "tile_h": 4, "tile_w": 3, "group_o": 3, "group_h": 2, "group_w": 4}


def test_predicted_times_are_no_lines_of_autotvm(tmp_path: Path):
    measured = next(t for t in random_trials(1, 50) if t.original is None and not t.error)
    predicted = replace(measured, target=measured.target.predicted)
    out = tmp_path / "a.log"
    assert maintenance.export([predicted, measured], "autotvm", out) == (1, 1)
    assert len(out.read_text().splitlines()) == 1


def changed(path: str, value: object) -> dict:
    """Return the log line with the value at a path replaced."""
    line = json.loads(json.dumps(LINE))
    *way, last = path.split("/")
    place = line
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return line


def nested(depth: int) -> str:
    """Return JSON text of nested arrays."""
    return "[" * depth + "]" * depth


def imported(
    tmp_path: Path, lines: list[object], name: str = "a.log", *, usable: bool = False
) -> tuple[str, list[Trial]]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / name).write_text(text)
    journal = tmp_path / "imported.journal"
    journal.unlink(missing_ok=True)
    with Journal.open(journal, "a") as target:
        device = Device("adreno660", "Adreno 660")
        result = import_file(target, tmp_path / name, device, "me", usable=usable)
    return str(result), read(journal)


# -- AutoTVM ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_journal_holds_lines_of_its_logs(name: str):
    lines = {}
    with Journal.open(find_journal(Path(name))) as journal:
        for trial in journal.trials():
            file = str(trial.provenance["file"])
            assert file.endswith(".autotvm.log")
            lines[file, trial.provenance["line"]] = autotvm_line(trial)
            assert "octoml/qualcomm" in trial.provenance["note"]
            assert trial.device.name.startswith("Adreno " + name[-3:])
        assert journal.damage == []
    text = "\n".join(json.dumps(lines[key], sort_keys=True) for key in sorted(lines))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (len({file for file, _ in lines}), len(lines), digest) == SHIPPED[name]


def test_a_line_is_understood(tmp_path: Path):
    report, (trial,) = imported(tmp_path, [LINE])
    assert report == "imported 1 of 1 lines"
    assert trial.costs == (0.00014646356, 0.0002)
    assert (trial.seconds, trial.timestamp) == (0.9256973266601562, 1643835274.7564907)
    assert trial.error is Error.NONE
    assert (trial.target.kind, trial.target.device) == ("opencl", "adreno")
    assert trial.provenance == {"file": "a.log", "note": "me", "line": 1}
    work = trial.workload
    found = (work.family, work.dtype, work.accumulate, work.storage)
    assert found == ("conv2d", "fp16", "fp32", "texture")
    window = {"kernel_h": 3, "kernel_w": 3, "padded": True, "texture": True, "weights": "texture"}
    window["input_block"] = 4
    loops = {"batch": 1, "outputs": 6, "height": 7, "width": 6, "lanes": 4, "inputs": 32}
    assert work.shape == {**loops, **window}
    unused = {"split_i": 1, "stage_input": False, "split_borders": False, "weights": "direct"}
    assert trial.knobs == {**TILE, **unused, "unroll_i": 4}


def test_layouts_of_one_convolution_are_one_workload(tmp_path: Path):
    nhwc = changed("input/1", "conv2d_nhwc.image2d")
    nhwc["input"][2][0][1] = [1, 15, 13, 32]
    nhwc["input"][2][1][1] = [3, 3, 32, 24]
    _, trials = imported(tmp_path, [LINE, nhwc])
    assert trials[0].workload == trials[1].workload
    depthwise = changed("input/1", "depthwise_conv2d_nchwc.image2d")
    depthwise["input"][2][1][1] = [32, 1, 3, 3]
    other = changed("input/1", "depthwise_conv2d_nhwc.image2d")
    other["input"][2][0][1] = [1, 15, 13, 32]
    other["input"][2][1][1] = [3, 3, 32, 1]
    _, trials = imported(tmp_path, [depthwise, other])
    assert trials[0].workload == trials[1].workload
    assert trials[0].workload.family == "depthwise"
    unused = ("reuse_rows", "stage_input", "split_borders")
    assert trials[0].knobs == {**TILE, **dict.fromkeys(unused, False)}


def test_a_pointwise_convolution_has_a_family_of_its_own(tmp_path: Path):
    line = changed("input/2/1/1", [24, 32, 1, 1])
    line["input"][2][3] = [0, 0, 0, 0]
    _, (trial,) = imported(tmp_path, [line])
    assert trial.workload.family == "conv2d_1x1"
    assert trial.knobs["split_i"] == 1


def test_a_tile_is_clipped_to_the_map_and_a_group_is_not(tmp_path: Path):
    line = changed("config/entity/1/2", [-1, 8, 2])
    line["config"]["entity"][2][2] = [-1, 1, 16]
    _, (trial,) = imported(tmp_path, [line])
    assert [trial.knobs[name] for name in ("tile_o", "tile_h", "tile_w")] == [2, 7, 1]
    assert [trial.knobs[name] for name in ("group_o", "group_h", "group_w")] == [3, 2, 16]


def test_knobs_that_no_schedule_of_ours_takes_are_refused(tmp_path: Path):
    report, _ = imported(tmp_path, [LINE, changed("config/entity/0/2", [-1, 4, 3])])
    assert "its knobs do not fit conv2d: tile_o * tile_h * tile_w vectors must fit" in report


@pytest.mark.parametrize("task", ["conv2d_nchw_winograd.image2d", "conv2d_nchw_winAgrad.image2d"])
def test_products_of_winograds_convolution_are_understood(tmp_path: Path, task: str):
    line = changed("input/1", task)
    report, _ = imported(tmp_path, [LINE, line])
    assert "line 2 is no record of its kind (KeyError: 'tile_rc')" in report
    line["config"]["entity"] = [
        ["tile_y", "sp", [-1, 2, 3]], ["tile_x", "sp", [-1, 2, 4]], ["tile_rc", "sp", [-1, 4]],
    ]  # fmt: skip
    _, (trial,) = imported(tmp_path, [line])
    assert trial.workload.family == "winograd_product"
    # Tiles of 2x2 outputs: 4 rows of 3, two of them an item, so that a group has two rows.
    assert trial.workload.shape == {
        "points": 16, "outputs": 6, "rows": 4, "columns": 3, "lanes": 4, "inputs": 32,
        "texture": True,
    }  # fmt: skip
    assert trial.knobs == {
        "tile_o": 2, "tile_h": 1, "tile_w": 2, "unroll_i": 4,
        "group_o": 3, "group_h": 2, "group_w": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        changed("input/1", "another.task"),
        changed("result", [[1000000000.0], 4, 10, 1643835274]),
        changed("result", [[], 99, -0.0, 1e300]),
        changed("input/3", {"größer": [True, None, -7, 0.1]}),
    ],
)
def test_every_line_is_exported_as_it_was(tmp_path: Path, line: dict):
    _, (trial,) = imported(tmp_path, [line])
    assert json.dumps(autotvm_line(trial)) == json.dumps(line)


def test_failed_trials_have_no_cost(tmp_path: Path):
    _, trials = imported(
        tmp_path, [changed("result", [[1e9], code, 10, 16438352]) for code in (4, 99)]
    )
    assert [trial.error for trial in trials] == [Error.RUNTIME, Error.UNKNOWN]
    assert [trial.cost for trial in trials] == [float("inf")] * 2


def test_only_usable_lines_are_imported_on_request(tmp_path: Path):
    lines = [
        LINE,
        changed("result", [[1e9], 6, 10, 16438352]),
        changed("input/1", "dense_small_batch.gpu"),
    ]
    report, trials = imported(tmp_path, lines, usable=True)
    assert [trial.provenance["line"] for trial in trials] == [1]
    assert report == (
        "imported 1 of 3 lines: line 2 failed (build timeout); "
        "line 3 is a task that no schedule family computes (dense_small_batch.gpu)"
    )
    assert len(imported(tmp_path, lines)[1]) == 3


class Trap:
    """Unpickled, it shows."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_pickles_are_refused_and_never_unpickled(tmp_path: Path):
    packed = base64.b64encode(pickle.dumps(Trap())).decode()
    lines = [LINE, "\t".join([packed] * 3), changed("config", packed), changed("version", 0.1)]
    report, trials = imported(tmp_path, lines)
    assert len(trials) == 1
    assert report.startswith("imported 1 of 4 lines: line 2 is a pickle, which is never unpickled;")
    assert "line 3 is no record of its kind (ValueError: its knobs are a pickle" in report
    assert "line 4 is no record of its kind (ValueError: format 0.1 instead of 0.2)" in report


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"input": [', "is no JSON"),
        ("[" * 100_000, "is nested too deeply"),
        # Python 3.14 reads this, and could not write it again.
        (json.dumps(changed("input/3", "")).replace('""', nested(20_000)), "is nested too deeply"),
        ("42", "is no record"),
        (changed("input", ["opencl"]), "is no record of its kind"),
        (changed("input/2/0", 7), "is no record of its kind"),
        (changed("config/entity", [["tile_fc", "sp", [-1, 2, 3]]]), "KeyError: 'tile_y'"),
        (changed("result/0", ["fast"]), "its costs are"),
        (changed("result/0", [-1.0]), "its costs are"),
        (changed("input/2/0/1", [1, 32, -15, 13]), "a convolution of nothing"),
        (changed("config/entity/1/2", [-1, 0, 4]), "a tile of nothing"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_imported(tmp_path: Path, line: object, words: str):
    report, trials = imported(tmp_path, [LINE, line, LINE])
    assert len(trials) == 2
    assert report.startswith("imported 2 of 3 lines: line 2 ")
    assert words in report


def test_a_file_without_a_record_is_refused(tmp_path: Path):
    for content in (["hello", "world"], [], ["{}"]):
        with pytest.raises(JournalError, match="expected to be a tuning log"):
            imported(tmp_path, content)
    missing = pytest.raises(JournalError, match=r"Importing .* failed: No such file")
    with Journal.open(tmp_path / "x.journal", "a") as journal, missing:
        import_file(journal, tmp_path / "missing.log")


# -- our own records, in all forms --------------------------------------------------------------


def test_trials_of_ours_survive_json(tmp_path: Path):
    trials = random_trials(11, 100)
    maintenance.export(trials, "json", tmp_path / "a.json")
    with Journal.open(tmp_path / "b.journal", "a") as journal:
        result = import_file(journal, tmp_path / "a.json")
    assert str(result) == "imported 100 of 100 lines"
    back = read(tmp_path / "b.journal")
    for trial, other in zip(trials, back, strict=True):
        # Trials without a provenance get this file as theirs.
        assert {**vars(trial), "provenance": 0} == {**vars(other), "provenance": 0}
        assert other.provenance == (trial.provenance or other.provenance)


def test_trials_of_ours_are_autotvm_lines_that_can_be_imported(tmp_path: Path):
    trials = [t for t in random_trials(12, 60) if t.original is None and not t.error]
    lines = [autotvm_line(trial) for trial in trials]
    assert {line["version"] for line in lines} == {0.2}
    report, back = imported(tmp_path, lines)
    assert report == f"imported {len(trials)} of {len(trials)} lines"
    for trial, other in zip(trials, back, strict=True):
        assert trial.workload == other.workload
        assert (trial.knobs, trial.costs) == (other.knobs, other.costs)


# -- MetaSchedule -------------------------------------------------------------------------------

MODULES = [["9593177933350849261", "okYAAAAAAAB7CiAg"], ["77", "AAAA"]]


def record(module: int, decision: int, seconds: list[float] | None) -> list:
    trace = [
        [["GetSBlock", [], ["C", "main"], ["b0"]], ["Sample", ["b0"], [3, 16, 0.25], ["v1"]]],
        [[1, [decision, 4, 1]]],
    ]
    arguments = [["TENSOR", "float32", [64, 64]]]
    return [module, [trace, seconds, {"kind": "llvm", "keys": ["cpu"]}, arguments]]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "database"
    folder.mkdir()
    records = [record(i % 2, i, [1e-3 / (i + 1), 2e-3]) for i in range(8)]
    records += [record(0, 9, [1e10]), record(1, 9, None), record(7, 9, [1.0])]
    for name, rows in (("workload", MODULES), ("tuning_record", records)):
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / f"database_{name}.json").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["", "database_tuning_record.json", "database_workload.json"])
def test_a_database_is_imported_and_exported_as_it_was(tmp_path: Path, database: Path, name: str):
    path = tmp_path / "a.journal"
    with Journal.open(path, "a") as journal:
        result = import_file(journal, database / name)
    assert str(result).startswith("imported 10 of 11 lines: line 11 is no record of its kind")
    trials = read(path)
    assert [trial.error for trial in trials] == [Error.NONE] * 8 + [Error.UNKNOWN] * 2
    assert maintenance.export(trials, "metaschedule", tmp_path / "out") == (10, 0)
    for file in ("database_workload.json", "database_tuning_record.json"):
        lines = (database / file).read_text().splitlines()
        assert (tmp_path / "out" / file).read_text().splitlines() == lines[:10]


def test_what_has_no_trace_is_counted(tmp_path: Path, database: Path):
    path = write(tmp_path / "a.journal", random_trials(1, 7))
    with Journal.open(path, "a") as journal:
        import_file(journal, database)
    assert maintenance.export(read(path), "metaschedule", tmp_path / "out") == (10, 7)


def test_a_database_without_its_modules_is_refused(tmp_path: Path, database: Path):
    (database / "database_workload.json").unlink()
    refused = pytest.raises(JournalError, match="should be in")
    with Journal.open(tmp_path / "a.journal", "a") as journal, refused:
        import_file(journal, database)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workload", {"family": 3, "shape": {}}),
        ("workload", {"family": "conv2d", "shape": [1]}),
        ("workload", {"family": "conv2d", "shape": {"a": [1]}}),
        ("target", {"kind": "opencl"}),
        ("knobs", [1]),
        ("message", None),
        ("error", "FINE"),
        ("costs", ["slow"]),
        ("timestamp", "now"),
        ("toolchain", {"tvm": 3}),
        ("original", {"format": "autotvm"}),
        ("other", 1),
    ],
)
def test_a_trial_of_ours_that_is_none_is_refused(tmp_path: Path, field: str, value: object):
    (trial,) = random_trials(1, 1)
    good = json_of_trial(trial)
    report, trials = imported(tmp_path, [good, {**good, field: value}])
    assert len(trials) == 1
    assert report.startswith("imported 1 of 2 lines: line 2 is no record of its kind")
