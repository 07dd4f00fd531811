"""How long the tests take: each tier with an empty cache and with a full one.

Run it from the root of the repository, on a machine that does nothing else:

    python benchmarks/suite.py              # make test, twice
    python benchmarks/suite.py --all        # and make test-rest
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from typing import Any

import common

#: pytest's closing line, of which `make test-rest` prints two.
CLOSING = re.compile(r"^=+ (.* in [\d.]+s.*?) =+$", re.MULTILINE)
#: A line of what `--durations` prints; a test's folder does not matter.
SLOWEST = re.compile(r"^([\d.]+)s (setup|call|teardown) +(?:\w+/)*(\S.*)$", re.MULTILINE)


def measured(target: str, arguments: str) -> dict[str, Any]:
    """Run a target of make; return its times, and what pytest said of tests."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        ["make", "--no-print-directory", target, f"ARGS={arguments}"],
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"make {target} {arguments}: {wall_s:.0f} s, {CLOSING.findall(done.stdout)}", flush=True)
    return {
        "target": target,
        "cache": "empty" if "--cache-clear" in arguments else "full",
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "status": done.returncode,
        "tests": CLOSING.findall(done.stdout),
        "slowest": [[float(s), test] for s, _, test in SLOWEST.findall(done.stdout)[:10]],
    }


def main() -> None:
    """Measure, and write ``results/suite.json``."""
    parser = common.arguments(__doc__)
    parser.add_argument("--all", action="store_true", help="measure make test-rest, too")
    targets = ["test", "test-rest"] if parser.parse_args().all else ["test"]
    # That of the last five minutes: others' work makes these figures worthless.
    load = round(os.getloadavg()[1], 2)
    runs = [measured(target, cache) for target in targets for cache in ("--cache-clear", "")]
    common.write_json("suite", {"load_before": load, "runs": runs})


if __name__ == "__main__":
    main()
