"""Speed of tuning: our build pool and runner against MetaSchedule's, and what both find.

Of each family in ``FAMILIES`` the task with the most arithmetic is tuned twice, with the same
search space, search and device.  MetaSchedule's ``LocalBuilder`` starts processes for each batch of
candidates, and its ``LocalRunner`` has the driver compile them one after the other.  Each has
kernel caches of its own that are empty at first.  Kernels that both found are timed in turn.

    python benchmarks/tuning_speed.py [--trials 48] [--seconds 120] [--only conv2d_1x1 ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm
from common import opencl_device, report, write_json
from tvm.s_tir import meta_schedule as ms

from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.choices import DIRECT
from tvmflow.journal.journal import Journal
from tvmflow.models import make
from tvmflow.tuning.building import Builder
from tvmflow.tuning.measure import Config, LocalRunner
from tvmflow.tuning.search import Search, searches
from tvmflow.tuning.session import Network
from tvmflow.tuning.tasks import Task
from tvmflow.tuning.timing import StopRule
from tvmflow.tuning.tuner import Budget, Tuner

BATCH = 8
#: Families, and the network that their tasks are of.
FAMILIES = {
    "conv2d_1x1": "mobilenet_v2",
    "depthwise": "mobilenet_v2",
    "conv2d": "resnet50",
    "dense": "mobilenet_v2",
    "pooling": "resnet50",
}


def tasks(families: Sequence[str]) -> Iterator[Task]:
    """Of each family the task with the most arithmetic, all convolutions computed directly."""
    networks: dict[str, list[Task]] = {}
    for family in families:
        name = FAMILIES[family]
        if name not in networks:
            model = make(name)
            direct = {n.name: DIRECT for n in model.graph.node if n.op_type == "Conv"}
            networks[name] = Network(model, CompileOptions(algorithms=direct)).tasks()
        found = (task for task in networks[name] if family == task.family.NAME)
        yield max(found, key=lambda task: task.calls * task.operations)


def ours(task: Task, trials: int, seconds: float, seed: int) -> dict[str, Any]:
    """Our pool and runner; the clock starts with the heuristic's trial."""
    ends: list[tuple[float, float]] = []
    builder = Builder(device_index=0)
    runner = LocalRunner(
        "opencl", exclusive_cpu=lambda: builder.exclusive_cpu, programs=builder.programs
    )
    try:
        with tempfile.TemporaryDirectory() as folder, Journal.open(Path(folder, "j"), "a") as book:
            (progress,) = Tuner(
                *([task], builder, runner, book, Budget(trials, seconds)),
                searches("evolutionary", seed, trials),
                watch=lambda *_: ends.append(now()),
            ).run()
    finally:
        runner.close()
        builder.close()
    return {**_speed(ends[0], ends[-1], len(ends) - 1), "knobs": progress.best_knobs}


def now() -> tuple[float, float]:
    """Seconds of the clock, and of all cores for this process, its children and those they ended.

    Children run in sessions of their own: they are found by their parents.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    spent = sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), spent


def _speed(began: tuple[float, float], ended: tuple[float, float], trials: int) -> dict[str, Any]:
    spent, busy = (b - a for a, b in zip(began, ended, strict=True))
    return {
        "trials": trials,
        "seconds": round(spent, 2),
        "cpu_seconds": round(busy, 2),
        "per_second": round(trials / spent, 3),
    }


def theirs(task: Task, trials: int, seconds: float, seed: int) -> dict[str, Any]:
    """MetaSchedule's builder and runner, fed by the same search."""
    search: Search = searches("evolutionary", seed, trials)(task)
    search.note(task.heuristic)
    target = task.target.tvm_target
    module = tvm.IRModule({"main": task.function.with_attr("global_symbol", "main")})
    builder = ms.builder.LocalBuilder(f_build=build_with_knobs)
    runner = ms.runner.LocalRunner(
        evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=5, min_repeat_ms=1)
    )
    arguments = ms.arg_info.ArgInfo.from_prim_func(task.function)
    best, best_knobs, count = float("inf"), task.heuristic, 0
    batch: list[dict[str, Any]] = [task.heuristic]
    started = now()
    while batch and time.perf_counter() - started[0] < seconds:
        inputs = [
            ms.builder.BuilderInput(
                module.with_attr("tvmflow.compiler.knobs", json.dumps([task.text, knobs])),
                target,
            )
            for knobs in batch
        ]
        built = builder.build(inputs)
        futures = runner.run(
            [
                ms.runner.RunnerInput(result.artifact_path, "opencl", arguments)
                for result in built
                if result.artifact_path is not None
            ]
        )
        results = iter([future.result() for future in futures])
        trials_done = []
        for knobs, result in zip(batch, built, strict=True):
            seen = next(results) if result.artifact_path is not None else None
            costs = [float(c) for c in (seen.run_secs or ())] if seen is not None else []
            cost = statistics.median(costs) if costs else float("inf")
            trials_done.append((knobs, cost))
            if cost < best:
                best, best_knobs = cost, knobs
        search.learn(trials_done)
        if count == 0:
            # As ours: the heuristic's trial, and the first processes, come before.
            started = now()
        count += len(batch)
        batch = search.propose(min(BATCH, trials - count)) if count < trials else []
    speed = _speed(started, now(), count - 1)
    return {**speed, "knobs": dict(best_knobs)}


