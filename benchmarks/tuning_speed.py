"""Speed of tuning: our build pool and runner against MetaSchedule's, and what both find.

The same task, search space, search and device; MetaSchedule's ``LocalBuilder`` and ``LocalRunner``
start a process for each trial.  Kernels that both found are timed in turn at the end.

    python benchmarks/tuning_speed.py [--trials 64] [--seconds 240]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tvm
from common import opencl_device, report, write_json
from tvm.s_tir import meta_schedule as ms

from tvmflow.models import make
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.builder import Builder, text_of
from tvmflow.tuning.journal import Journal
from tvmflow.tuning.measure import Config
from tvmflow.tuning.runner import LocalRunner
from tvmflow.tuning.search import Search
from tvmflow.tuning.session import Network, searches
from tvmflow.tuning.tasks import Task
from tvmflow.tuning.timing import Timing
from tvmflow.tuning.tuner import Tuner

BATCH = 8


def pick_task() -> Task:
    """The task of MobileNetV2 with the most arithmetic."""
    tasks = Network(make("mobilenet_v2"), "opencl").tasks()
    return max(tasks, key=lambda task: task.calls * task.operations)


def ours(task: Task, trials: int, seconds: float, seed: int) -> dict[str, Any]:
    """Our pool and runner; the clock starts with the heuristic's trial."""
    ends: list[float] = []
    builder = Builder(device_index=0)
    runner = LocalRunner("opencl", quiet=lambda: builder.quiet, programs=builder.programs)
    try:
        with tempfile.TemporaryDirectory() as folder, Journal.open(Path(folder, "j"), "a") as book:
            (progress,) = Tuner(
                *([task], builder, runner, book, Budget(trials, seconds)),
                searches("evolutionary", seed, trials),
                watch=lambda *_: ends.append(time.perf_counter()),
            ).run()
    finally:
        runner.close()
        builder.close()
    return {**_speed(ends[0], ends[-1], len(ends) - 1), "knobs": progress.best_knobs}


def _speed(began: float, ended: float, trials: int) -> dict[str, Any]:
    spent = ended - began
    return {
        "trials": trials,
        "seconds": round(spent, 2),
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
    started = time.perf_counter()
    while batch and time.perf_counter() - started < seconds:
        inputs = [
            ms.builder.BuilderInput(
                module.with_attr("tvmflow.knobs", json.dumps([text_of(task), knobs])), target
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
            started = time.perf_counter()
        count += len(batch)
        batch = search.propose(min(BATCH, trials - count)) if count < trials else []
    speed = _speed(started, time.perf_counter(), count - 1)
    return {**speed, "knobs": dict(best_knobs)}


def build_with_knobs(module: tvm.IRModule, target: Any, _params: Any) -> tvm.runtime.Module:
    """Called in MetaSchedule's build process: our schedule and our lowering."""
    from tvmflow.schedules import schedule_function
    from tvmflow.target import resolve
    from tvmflow.tuning.building import function_of, lower

    text, knobs = json.loads(str(module.attrs["tvmflow.knobs"]))
    spec = resolve("opencl")
    with spec.tvm_target:
        scheduled = schedule_function(function_of(text), spec, knobs)
        return lower(scheduled.schedule.mod["main"], spec)


def in_turn(task: Task, found: dict[str, dict[str, Any]], rounds: int = 9) -> dict[str, float]:
    """Median costs of kernels, timed in turn by one runner, in microseconds."""
    builder = Builder(1)
    config = Config(Timing(rounds=1))
    runner = LocalRunner("opencl", config=config, quiet=lambda: builder.quiet)
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


def main() -> None:
    """Tune the same task twice, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=240, help="for each of the two")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = opencl_device()
    task = pick_task()
    arguments = task, options.trials, options.seconds, options.seed
    results = {}
    for name, tune in (("tvmflow", ours), ("metaschedule", theirs)):
        # Both propose the same at first: one must not find in PoCL's cache what the other compiled.
        with tempfile.TemporaryDirectory() as folder:
            os.environ["POCL_CACHE_DIR"] = folder
            results[name] = tune(*arguments)
    knobs = {name: result["knobs"] for name, result in results.items()}
    costs = in_turn(task, {"heuristic": task.heuristic, **knobs})
    speed = results["tvmflow"]["per_second"] / results["metaschedule"]["per_second"]
    quality = costs["metaschedule"] / costs["tvmflow"]
    report(
        f"Tuning {task.name} ({task.family.NAME}) on {device['name']}: {speed:.1f} times the "
        f"trials a second, {quality:.3f} times as fast a kernel",
        ("builder and runner", "trials", "seconds", "trials/s", "best, us", "heuristic, us"),
        [
            (n, r["trials"], r["seconds"], r["per_second"], costs[n], costs["heuristic"])
            for n, r in results.items()
        ],
    )
    content = {
        "device": device,
        "task": {"family": task.family.NAME, "shape": dict(task.workload.shape)},
        "speed_ratio": round(speed, 2),
        "quality_ratio": round(quality, 4),
        "microseconds": costs,
        "results": results,
    }
    print(f"written: {write_json('tuning_speed', content)}")


if __name__ == "__main__":
    main()
