"""Knobs of journals in compiled networks."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from support.first_stages import compiled_until
from support.journals import write
from support.networks import Graph

import tvmflow
from tvmflow import models
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.lookup import ALGORITHM, STORAGE, workload_of
from tvmflow.devices.target import PRESETS, resolve
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Device, Target, Trial, Workload
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.family import facts_of, refusal
from tvmflow.tuning_logs import find_journal, shipped
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import OPERATOR, assert_close

CONVOLUTIONS = ("conv2d", "conv2d_1x1", "depthwise", "winograd_product")
ADRENO = resolve("opencl", "adreno")


def scheduled(tmp_path: Path, model: object, journals: list[Path], **options: object):
    """Compile a network up to the schedule stage."""
    return compiled_until("schedule", model, device="adreno", journals=journals, **options)


def sources(job: Compilation) -> list[str]:
    return [c.source for c in job.schedules.values() if c.family in CONVOLUTIONS]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with layers of MobileNetV1 that the shipped journals contain."""
    graph = Graph(1, 64, 14, 14)
    layer = graph.conv("x", 512, 1)
    layer = graph.node("Relu", [graph.conv(layer, 512, 3, groups=512)], 512)
    layer = graph.node("Relu", [graph.conv(layer, 512, 1)], 512)
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    path.write_bytes(graph.model(layer).SerializeToString())
    return path


def difference(one: Workload, other: Workload) -> tuple[bool, bool]:
    return one.dtype != other.dtype, one.accumulate != other.accumulate


@pytest.mark.parametrize(
    ("journal", "dtype", "count", "source"),
    [
        ("adreno640", "fp32", 15, "TVM-for-armgpu/tvm"),
        ("adreno660", "fp32", 19, "octoml/qualcomm"),
        ("adreno730", "fp16", 19, "octoml/qualcomm"),
        ("adreno740", "fp16", 19, "octoml/qualcomm"),
    ],
)
def test_convolutions_of_mobilenet_v1_have_the_fastest_knobs_that_were_measured(
    tmp_path: Path, journal: str, dtype: str, count: int, source: str
):
    path = find_journal(Path(journal))
    with Journal.open(path) as opened:
        trials = list(opened.trials())
    job = scheduled(tmp_path, models.make("mobilenet_v1"), [path], dtype=dtype)
    assert len(sources(job)) == 19
    found = {name: c for name, c in job.schedules.items() if c.source == "journal"}
    assert len(found) == count
    for name, choice in found.items():
        workload = workload_of(job.unscheduled[name], choice.family, choice.shape)
        alike = [t for t in trials if t.workload.compatibility_key == workload.compatibility_key]
        fastest = min(alike, key=lambda trial: (*difference(trial.workload, workload), trial.cost))
        assert choice.knobs == fastest.knobs
        file, line = fastest.provenance["file"], fastest.provenance["line"]
        assert choice.origin.startswith(f"{journal}.journal: {fastest.cost * 1e3:.3g} ms on Adreno")
        assert f"autotvm, {dtype}, {file}:{line}, github.com/{source}" in choice.origin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("journal", "size", "exact"),
    [("adreno660", 299, 23), ("adreno730", 299, 23), ("adreno740", 299, 23), ("adreno740", 224, 0)],
)
def test_most_convolutions_of_resnet50_have_what_was_measured(
    tmp_path: Path, journal: str, size: int, exact: int
):
    model = models.make("resnet50", size=size)
    job = scheduled(tmp_path, model, [find_journal(Path(journal))])
    found = [choice for choice in job.schedules.values() if choice.source == "journal"]
    others = [choice for choice in found if ", for a map of " in choice.origin]
    # The rest are Winograd's, or convolutions that the measured networks do not have.
    assert len(found) >= 25
    assert len(found) - len(others) == exact


def test_shipped_journals_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert {"adreno640", "adreno660", "adreno730", "adreno740"} <= set(shipped())
    monkeypatch.chdir(tmp_path)
    assert find_journal(Path("adreno660")).is_file()
    assert find_journal(Path("other")) == Path("other")
    Path("adreno660").touch()
    assert find_journal(Path("adreno660")) == Path("adreno660")


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_a_network_with_measured_knobs_is_right(small: Path, storage: str):
    journals = [find_journal(Path("adreno660"))]
    options = {"target": "opencl", "device": "adreno", "storage": storage}
    with tvmflow.compile(small, journals=journals, **options) as module:
        entries = module.metadata["schedules"].values()
        assert {e["family"] for e in entries if e["source"] == "journal"} == {
            *("depthwise", "conv2d_1x1"),
        }
        x = np.random.default_rng(0).standard_normal((1, 64, 14, 14)).astype(np.float32)
        outputs = module({"x": x})
        reference, _ = run_reference(small, {"x": x}, list(outputs.keys()))
        for name, value in outputs.items():
            assert_close(value, reference[name], OPERATOR, name)


def trial(workload: Workload, cost: float, **knobs: object) -> Trial:
    device = Device("phone", "Adreno (TM) 750")
    return Trial(workload, Target.of(ADRENO), device, knobs, (cost,), timestamp=1.7e9)


@pytest.fixture
def tuned(small: Path, tmp_path: Path) -> tuple[Compilation, str, Workload]:
    """Return the network with heuristic knobs, its depthwise function's name and workload."""
    job = scheduled(tmp_path, small, [])
    name, choice = next((n, c) for n, c in job.schedules.items() if c.family == "depthwise")
    return job, name, workload_of(job.unscheduled[name], choice.family, choice.shape)


