"""Journals as seen by readers, by the next writer, and by a writer at the same time."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from support.journals import DEVICES, TARGET, random_trials, read, workload, write

from tvmflow.errors import JournalError
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Error, Event, Target, Trial, Workload
from tvmflow.tuning import maintenance


def best_of(trials: list[Trial], wanted) -> float:
    return min((t.cost for t in trials if t.workload == wanted), default=math.inf)


@pytest.mark.parametrize("seed", range(5))
def test_trials_are_read_as_they_were_appended(tmp_path: Path, seed: int):
    trials = random_trials(seed, 300)
    assert read(write(tmp_path / "a.journal", trials)) == trials


@pytest.mark.parametrize("count", [1, 40, 3000])
def test_the_best_trial_of_each_workload_is_found(tmp_path: Path, count: int):
    trials = random_trials(count, count, workloads=20)
    path = write(tmp_path / "a.journal", trials)
    with Journal.open(path) as journal:
        for wanted in {trial.workload for trial in trials}:
            found = journal.best(wanted, TARGET)
            cost = best_of(trials, wanted)
            assert (found.cost if found else math.inf) == cost
            if found is not None:
                assert found in trials
                assert found.workload == wanted
        assert journal.best(workload(99), TARGET) is None
        assert journal.best(trials[0].workload, Target("opencl", "mali")) is None


def test_many_sessions_make_one_journal(tmp_path: Path):
    path, trials = tmp_path / "a.journal", random_trials(3, 400, workloads=10)
    for start in range(0, 400, 7):
        write(path, trials[start : start + 7])
    assert read(path) == trials
    with Journal.open(path) as journal:
        assert sum(entry.trials for entry in journal.entries()) == len(trials)
        assert sum(e.failures for e in journal.entries()) == sum(t.error != 0 for t in trials)
        for wanted in {trial.workload for trial in trials}:
            found = journal.best(wanted, TARGET)
            assert (found.cost if found else math.inf) == best_of(trials, wanted)
        assert journal.damage == []


def test_a_writer_reads_what_it_has_appended(tmp_path: Path):
    with Journal.open(tmp_path / "a.journal", "a") as journal:
        for number, trial in enumerate(trials := random_trials(8, 200)):
            journal.append(trial)
            found = journal.best(trial.workload, TARGET)
            assert (found.cost if found else math.inf) == best_of(
                trials[: number + 1], trial.workload
            )


def test_a_reader_sees_whole_records_while_another_process_writes(tmp_path: Path):
    path, trials = tmp_path / "a.journal", random_trials(4, 60)
    with Journal.open(path, "a") as writer:
        for number, trial in enumerate(trials, 1):
            writer.append(trial)
            assert read(path) == trials[:number]


def test_events_are_kept_with_their_devices(tmp_path: Path):
    path = tmp_path / "a.journal"
    events = [
        Event("session", 1.7e9, None, {"seed": 3, "budget": {"trials": 32}}),
        Event("set_aside", 1.7e9 + 1, DEVICES[1], {"reason": "3 time-outs"}),
    ]
    with Journal.open(path, "a") as journal:
        for event, trial in zip(events, random_trials(1, 2), strict=True):
            journal.append(event)
            journal.append(trial)
    with Journal.open(path) as journal:
        assert list(journal.events()) == events
        assert len(list(journal.trials())) == 2


def test_the_nearest_workload_is_stored_most_alike(tmp_path: Path):
    one, *_ = random_trials(5, 1)
    base = {"knobs": {"tile": 1}, "costs": (1.0,), "error": Error.NONE, "original": None}

    def trial(cost: float, **fields: str) -> Trial:
        values = {**vars(one), **base, "costs": (cost,), "workload": workload(3, **fields)}
        return Trial(**values)

    half = trial(1.0, dtype="fp16", storage="texture")
    other = trial(2.0, dtype="fp32", storage="texture", signature="stride 2")
    path = write(tmp_path / "a.journal", [half, other, trial(0.1, accumulate="fp16")])
    with Journal.open(path) as journal:
        assert journal.best(workload(3, storage="texture"), TARGET) is None
        assert journal.nearest(workload(3, storage="texture"), TARGET) == other
        assert journal.nearest(workload(3, dtype="fp16"), TARGET) == half
        assert journal.nearest(workload(4), TARGET) is None


def test_a_map_of_nearly_the_same_size_will_do_where_there_is_no_other(tmp_path: Path):
    one, *_ = random_trials(5, 1)
    base = {"knobs": {"tile": 1}, "costs": (1.0,), "error": Error.NONE, "original": None}

    def sized(height: int, outputs: int = 64) -> Workload:
        shape = {"batch": 1, "outputs": outputs, "height": height, "padded": True}
        return Workload("conv2d", {**shape, "texture": True, "weights": "texture"})

    trials = [
        Trial(**{**vars(one), **base, "workload": w})
        for w in (sized(75), sized(38), sized(56, outputs=32))
    ]
    path = write(tmp_path / "a.journal", trials)
    with Journal.open(path) as journal:
        assert journal.nearest(sized(56), TARGET) == trials[0]
        assert journal.nearest(sized(40), TARGET) == trials[1]
        assert journal.nearest(sized(38), TARGET) == trials[1]
        assert journal.best(sized(56), TARGET) is None
        assert journal.nearest(sized(160), TARGET) is None
        assert journal.nearest(sized(56, outputs=128), TARGET) is None


def test_what_was_predicted_never_stands_for_what_was_measured(tmp_path: Path):
    one, *_ = random_trials(5, 1)
    base = {**vars(one), "error": Error.NONE, "original": None, "workload": workload(3)}
    measured = Trial(**{**base, "costs": (2.0,)})
    predicted = Trial(**{**base, "costs": (1.0,), "target": TARGET.predicted})
    path = write(tmp_path / "a.journal", [predicted, measured, predicted])
    maintenance.compact(path, tmp_path / "b.journal", best=1)
    for name in ("a.journal", "b.journal"):
        with Journal.open(tmp_path / name) as journal:
            assert journal.nearest(workload(3), TARGET) == measured
            assert journal.nearest(workload(3), TARGET.predicted) == predicted
            assert {t.target.is_predicted for t in journal.trials()} == {True, False}
    # Nor does it hide a measurement for a map of another size.
    near = workload(3)
    near = Workload(near.family, {**near.shape, "height": 60}, near.dtype, near.storage)
    journal_path = write(tmp_path / "c.journal", [measured])
    write(journal_path, [Trial(**{**vars(predicted), "workload": near})])
    with Journal.open(journal_path) as journal:
        assert journal.nearest(near, TARGET) == measured


def test_a_second_writer_is_refused(tmp_path: Path):
    path = tmp_path / "a.journal"
    with Journal.open(path, "a") as journal:
        journal.append(random_trials(1, 1)[0])
        with pytest.raises(JournalError, match="another process is writing it"):
            Journal.open(path, "a")
    Journal.open(path, "a").close()


def test_what_is_no_record_is_refused_and_the_journal_stays_good(tmp_path: Path):
    path, trials = tmp_path / "a.journal", random_trials(2, 2)
    with Journal.open(path, "a") as journal:
        journal.append(trials[0])
        bad = Trial(**{**vars(trials[1]), "knobs": {"tile": object()}})
        with pytest.raises(JournalError, match="could not be appended"):
            journal.append(bad)
        journal.append(trials[1])
    assert read(path) == trials


def test_a_journal_that_was_opened_to_read_or_closed_says_so(tmp_path: Path):
    path, (trial,) = tmp_path / "a.journal", random_trials(2, 1)
    write(path, [trial])
    with Journal.open(path) as journal, pytest.raises(JournalError, match="opened to be read"):
        journal.append(trial)
    with pytest.raises(JournalError, match="is closed"):
        journal.best(trial.workload, TARGET)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89TVJ", "begins with"),
        (b'{"input": ["opencl", "conv2d"]}\n' * 9, "begins with"),
        (os.urandom(500), "begins with"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "a.journal"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=words) as caught:
        Journal.open(path)
    assert caught.value.remedy


def test_a_missing_journal_and_a_folder_are_refused(tmp_path: Path):
    for path in (tmp_path / "no.journal", tmp_path):
        with pytest.raises(JournalError, match="failed"):
            Journal.open(path)


def test_another_kind_of_file_is_not_appended_to(tmp_path: Path):
    path = tmp_path / "a.log"
    for content in (b"{}", b"{}" * 100):
        path.write_bytes(content)
        with pytest.raises(JournalError, match="journal"):
            Journal.open(path, "a")
        assert path.read_bytes() == content


def test_a_writer_reads_what_it_appended(tmp_path: Path):
    trials = random_trials(8, 10)
    path = write(tmp_path / "a.journal", trials[:4])
    with Journal.open(path) as reader, Journal.open(path, "a") as writer:
        for count, trial in enumerate(trials[4:], 5):
            writer.append(trial)
            assert list(writer.trials()) == trials[:count]
        writer.append(event := Event("session", 1.7e9))
        assert list(writer.events()) == [event]
        # Trials that others append later are not read.
        assert list(reader.trials()) == trials[:4]
