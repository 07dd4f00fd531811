"""Damaged journals: cut, with flipped bits, of killed writers, on full disks."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.journals import TARGET, random_trials, read, write

from tvmflow.errors import JournalError
from tvmflow.journal import frames, writing
from tvmflow.journal.frames import HEADER_BYTES, MAGIC, SYNC, header
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Trial
from tvmflow.tuning import maintenance


@pytest.fixture(autouse=True)
def frequent_indices(monkeypatch: pytest.MonkeyPatch):
    """Write indices in the middle of small journals, too, and do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(writing, "INDEX_EVERY_BYTES", 2000)
    monkeypatch.setattr(writing, "INDEX_SHARE", 1)


#: Seeds of the damage; all but the first are in the long tier.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]


def examine(path: Path, written: list[Trial]) -> tuple[list[Trial], bool]:
    """Return the readable trials after trying all ways of reading, and whether damage was found."""
    workloads = {trial.workload for trial in written}
    with Journal.open(path) as journal:
        for wanted in workloads:
            found = journal.best(wanted, TARGET)
            assert found is None or (found in written and found.workload == wanted)
    with Journal.open(path) as journal:
        got = list(journal.trials())
        list(journal.events())
        for wanted in workloads:
            found = journal.best(wanted, TARGET)
            assert found is None or found in written
            # A look-up of a workload may recover its definition, and so find more than before.
            cost = min((trial.cost for trial in got if trial.workload == wanted), default=math.inf)
            assert (found.cost if found else math.inf) <= cost
        return got, bool(journal.damage or journal.tail)


def within(got: list[Trial], written: list[Trial]) -> bool:
    """Return whether each trial that was read was written, and is read once."""
    left = list(written)
    return all(trial in left and left.remove(trial) is None for trial in got)


def test_a_journal_that_is_cut_anywhere_keeps_its_whole_records(tmp_path: Path, long_tier: bool):
    trials, later = random_trials(6, 30, workloads=3), random_trials(7, 2, workloads=3)
    whole = write(tmp_path / "whole.journal", trials).read_bytes()
    path = tmp_path / "cut.journal"
    counts = []
    tail = len(whole) - 300
    # Cut everywhere in the last records, and at some places before.
    for length in [*range(0, tail, 11 if long_tier else 37), *range(tail, len(whole))]:
        path.write_bytes(whole[:length])
        if length < HEADER_BYTES:
            with pytest.raises(JournalError, match="expected to be a tuning journal"):
                Journal.open(path)
        else:
            got, _ = examine(path, trials)
            assert got == trials[: len(got)]
            counts.append(len(got))
        if length % 7 == 0:
            # The next writer continues after the damage.
            write(path, later)
            assert read(path) == trials[: counts[-1] if counts else 0] + later
    assert counts == sorted(counts)
    assert counts[-1] == len(trials)


def test_the_recovery_of_a_torn_tail_is_noted(tmp_path: Path):
    path = write(tmp_path / "a.journal", random_trials(6, 3))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + SYNC + b"half a record")
    with Journal.open(path) as journal:
        assert journal.tail == (size, 15, "cut off, or being written")
    write(path, [])
    with Journal.open(path) as journal:
        (event,) = journal.events()
        assert (event.kind, event.details) == ("recovered", {"offset": size, "bytes": 15})
        assert journal.tail is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_costs_one_record_at_most_and_is_reported(tmp_path: Path, seed: int):
    generator = random.Random(seed)
    trials = random_trials(seed, 60, workloads=4)
    whole = write(tmp_path / "whole.journal", trials).read_bytes()
    path = tmp_path / "flipped.journal"
    lost = 0
    bits = [*range(8 * HEADER_BYTES)] if seed == 0 else []
    bits += [generator.randrange(8 * len(whole)) for _ in range(250)]
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        got, reported = examine(path, trials)
        assert reported, bit
        assert len(got) >= len(trials) - 1, bit
        assert within(got, trials)
        lost += len(trials) - len(got)
    assert lost > 0, "no flip hit a record: the test tests nothing"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_journal_can_be_appended_to(tmp_path: Path, seed: int):
    generator = random.Random(seed)
    trials, later = random_trials(seed, 40), random_trials(seed + 100, 40)
    whole = write(tmp_path / "whole.journal", trials).read_bytes()
    path = tmp_path / "flipped.journal"
    for _ in range(40):
        data = bytearray(whole)
        bit = generator.randrange(8 * HEADER_BYTES, 8 * len(whole))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        write(path, later)
        got, _ = examine(path, trials + later)
        assert got[-40:] == later
        assert len(got) >= 79


