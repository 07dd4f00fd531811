"""A network before and after tuning, side by side, and how near the heuristics are to a sweep.

    python benchmarks/tuned_network.py [--model mobilenet_v2] [--trials 32] [--sweep 24]

First 32 trials a task, then the whole network with and without the knobs found, in turn.  Then
a sweep of more candidates for the tasks that take most of the time, whose best ones and the
heuristics are timed in turn again.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from common import opencl_device, report, write_json

from tvmflow.models import make
from tvmflow.tuning.building import Builder
from tvmflow.tuning.measure import Config, LocalRunner
from tvmflow.tuning.session import Network, Options, tune
from tvmflow.tuning.timing import StopRule
from tvmflow.tuning.tuner import Budget, Progress


def in_turn(progress: list[Progress], rounds: int = 7) -> list[dict[str, Any]]:
    """Each task's heuristic and its best, timed in turn, so that luck does not count."""
    builder = Builder(1)
    config = Config(StopRule(rounds=1))
    runner = LocalRunner("opencl", config=config, exclusive_cpu=lambda: builder.exclusive_cpu)
    rows = []
    try:
        for found in progress:
            task = found.task
            case = builder.make_case(task).result()
            built = [builder.submit(task, k).result() for k in (task.heuristic, found.best_knobs)]
            costs: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for candidate, values in zip(built, costs, strict=True):
                    values.append(runner.submit(candidate, case).result().cost)
            heuristic, best = (statistics.median(values) * 1e6 for values in costs)
            rows.append(
                {
                    "task": task.name,
                    "family": task.family.NAME,
                    "calls": task.calls,
                    "trials": found.trials,
                    "heuristic_us": round(heuristic, 2),
                    "best_us": round(best, 2),
                    "of_best": round(min(1.0, best / heuristic), 3),
                    "knobs": found.best_knobs,
                }
            )
    finally:
        runner.close()
        builder.close()
    return rows


def main() -> None:
    """Tune, compare, sweep, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=400, help="of tuning, at most")
    parser.add_argument("--sweep", type=int, default=96, help="trials of the sweep, those included")
    parser.add_argument("--sweep-seconds", type=float, default=200, help="of the sweep, at most")
    options = parser.parse_args()
    device = opencl_device()
    network = Network(make(options.model))
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "tuned.journal")
        tuned = tune(network, journal, Options(Budget(options.trials, options.seconds)))
        assert tuned.comparison is not None
        more = Options(Budget(options.sweep, options.sweep_seconds), search="random", compare=False)
        # From the same journal: the sweep goes on where tuning ended.
        swept = tune(network, journal, more)
    known = [p for p in swept.progress if math.isfinite(p.best) and p.task.is_tunable]
    known.sort(key=lambda p: -p.time)
    rows = in_turn(known)
    total = sum(row["calls"] * row["heuristic_us"] for row in rows)
    reached = sum(row["calls"] * row["heuristic_us"] * row["of_best"] for row in rows)
    before, after = tuned.comparison.before_ms, tuned.comparison.after_ms
    report(
        f"{options.model} on {device['name']}: {before:.3f} ms before, {after:.3f} ms after "
        f"{options.trials} trials a task ({before / after:.2f} times as fast); its heuristics "
        f"reach {reached / total:.3f} of the best of up to {options.sweep} trials",
        ("task", "family", "calls", "trials", "heuristic, us", "best, us", "of the best"),
        [
            (r["task"], r["family"], r["calls"], r["trials"], r["heuristic_us"], r["best_us"],
             r["of_best"])
            for r in rows
        ],
    )  # fmt: skip
    content = {
        "device": device,
        "model": options.model,
        "trials_a_task": options.trials,
        "before_ms": round(before, 3),
        "after_ms": round(after, 3),
        "speedup": round(before / after, 3),
        "tuning_seconds": round(tuned.seconds, 1),
        "sweep_trials": sum(r["trials"] for r in rows),
        "heuristics_of_best": round(reached / total, 3),
        "tasks": rows,
    }
    print(f"written: {write_json('tuned_network', content)}")


if __name__ == "__main__":
    main()