def test_a_workload_says_how_tensors_are_stored(small: Path, tmp_path: Path, tuned):
    _, name, workload = tuned
    assert (workload.dtype, workload.storage, workload.accumulate) == ("fp32", "texture", "fp32")
    assert "1x128x14x14x4" in workload.signature
    half = scheduled(tmp_path, small, [], dtype="fp16", accumulate="fp16")
    choice = half.schedules[name]
    other = workload_of(half.unscheduled[name], choice.family, choice.shape)
    assert (other.dtype, other.accumulate) == ("fp16", "fp16")
    assert other.key != workload.key
    assert other.compatibility_key == workload.compatibility_key


def test_given_knobs_come_first_then_the_first_journal_and_the_fastest(
    small: Path, tmp_path: Path, tuned
):
    job, name, workload = tuned
    base = job.schedules[name].knobs
    one = write(
        tmp_path / "one.journal",
        [trial(workload, 3e-3, **{**base, "tile_h": 2}), trial(workload, 2e-3, **base)],
    )
    two = write(tmp_path / "two.journal", [trial(workload, 1e-3, **{**base, "tile_h": 4})])
    for journals, tile_h in (([one, two], base["tile_h"]), ([two, one], 4), ([two], 4)):
        choice = scheduled(tmp_path, small, journals).schedules[name]
        assert (choice.source, choice.knobs["tile_h"]) == ("journal", tile_h)
    given = {name: {**base, "tile_h": 7}}
    choice = scheduled(tmp_path, small, [two], knobs=given).schedules[name]
    assert (choice.source, choice.knobs["tile_h"]) == ("given", 7)


def test_what_a_model_predicted_counts_where_nothing_was_measured(
    small: Path, tmp_path: Path, tuned
):
    job, name, workload = tuned
    base = job.schedules[name].knobs
    fast = trial(workload, 1e-6, **{**base, "tile_h": 4})
    guess = dataclasses.replace(fast, target=fast.target.predicted, source="predicted")
    predicted = write(tmp_path / "predicted.journal", [guess])
    # This trial has another precision, is slower, and is in the last journal.
    half = dataclasses.replace(workload, dtype="fp16", accumulate="fp16")
    measured = write(tmp_path / "b.journal", [trial(half, 1.0, **{**base, "tile_h": 2})])
    both = write(tmp_path / "both.journal", [trial(half, 1.0, **{**base, "tile_h": 2}), guess])
    for journals, tile_h in (([predicted], 4), ([predicted, measured], 2), ([both], 2)):
        choice = scheduled(tmp_path, small, journals).schedules[name]
        assert (choice.source, choice.knobs["tile_h"]) == ("journal", tile_h)
        assert ("predicted" in choice.origin) == (tile_h == 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tile_w": 99}, "tile_w vectors must fit the device's registers."),
        ({"other": 1}, "There is no knob 'other'"),
        ({"tile_h": "two"}, "must be a positive number"),
    ],
)
def test_measured_knobs_that_do_not_fit_are_not_used(
    small: Path, tmp_path: Path, tuned, caplog: pytest.LogCaptureFixture, change: dict, words: str
):
    job, name, workload = tuned
    knobs = {**job.schedules[name].knobs, **change}
    path = write(tmp_path / "a.journal", [trial(workload, 1e-3, **knobs)])
    caplog.set_level(logging.INFO, "tvmflow.schedules")
    choice = scheduled(tmp_path, small, [path]).schedules[name]
    assert choice.source == "heuristic"
    assert choice.knobs == job.schedules[name].knobs
    assert words in caplog.text
    assert "a.journal: 1 ms on Adreno (TM) 750" in caplog.text


def test_a_journal_for_another_device_changes_nothing(small: Path, tmp_path: Path, tuned, caplog):
    job, name, workload = tuned
    other = dataclasses.replace(
        trial(workload, 1e-3, **job.schedules[name].knobs), target=Target("opencl", "mali")
    )
    path = write(tmp_path / "a.journal", [other])
    assert sources(scheduled(tmp_path, small, [path])) == ["heuristic"] * 3
    assert "a.journal had knobs for 0 of 5 functions" in caplog.text


@pytest.mark.parametrize("name", shipped())
def test_every_record_that_ships_fits_its_family(name: str):
    families = {family.NAME: family for family in FAMILIES}
    with Journal.open(find_journal(Path(name))) as journal:
        trials = list(journal.trials())
        for entry in journal.entries():
            workload = journal.workload(entry.workload)
            costs = [trial.cost for trial in trials if trial.workload == workload]
            assert entry.cost == min(costs) < float("inf")
    for one in trials:
        # Decisions on algorithms and storage belong to no family.
        if one.workload.family in (ALGORITHM, STORAGE):
            continue
        family = families[one.workload.family]
        shape = family.Shape(**one.workload.shape)
        assert facts_of(shape) == one.workload.shape
        device = PRESETS[one.target.device]
        assert refusal(family, family.Knobs(**one.knobs), shape, device) is None


def test_the_readme_counts_the_bytes_and_trials_that_ship():
    text = (find_journal(Path("adreno640")).parent / "README.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    stated = {row[1].strip(" `"): (int(row[-3].replace(",", "")), int(row[-2])) for row in rows}
    assert [*stated] == shipped()
    for name, counts in stated.items():
        path = find_journal(Path(name))
        with Journal.open(path) as journal:
            assert (path.stat().st_size, len(list(journal.trials()))) == counts
