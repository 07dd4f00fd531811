"""Which tests are quick, and which of the others are run for all of them.

``tests/durations.json`` has, by folder, the seconds of the tests that took longer than `QUICK`, as
``make durations`` found them.  A test that is not in it, a new one for example, is quick.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from statistics import fmean
from zlib import crc32

FILE = Path(__file__).parents[1] / "durations.json"
#: What all folders of tests lie in, as pytest names tests.
ROOT = PurePosixPath("tests")
#: Seconds of a quick test.
QUICK = 0.2
#: Seconds that the quickest case of a test may take to be quick, too: every test has one there.
ONE_CASE = 0.8
#: Seconds that the other cases of a test may take together, if there are several.
BUDGET = 1.0
#: Tests that take longer than this many seconds take turns: a commit has one in `TURNS` of them.
LONG = 2.0
TURNS = 10
#: Seconds that a case may take at all; ``make test-every`` has those that take longer, too.
LONGEST = 60.0


def quick(durations: Mapping[str, float], tests: Iterable[str]) -> set[str]:
    """The tests, by pytest's names, that are quick."""
    found: set[str] = set()
    for names in _by_function(tests):
        seconds = {name: durations.get(name, 0.0) for name in names}
        first = min(names, key=seconds.__getitem__)
        found |= {n for n in names if seconds[n] <= (ONE_CASE if n == first else QUICK)}
    return found


def sample(durations: Mapping[str, float], tests: Iterable[str], turn: int) -> set[str]:
    """Of the cases of each test as many as the budget has time for, one at least.

    They lie evenly among all of them: neighbours differ least.  What was never measured takes as
    long as the other cases.  Of tests that take long, those whose turn it is.
    """
    found: set[str] = set()
    for cases in _by_function(tests):
        names = [
            name
            for name in cases
            if (seconds := durations.get(name, 0.0)) <= LONG
            or (seconds <= LONGEST and (crc32(name.encode()) + turn) % TURNS == 0)
        ]
        known = [durations[name] for name in names if name in durations]
        count = int(BUDGET / (fmean(known) if known else QUICK))
        count = min(max(count, 1), len(names))
        found |= {names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)}
    return found


def _by_function(tests: Iterable[str]) -> Collection[list[str]]:
    cases: dict[str, list[str]] = defaultdict(list)
    for name in tests:
        cases[name.partition("[")[0]].append(name)
    return cases.values()


def read() -> dict[str, float]:
    """What was measured."""
    kept = json.loads(FILE.read_text())
    return {
        f"{ROOT.joinpath(folder).as_posix()}/{name}": seconds
        for folder, names in kept.items()
        for name, seconds in names.items()
    }


def commit(folder: Path = FILE.parent) -> int:
    """A number of the commit that is checked out, 0 where there is none."""
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout.strip()[:8], 16)


def write(measured: Mapping[str, float], *, every: bool) -> None:
    """Keep the seconds of tests that are not quick; unless every test ran, those of the others."""
    if not every:
        measured = {**read(), **measured}
    kept: dict[str, dict[str, float]] = {}
    for test, seconds in sorted(measured.items()):
        if seconds > QUICK:
            file, _, function = test.partition("::")
            folder = PurePosixPath(file).relative_to(ROOT).parent.as_posix()
            name = f"{PurePosixPath(file).name}::{function}"
            kept.setdefault(folder, {})[name] = round(seconds, 2)
    temporary = FILE.with_suffix(".part")
    temporary.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n")
    temporary.replace(FILE)
