"""Run a library many times across driver updates, kills, full disks and damaged caches.

The driver is the fake one of the tests, so that each version of it has a fault of its own.  A
process opens the library with a cache folder that all share, tunes it in the background and
compares the result of each run; some processes are killed, some cannot write files of more than a
few bytes, and between processes files of the cache are damaged.

    python benchmarks/endurance.py [--runs 10000]
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from common import arguments, report, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/module/standalone"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import test_choices
from support import runtime_build
from support.fake_opencl import build_fake

#: Driver versions, and the fault of each.
FAULTS = {
    "1.0": "", "1.1": "kernel add_a", "1.2": "kernel add_both", "1.3": "kernel add_a1",
    "1.4": "kernel add_a0", "1.5": "kernel add_plain",
}  # fmt: skip
SLOW = "add_a=300,add_a0=200,add_a1=100,add_both=60"
RUNS = 20  # of a process
CHILD = f"""
import os, resource, sys
sys.path[:0] = sys.argv[5:]
import test_choices
import numpy as np
from support.standalone_api import Model
library, driver, folder, data = sys.argv[1:5]
most = int(os.environ["MOST_BYTES"])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
x, want = np.load(data)
print("begun", flush=True)
with Model(library, opencl_library=driver, cache_folder=folder) as model:
    for number in range({RUNS}):
        if number == 2:
            test_choices.begin(model, 30)
        print(int(np.allclose(model(x)[0], want, rtol=1e-5)), flush=True)
print("ended", flush=True)
"""


def main() -> None:
    """Run, print and write the results."""
    parser = arguments(__doc__, runs=10_000, seed=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tvmflow-") as name:
        folder = Path(name)
        driver = build_fake(folder)
        plan = test_choices.chain()
        library = runtime_build.link(folder / "libnet.so", plan.encode(), plan.weights())
        x, w = test_choices.X, test_choices.W
        np.save(folder / "data.npy", np.stack([x, 3 * (2 * x + w) + w]))
        command = [sys.executable, "-c", CHILD, str(library), str(driver), str(folder / "cache")]
        command += [str(folder / "data.npy"), *sys.path[:2]]
        while found["runs"] < options.runs:
            cycle(command, folder / "cache", rng, found)
    results = {"runs_asked": options.runs, **found}
    report("endurance", ["event", "count"], sorted(results.items()))
    assert not found["wrong answers"]
    assert not found["crashes"]
    write_json("endurance", results)


def cycle(command: list[str], cache: Path, rng: random.Random, found: Counter[str]) -> None:
    """Run one process, and count what happens."""
    version = rng.choice(list(FAULTS))
    event = rng.choice(["none", "none", "killed", "full disk", "damaged cache"])
    env = {**os.environ, "FAKE_OPENCL_DRIVER": version, "FAKE_OPENCL_WRONG": FAULTS[version]}
    env["FAKE_OPENCL_SLOW"] = SLOW
    most = rng.choice([0, 30, 100, 1000]) if event == "full disk" else resource.RLIM_INFINITY
    if event == "damaged cache":
        damage(cache, rng)
    env["MOST_BYTES"] = str(most)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    if event == "killed":
        time.sleep(rng.random() * 0.05)
        process.kill()
    lines += process.communicate()[0].splitlines()
    results = [line for line in lines if line.strip() in ("0", "1")]
    found["processes"] += 1
    found[f"processes, {event}"] += 1
    found["runs"] += len(results)
    found["wrong answers"] += results.count("0")
    was_killed = event == "killed" and process.returncode == -signal.SIGKILL
    found["crashes"] += process.returncode != 0 and not was_killed


def damage(cache: Path, rng: random.Random) -> None:
    """Cut or change some files of a cache."""
    for path in cache.glob("*") if cache.exists() else ():
        content = bytearray(path.read_bytes())
        if not content or rng.random() < 0.5:
            continue
        if rng.random() < 0.5:
            del content[rng.randrange(len(content)) :]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
