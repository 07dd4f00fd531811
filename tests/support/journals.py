"""Random trials, and journals of them."""

from __future__ import annotations

import random
from pathlib import Path

from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Device, Error, Original, Target, Trial, Workload

TARGET = Target("opencl", "adreno", {"channel_block": 4, "max_group_size": 256})
DEVICES = [
    Device("pixel8", "Mali-G715", "OpenCL 3.0 v1.r44", {"host": "aarch64"}),
    Device("oneplus", "Adreno (TM) 740", "OpenCL 3.0 QUALCOMM build: 0762"),
]
TOOLCHAIN = {"tvmflow": "0.1.0", "apache-tvm": "0.27.0.post1"}


def workload(number: int, **fields: str) -> Workload:
    """One of any number of workloads."""
    shape = {"batch": 1, "outputs": 8 + number, "height": 56, "padded": number % 2 == 0}
    return Workload("conv2d", {**shape, "texture": True, "weights": "texture"}, **fields)


def random_trial(generator: random.Random, workloads: int = 5) -> Trial:
    """A trial with everything that a trial may have, now and then."""
    failed = generator.random() < 0.2
    costs = () if failed else tuple(generator.random() for _ in range(generator.choice([1, 1, 3])))
    knobs = {
        "tile_o": generator.choice([1, 2, 4, 300, 70000]),
        "stage_input": generator.random() < 0.5,
        "weights": generator.choice(["direct", "local", "größer \U0001f600"]),
        "factor": generator.choice([-1, -200, 0, 0.5, -0.0, 1e300]),
    }
    original = None
    if generator.random() < 0.2:
        entity = [["tile_x", "sp", [-1, generator.randrange(64)]], ["unroll", "ot", None]]
        original = Original("autotvm", {"config": {"entity": entity}, "r": [generator.random()]})
    return Trial(
        workload(generator.randrange(workloads), dtype=generator.choice(["fp32", "fp16"])),
        TARGET,
        generator.choice(DEVICES),
        knobs,
        costs,
        Error.RUNTIME if failed else Error.NONE,
        "CL_OUT_OF_RESOURCES\n" * generator.randrange(3) if failed else "",
        timestamp=1.7e9 + generator.random() * 1e6,
        seconds=generator.random(),
        toolchain=TOOLCHAIN,
        source=generator.choice(["measured", "heuristic"]),
        provenance={} if generator.random() < 0.5 else {"file": "a.log", "line": 7},
        original=original,
    )


def random_trials(seed: int, count: int, workloads: int = 5) -> list[Trial]:
    """The same ones for the same seed."""
    generator = random.Random(seed)
    return [random_trial(generator, workloads) for _ in range(count)]


def write(path: Path, trials: list[Trial]) -> Path:
    """A journal of them, written in one go."""
    with Journal.open(path, "a") as journal:
        for trial in trials:
            journal.append(trial)
    return path


def read(path: Path) -> list[Trial]:
    """All trials of a journal."""
    with Journal.open(path) as journal:
        return list(journal.trials())