def build_with_knobs(module: tvm.IRModule, target: Any, _params: Any) -> tvm.runtime.Module:
    """Called in MetaSchedule's build process: our schedule and our lowering."""
    from tvmflow.devices.target import resolve
    from tvmflow.schedules import schedule_function
    from tvmflow.tuning.building import function_of, lower

    text, knobs = json.loads(str(module.attrs["tvmflow.compiler.knobs"]))
    spec = resolve("opencl")
    with spec.tvm_target:
        scheduled = schedule_function(function_of(text), spec, knobs)
        return lower(scheduled.schedule.mod["main"], spec)


def in_turn(task: Task, found: dict[str, dict[str, Any]], rounds: int = 9) -> dict[str, float]:
    """Median costs of kernels, timed in turn by one runner, in microseconds."""
    builder = Builder(1)
    config = Config(StopRule(rounds=1))
    runner = LocalRunner("opencl", config=config, exclusive_cpu=lambda: builder.exclusive_cpu)
    try:
        case = builder.make_case(task).result()
        built = {name: builder.submit(task, knobs).result() for name, knobs in found.items()}
        costs: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, candidate in built.items():
                costs[name].append(runner.submit(candidate, case).result().cost)
    finally:
        runner.close()
        builder.close()
    return {name: round(statistics.median(values) * 1e6, 2) for name, values in costs.items()}


def compare(task: Task, trials: int, seconds: float, seed: int) -> dict[str, Any]:
    """Tune a task twice."""
    results = {}
    for name, tune in (("tvmflow", ours), ("metaschedule", theirs)):
        # Both propose the same at first: neither may find what the other, or an earlier run,
        # compiled.
        with tempfile.TemporaryDirectory() as folder:
            os.environ["POCL_CACHE_DIR"] = os.environ["TVMFLOW_CACHE_DIR"] = folder
            results[name] = tune(task, trials, seconds, seed)
    knobs = {name: result["knobs"] for name, result in results.items()}
    costs = in_turn(task, {"heuristic": task.heuristic, **knobs})
    speed = results["tvmflow"]["per_second"] / results["metaschedule"]["per_second"]
    quality = costs["metaschedule"] / costs["tvmflow"]
    return {
        "family": task.family.NAME,
        "shape": dict(task.workload.shape),
        "speed_ratio": round(speed, 2),
        "quality_ratio": round(quality, 4),
        "microseconds": costs,
        "results": results,
    }


def main() -> None:
    """Tune the same tasks twice, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=120, help="for each of the two")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="families; nothing is written")
    options = parser.parse_args()
    device = opencl_device()
    rows = []
    for task in tasks(options.only or list(FAMILIES)):
        rows.append(compare(task, options.trials, options.seconds, options.seed))
        found = {name: rows[-1][name] for name in ("family", "speed_ratio", "quality_ratio")}
        print(found, flush=True)
    speed, quality = (
        statistics.geometric_mean(row[name] for row in rows)
        for name in ("speed_ratio", "quality_ratio")
    )
    report(
        f"Tuning on {device['name']}: {speed:.1f} times MetaSchedule's trials a second and "
        f"{quality:.3f} times as fast kernels (geometric means)",
        ("family", "builder and runner", "trials", "seconds", "CPU s", "trials/s", "best, us",
         "heuristic, us", "times"),
        [
            (row["family"], n, r["trials"], r["seconds"], r["cpu_seconds"], r["per_second"],
             row["microseconds"][n], row["microseconds"]["heuristic"],
             row["speed_ratio"] if n == "tvmflow" else "")
            for row in rows
            for n, r in row["results"].items()
        ],
    )  # fmt: skip
    content = {
        "device": device,
        "speed_ratio": round(speed, 2),
        "quality_ratio": round(quality, 4),
        "tasks": rows,
    }
    if not options.only:
        print(f"written: {write_json('tuning_speed', content)}")


if __name__ == "__main__":
    main()
