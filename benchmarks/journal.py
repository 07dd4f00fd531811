"""Tuning journals against MetaSchedule's JSON database: size, appending, looking up.

*Size*: 10,000 trials over 30 tasks, convolutions of MobileNetV2's kind with knobs that their
schedule family allows, in a journal as a tuner writes it, compacted, and in a ``JSONDatabase``
whose traces make the same decisions.  *Appending*: 100,000 trials, one call each, the
journal's own fsync policy.  *Looking up*: the best trial of each of 60 tasks, from opening
the file on, with 100,000 trials in it; the database is opened and asked for the same.

    python benchmarks/journal.py [--rounds 5] [--trials 100000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm
from common import report, write_json
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvmflow._versions import REQUIRED_TVM, __version__
from tvmflow.devices.target import resolve
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Device, Target, Trial, Workload
from tvmflow.schedules import conv2d_1x1
from tvmflow.schedules.conv2d import Shape
from tvmflow.schedules.family import refusal
from tvmflow.tuning.maintenance import compact

SPEC = resolve("opencl", "adreno")
TARGET = Target.of(SPEC)
DEVICE = Device("phone", "Adreno (TM) 740", "OpenCL 3.0 QUALCOMM build")
TOOLCHAIN = {"tvmflow": __version__, **REQUIRED_TVM}
#: Decisions of a knob in the database's trace are indices of these values.
Space = dict[str, tuple[Any, ...]]


def shapes(count: int) -> list[Shape]:
    """Pointwise convolutions."""
    sizes = [(112, 16), (56, 24), (28, 32), (14, 96), (7, 320)]
    return [
        Shape(1, channels // 4 * (1 + i // 5), size, size, 4, channels, 1, 1,
              padded=False, texture=True, weights="texture", input_block=4)
        for i in range(count)
        for size, channels in [sizes[i % 5]]
    ]  # fmt: skip


def random_trials(count: int, tasks: int, seed: int) -> list[Trial]:
    """Trials with knobs that are allowed, and one measured time each, as noisy as real ones."""
    generator = random.Random(seed)
    pairs = [
        (shape, Workload(conv2d_1x1.NAME, asdict(shape), storage="texture", signature=f"task {i}"))
        for i, shape in enumerate(shapes(tasks))
    ]
    spaces = [conv2d_1x1.space(shape, SPEC.device) for shape, _ in pairs]
    trials, now = [], 1.7e9
    while len(trials) < count:
        number = generator.randrange(tasks)
        shape, workload = pairs[number]
        chosen = {name: generator.choice(values) for name, values in spaces[number].items()}
        if refusal(conv2d_1x1, conv2d_1x1.Knobs(**chosen), shape, SPEC.device) is not None:
            continue
        now += (seconds := generator.uniform(0.05, 1.5))
        cost = (generator.lognormvariate(-8, 1),)
        trials.append(
            Trial(workload, TARGET, DEVICE, chosen, cost, timestamp=now, seconds=seconds,
                  toolchain=TOOLCHAIN)
        )  # fmt: skip
    return trials


# -- the same in a JSON database ----------------------------------------------------------------


def product(shape: Shape) -> tvm.IRModule:
    """The task as TIR: its loops, without what is fused to it."""
    x = te.placeholder((1, shape.inputs // 4, shape.height, shape.width, 4), name="x")
    w = te.placeholder((shape.outputs, shape.inputs, 4), name="w")
    i = te.reduce_axis((0, shape.inputs), name="i")
    y = te.compute(
        (1, shape.outputs, shape.height, shape.width, 4),
        lambda n, o, h, v, c: te.sum(x[n, i // 4, h, v, i % 4] * w[o, i, c], axis=i),
        name="conv2d",
    )
    return tvm.IRModule({"main": te.create_prim_func([x, w, y])})


def template(sch: Schedule, space: Space, chosen: dict[str, Any]) -> None:
    """A schedule that a template with these knobs writes into a trace, steps and all."""
    block = sch.get_sblock("conv2d")
    n, o, h, w, lane, i = sch.get_loops(block)
    sampled = {}
    for name, values in space.items():
        indices = list(range(len(values)))
        share = [1 / len(values)] * len(values)
        sampled[name] = sch.sample_categorical(indices, share, decision=values.index(chosen[name]))
    o, oi = sch.split(o, [None, chosen["tile_o"]])
    h, hi = sch.split(h, [None, chosen["tile_h"]])
    w, wi = sch.split(w, [None, chosen["tile_w"]])
    i, ii = sch.split(i, [None, chosen["unroll_i"]])
    sch.reorder(n, o, h, w, i, ii, oi, hi, wi, lane)
    sch.bind(sch.fuse(n, o), "blockIdx.z")
    sch.bind(h, "blockIdx.y")
    sch.bind(w, "blockIdx.x")
    for loop in (ii, oi, hi, wi):
        sch.unroll(loop)
    sch.vectorize(lane)


class Database:
    """A ``JSONDatabase`` in a folder."""

    def __init__(self, folder: Path):
        names = ("database_workload.json", "database_tuning_record.json")
        self.files = [folder / name for name in names]
        self.database = ms.database.JSONDatabase(*map(str, self.files))

    def commit(self, trials: Sequence[Trial], most_traces: int = 200) -> None:
        """Commit trials; beyond ``most_traces`` of a task, traces are used again.

        Making a trace takes a hundred times as long as committing it.
        """
        by_task: dict[bytes, Any] = {}
        target = tvm.target.Target({"kind": "opencl", "max_num_threads": 256})
        for trial in trials:
            if (task := by_task.get(trial.workload.key)) is None:
                shape = Shape(**trial.workload.shape)
                mod = product(shape)
                workload = self.database.commit_workload(mod)
                arguments = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
                space = conv2d_1x1.space(shape, SPEC.device)
                task = by_task[trial.workload.key] = (mod, workload, arguments, space, [])
            mod, workload, arguments, space, traces = task
            if len(traces) < most_traces:
                sch = Schedule(mod, debug_mask="none")
                template(sch, space, dict(trial.knobs))
                traces.append(sch.trace)
                trace = sch.trace
            else:
                trace = traces[random.randrange(len(traces))]
            self.database.commit_tuning_record(
                ms.database.TuningRecord(trace, workload, list(trial.costs), target, arguments)
            )

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.files)


# -- what is measured ---------------------------------------------------------------------------


def write_journal(path: Path, trials: Sequence[Trial]) -> float:
    """Append trials one by one; seconds until they are safe."""
    path.unlink(missing_ok=True)
    started = time.perf_counter()
    with Journal.open(path, "a") as journal:
        for trial in trials:
            journal.append(trial)
    return time.perf_counter() - started


def look_up(path: Path, workloads: Sequence[Workload]) -> list[Trial | None]:
    """The best trial of each workload, from opening the file on."""
    with Journal.open(path) as journal:
        return [journal.best(workload, TARGET) for workload in workloads]


def look_up_json(folder: Path, modules: Sequence[tvm.IRModule]) -> list[Any]:
    """The same of a JSON database."""
    database = Database(folder).database
    return [database.get_top_k(database.commit_workload(module), 1) for module in modules]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def sizes(folder: Path) -> dict[str, Any]:
    """10,000 trials over 30 tasks."""
    trials = random_trials(10_000, 30, seed=1)
    path = folder / "size.journal"
    write_journal(path, trials)
    appended = path.stat().st_size
    compact(path, folder / "small.journal")
    database = Database(folder)
    database.commit(trials, most_traces=len(trials))
    compacted = (folder / "small.journal").stat().st_size
    return {
        "trials": len(trials),
        "tasks": 30,
        "json_bytes": database.size,
        "journal_bytes": appended,
        "compacted_bytes": compacted,
        "json_by_journal": round(database.size / appended, 1),
        "json_by_compacted": round(database.size / compacted, 1),
    }


def times(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Appending, and looking up 60 tasks."""
    trials = random_trials(count, 60, seed=2)
    workloads = list({trial.workload for trial in trials})
    path = folder / "times.journal"
    append_s = [write_journal(path, trials) for _ in range(rounds)]
    (folder / "json").mkdir()
    database = Database(folder / "json")
    database.commit(trials)
    modules = [product(Shape(**workload.shape)) for workload in workloads]
    # The database takes minutes: it is loaded once, in the middle.
    half = rounds // 2
    ours = [timed(lambda: look_up(path, workloads))[0] for _ in range(half)]
    json_s, _ = timed(lambda: look_up_json(folder / "json", modules))
    ours += [timed(lambda: look_up(path, workloads))[0] for _ in range(rounds - half)]
    found = look_up(path, workloads)
    best = {w: min(t.cost for t in trials if t.workload == w) for w in workloads}
    assert all(t is not None and t.cost == best[t.workload] for t in found)
    lookup_ms = statistics.median(ours) * 1e3
    return {
        "trials": count,
        "tasks": len(workloads),
        "append_s": [round(seconds, 3) for seconds in append_s],
        "lookup_ms": [round(seconds * 1e3, 3) for seconds in ours],
        "json_load_s": round(json_s, 2),
        "median_lookup_ms": round(lookup_ms, 3),
        "json_by_journal": round(json_s * 1e3 / lookup_ms),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        size = sizes(Path(name))
        speed = times(Path(name), arguments.trials, arguments.rounds)
    report(
        f"{size['trials']:,} trials over {size['tasks']} tasks",
        ["", "bytes", "JSON / this"],
        [
            ("MetaSchedule's JSON database", f"{size['json_bytes']:,}", "1"),
            ("journal, appended", f"{size['journal_bytes']:,}", size["json_by_journal"]),
            ("journal, compacted", f"{size['compacted_bytes']:,}", size["json_by_compacted"]),
        ],
    )
    report(
        f"{speed['trials']:,} trials over {speed['tasks']} tasks, medians",
        ["", "time"],
        [
            ("appending, one by one", f"{statistics.median(speed['append_s']):.2f} s"),
            ("best of all tasks, journal", f"{speed['median_lookup_ms']:.2f} ms"),
            ("the same, JSON database", f"{speed['json_load_s']:.1f} s"),
        ],
    )
    print(f"Wrote {write_json('journal', {'size': size, 'times': speed})}")


if __name__ == "__main__":
    main()