@pytest.mark.parametrize("seed", SEEDS)
def test_heavy_damage_never_makes_a_wrong_record(tmp_path: Path, seed: int):
    generator = random.Random(seed)
    trials = random_trials(seed, 50)
    whole = write(tmp_path / "whole.journal", trials).read_bytes()
    path = tmp_path / "damaged.journal"
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 12)):
            at, kind = generator.randrange(HEADER_BYTES, len(data)), generator.randrange(4)
            if kind == 0:
                data[at] = generator.randrange(256)
            elif kind == 1:  # a piece is lost, or duplicated
                del data[at : at + generator.randrange(40)]
            elif kind == 2:
                data[at:at] = data[at : at + generator.randrange(400)]
            else:  # a sector becomes zeros
                data[at : at + 512] = bytes(len(data[at : at + 512]))
        path.write_bytes(data)
        got, _ = examine(path, trials)
        assert within(got, trials)


def test_a_frame_inside_another_ones_content_is_no_record():
    inner = frames.encode(frames.TRIAL, b"inner", 100)
    outer = frames.encode(frames.TRIAL, b"outer" + inner + b"outer", HEADER_BYTES)
    data = bytearray(header() + outer)
    assert [item.offset for item in frames.frames(memoryview(data), HEADER_BYTES)] == [HEADER_BYTES]
    data[HEADER_BYTES + 12] ^= 1  # the outer frame is damaged, and searched for others
    (item,) = frames.frames(memoryview(data), HEADER_BYTES)
    assert isinstance(item, frames.Damage)


def test_another_major_version_is_refused_and_a_damaged_version_is_not(tmp_path: Path):
    import struct
    import zlib

    trials = random_trials(1, 5)
    path = write(tmp_path / "a.journal", trials)
    data = path.read_bytes()
    newer = MAGIC + struct.pack("<HH", 2, 7)
    path.write_bytes(newer + struct.pack("<I", zlib.crc32(newer)) + data[HEADER_BYTES:])
    with pytest.raises(JournalError, match=r"version 2\.7, but this tvmflow reads version 1"):
        Journal.open(path)
    path.write_bytes(newer + header()[-4:] + data[HEADER_BYTES:])
    assert read(path) == trials


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from support.journals import random_trials
from tvmflow.errors import JournalError
from tvmflow.journal.journal import Journal

trials = random_trials(5, 200)
refused = 0
with Journal.open(sys.argv[1], "a") as journal:
    resource.setrlimit(resource.RLIMIT_FSIZE, (12345, resource.RLIM_INFINITY))
    for number, trial in enumerate(trials):
        try:
            journal.append(trial)
        except JournalError as error:
            assert "failed: File too large" in str(error), error
            refused += 1
            if refused == 20:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        else:
            print(number)
assert refused == 20
"""


def test_a_full_disk_costs_the_records_that_were_refused_and_no_other(tmp_path: Path):
    path = tmp_path / "a.journal"
    arguments = [sys.executable, "-c", LIMITED, str(path), str(Path(__file__).parents[1])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    appended = [int(line) for line in done.stdout.split()]
    assert len(appended) == 180
    trials = random_trials(5, 200)
    assert read(path) == [trials[number] for number in appended]


def test_no_record_that_was_flushed_is_lost_when_the_writer_is_killed(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "support.kill_writers", str(tmp_path), "300"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills, flushed = map(int, done.stdout.split())
    assert kills == 300
    assert flushed > 500, "the writers were killed before they wrote anything"


@pytest.mark.parametrize("seed", SEEDS)
def test_malformed_content_with_right_checksums_is_skipped(tmp_path: Path, seed: int):
    generator = random.Random(seed)
    trials = random_trials(seed, 40)
    path = write(tmp_path / "a.journal", trials)
    if seed % 2:
        maintenance.compact(path)
    whole = memoryview(path.read_bytes())
    items = list(frames.frames(whole, HEADER_BYTES))
    for _ in range(80):
        data = bytearray(header())
        for item in items:
            payload, kind = bytearray(item.payload), item.kind
            if generator.random() < 0.2:
                for _ in range(generator.randrange(1, 4)):
                    payload[generator.randrange(len(payload))] = generator.randrange(256)
                del payload[len(payload) - generator.choice([0, 0, 1, 9]) :]
            if generator.random() < 0.05:
                kind = generator.randrange(8)
            data += frames.encode(kind, bytes(payload), len(data))
        path.write_bytes(data)
        # Other records than the written ones may be read, but nothing else may happen.
        with Journal.open(path) as journal:
            list(journal.trials())
            list(journal.events())
            for entry in journal.entries():
                journal.trial_of(entry)
            for trial in trials:
                journal.nearest(trial.workload, TARGET)
        maintenance.compact(path, tmp_path / "b.journal")
        write(path, trials[:1])
