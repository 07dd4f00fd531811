"""Selection of quick tests, and of a sample of the others.

``tests/durations.json`` lists, by folder, the seconds of the tests that took longer than `QUICK`,
as ``make durations`` measured them.  A test without an entry, such as a new one, is quick.
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
#: Common folder of all tests in pytest's names.
ROOT = PurePosixPath("tests")
#: Largest duration of a quick test in seconds.
QUICK = 0.15
#: Largest duration of a test's quickest case that still counts as quick: each test has one.
ONE_CASE = 0.5
#: Total seconds of the other cases of a test, if there are several.
BUDGET = 1.0
#: Duration above which tests take turns: a commit runs one in `TURNS` of them.
LONG = 2.0
TURNS = 10
#: Largest duration of a case; only ``make test-every`` runs longer ones.
LONGEST = 60.0


def quick(durations: Mapping[str, float], tests: Iterable[str]) -> set[str]:
    """Return the quick tests, by pytest's names."""
    found: set[str] = set()
    for names in _by_function(tests):
        seconds = {name: durations.get(name, 0.0) for name in names}
        first = min(names, key=seconds.__getitem__)
        found |= {n for n in names if seconds[n] <= (ONE_CASE if n == first else QUICK)}
    return found


def sample(durations: Mapping[str, float], tests: Iterable[str], turn: int) -> set[str]:
    """Return as many cases of each test as fit the budget, at least one.

    They are evenly spaced, because neighbours differ least.  Unmeasured cases count as long as the
    others' mean.  Long tests take turns.
    """
    found: set[str] = set()
    for cases in _by_function(tests):
        known = [durations[name] for name in cases if name in durations]
        seconds = {name: durations.get(name, fmean(known) if known else QUICK) for name in cases}
        names = [
            name
            for name in cases
            if seconds[name] <= LONG
            or (seconds[name] <= LONGEST and (crc32(name.encode()) + turn) % TURNS == 0)
        ]
        count = int(BUDGET / fmean(map(seconds.__getitem__, names))) if names else 0
        count = min(max(count, 1), len(names))
        found |= {names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)}
    return found


def _by_function(tests: Iterable[str]) -> Collection[list[str]]:
    cases: dict[str, list[str]] = defaultdict(list)
    for name in tests:
        cases[name.partition("[")[0]].append(name)
    return cases.values()


def read() -> dict[str, float]:
    """Return the measured durations."""
    kept = json.loads(FILE.read_text())
    return {
        f"{ROOT.joinpath(folder).as_posix()}/{name}": seconds
        for folder, names in kept.items()
        for name, seconds in names.items()
    }


def commit(folder: Path = FILE.parent) -> int:
    """Return a number of the checked-out commit, 0 if there is none."""
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout.strip()[:8], 16)


def write(measured: Mapping[str, float], *, every: bool) -> None:
    """Write the seconds of tests that are not quick; keep those of others unless every test ran."""
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
