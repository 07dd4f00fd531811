"""Journals that are merged, compacted and checked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.journals import DEVICES, TARGET, random_trials, read, write

from tvmflow.errors import ArtifactError, JournalError
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Event
from tvmflow.tuning import maintenance


def test_a_merge_has_every_record_once(tmp_path: Path):
    trials = random_trials(1, 90)
    one = write(tmp_path / "one.journal", trials[:60])
    two = write(tmp_path / "two.journal", trials[30:])
    event = Event("session", 1.7e9, DEVICES[0], {"seed": 1})
    for path in (one, two):
        with Journal.open(path, "a") as journal:
            journal.append(event)
    out = tmp_path / "out.journal"
    merged = maintenance.merge(out, [one, two])
    assert (merged.trials, merged.events, merged.repeated) == (90, 1, 31)
    assert read(out) == trials
    merged = maintenance.merge(out, [two])
    assert (merged.trials, merged.events, merged.repeated) == (0, 0, 61)
    refused = pytest.raises(JournalError, match="another process is writing it")
    with Journal.open(out, "a"), refused:
        maintenance.merge(out, [one])


def test_a_compacted_journal_is_smaller_and_holds_the_same(tmp_path: Path):
    trials = random_trials(2, 2000, workloads=20)
    path = write(tmp_path / "a.journal", trials)
    with Journal.open(path, "a") as journal:
        journal.append(event := Event("session", 1.7e9, DEVICES[0], {"seed": 1}))
    before = path.stat().st_size
    assert maintenance.compact(path) == 2000
    assert path.stat().st_size < 0.8 * before
    assert read(path) == trials
    with Journal.open(path) as journal:
        assert list(journal.events()) == [event]
        for wanted in {trial.workload for trial in trials}:
            cost = min(trial.cost for trial in trials if trial.workload == wanted)
            assert journal.best(wanted, TARGET).cost == cost
        assert sum(entry.trials for entry in journal.entries()) == 2000
    later = random_trials(3, 20, workloads=30)
    write(path, later)
    assert read(path) == trials + later


def test_compacting_keeps_the_best_and_drops_what_is_damaged(tmp_path: Path):
    trials = random_trials(4, 300, workloads=4)
    path = write(tmp_path / "a.journal", trials)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    kept = read(path)
    out = tmp_path / "best.journal"
    groups = {trial.workload for trial in kept}
    assert maintenance.compact(path, out, best=2) == 2 * len(groups)
    for wanted in groups:
        costs = sorted(trial.cost for trial in kept if trial.workload == wanted)
        assert sorted(t.cost for t in read(out) if t.workload == wanted) == costs[:2]
    assert maintenance.verify(out).good
    assert not maintenance.verify(path).good


def test_compacting_leaves_a_journal_that_is_being_written_alone(tmp_path: Path):
    path = write(tmp_path / "a.journal", random_trials(5, 20))
    before = path.read_bytes()
    refused = pytest.raises(JournalError, match="another process is writing it")
    with Journal.open(path, "a"), refused:
        maintenance.compact(path)
    with pytest.raises(ArtifactError, match="does not exist"):
        maintenance.compact(path, tmp_path / "no" / "b.journal")
    assert path.read_bytes() == before
    with pytest.raises(JournalError, match="No such file"):
        maintenance.compact(tmp_path / "none.journal")
    assert not (tmp_path / "none.journal").exists()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_flipped_bits_of_a_compacted_journal_cost_one_block_at_most(tmp_path: Path, seed: int):
    generator = random.Random(seed)
    trials = random_trials(seed, 300, workloads=4)
    path = write(tmp_path / "a.journal", trials)
    maintenance.compact(path)
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        checked = maintenance.verify(path)
        assert not checked.good
        assert checked.trials >= 300 - 64
        left = list(trials)
        for trial in read(path):
            left.remove(trial)


def test_a_good_journal_is_good(tmp_path: Path):
    trials = random_trials(6, 50)
    checked = maintenance.verify(write(tmp_path / "a.journal", trials))
    assert checked.good
    assert (checked.trials, checked.failures) == (50, sum(t.error != 0 for t in trials))
