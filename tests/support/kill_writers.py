"""Kills writers of journals with SIGKILL at random moments; prints how many, and of how much.

    cd tests; python -m support.kill_writers FOLDER COUNT

A program of its own, so that what it forks has no threads.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

from support.journals import random_trials, read, write
from tvmflow.journal import writing
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Trial

#: A new journal after so many writers.
WRITERS = 25


def writer(path: Path, trials: list[Trial], pipe: int) -> None:
    """Append for ever; say after each flush how many trials are safe."""
    generator, safe = random.Random(os.getpid()), 0
    with Journal.open(path, "a") as journal:
        while True:
            for _ in range(generator.randrange(1, 6)):
                journal.append(trials[safe % len(trials)])
                safe += 1
            journal.flush()
            os.write(pipe, struct.pack("<I", safe))
            if generator.random() < 0.05:
                journal.close()
                journal = Journal.open(path, "a")


def kill_one(path: Path, trials: list[Trial], seconds: float, wait: bool) -> int:
    """Kill a writer after a while, maybe from its first flush on; return what it had flushed."""
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            writer(path, trials, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    words = os.read(read_end, 4) if wait else b""
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read_end, "rb") as pipe:
        words += pipe.read()
    return struct.unpack("<I", words[-4:])[0] if words else 0


def main(folder: Path, count: int) -> None:
    writing.INDEX_EVERY_BYTES, writing.INDEX_SHARE = 2000, 1
    generator, total = random.Random(1), 0
    trials = random_trials(3, 50)
    for kill in range(count):
        path = folder / f"{kill // WRITERS}.journal"
        before = len(read(path)) if path.exists() and path.stat().st_size >= 16 else 0
        flushed = kill_one(path, trials, generator.expovariate(200), generator.random() < 0.8)
        total += flushed
        if not path.exists() or path.stat().st_size < 16:
            assert flushed == 0
            continue
        got = read(path)[before:]
        assert len(got) >= flushed, (kill, len(got), flushed)
        assert got == [trials[n % len(trials)] for n in range(len(got))], kill
    # The damaged journal can be appended to.
    write(folder / "0.journal", trials[:1])
    print(count, total)


main(Path(sys.argv[1]), int(sys.argv[2]))
