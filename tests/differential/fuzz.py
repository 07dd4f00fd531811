"""Fuzz the compiler for some time, in several processes: ``make fuzz SECONDS=600``.

Hypothesis shrinks every new failure; it is written as an ONNX file, with its inputs and the
commands that reproduce it.  At the end the counts are printed, and written as JSON.  If the output
folder has counts of earlier runs, the run continues with the cells that none of them hit.
"""

from __future__ import annotations

import argparse
import glob
import json
import multiprocessing
import random
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from queue import Empty
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from compiling import KINDS, RIGHT  # noqa: E402
from configurations import COLUMNS, CUDA  # noqa: E402
from contexts import POSITIONS  # noqa: E402
from fuzzer import BATCH, OPSETS, Counts, Fuzzer, aims_for, batches, cells, next_option  # noqa: E402
from graphs import VALUES  # noqa: E402
from judging import Worker  # noqa: E402
from saving import load, save, signature  # noqa: E402
from support.cuda_host import ON_GPU  # noqa: E402
from support.drivers import processor_drivers  # noqa: E402

#: Batches that Hypothesis draws before the cells are chosen anew.
EXAMPLES = 12
#: Networks that are compiled as one if the host's compiler takes seconds for each.
SMALL_BATCH = 2
#: Folder of all failures as they were drawn; the smallest of each kind is next to it.
DRAWN = "drawn"
#: Files of the counts, and of the state that the next run continues from.
COUNTS, RUNS = "counts.json", "runs.json"


class Known:
    """Signatures of failures, as files that all processes share."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, text: str) -> bool:
        return (self.folder / f"{text[:150]}.json").exists()


def work(index: int, options: argparse.Namespace, before: Counts, queue: Any) -> None:
    """Draw and judge networks in one process, and send its counts."""
    warnings.simplefilter("ignore")
    drivers = processor_drivers(quick=not options.optimised)
    # A process has one driver; the seed decides which driver takes which columns.
    driver = drivers[(index + options.seed) % len(drivers)] if drivers else None
    worker = Worker(driver, optimised=options.optimised)
    rng = random.Random(f"{options.seed}-{index}")
    end = time.monotonic() + options.seconds
    columns = options.columns
    # Each process has its own columns, so that no two search for the same cells.
    columns = columns[index % len(columns) :: options.jobs] or columns
    hits = Counter(before.cells)
    turn = 0
    fuzzer = Fuzzer(worker, Known(options.output), options.shrink_seconds)
    parent = multiprocessing.parent_process()
    # Ending the run ends its processes: they need not be searched for.
    while time.monotonic() < end and (parent is None or parent.is_alive()):
        column = columns[turn % len(columns)]
        round_ = turn // len(columns)
        turn += 1
        opset = rng.choices(OPSETS, [6, 3, 2, 2, 2, 1, 1])[0]
        aims = aims_for(column, opset, hits, options.operators, options.positions)
        if not aims:
            continue
        rng.shuffle(aims)
        option = next_option(column, round_)
        size = SMALL_BATCH if column in CUDA and not ON_GPU else BATCH
        strategy = batches(aims[:200], column, opset, option, size, options.values)
        database = options.output / "examples"
        verdict = fuzzer.run(strategy, EXAMPLES, rng.getrandbits(32), database)
        if verdict is not None:
            stem = signature(verdict)[:150]
            command = save(verdict, options.output, stem)
            print(f"\n{verdict}\n{command}", flush=True)
        for failure in fuzzer.drawn:
            stem = f"{signature(failure)[:130]}-{failure.network.digest[:16]}"
            save(failure, options.output / DRAWN, stem)
        fuzzer.drawn.clear()
        hits.update(fuzzer.counts.cells)
        queue.put((index, fuzzer.counts, _cpu_seconds(worker)))
        fuzzer.counts = Counts()
    queue.put((index, None, _cpu_seconds(worker)))
    worker.close()


def _cpu_seconds(worker: Worker) -> float:
    """Return the CPU time of this process and of the one that compiles for it."""
    uses = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(use.ru_utime + use.ru_stime for use in uses)
    return own + worker.cpu_seconds()


def summary(counts: Counts, columns: list[str], cpu: float, wall: float) -> dict[str, Any]:
    """Return the results to write as JSON."""
    every = cells(columns)
    hit = {c: sum(counts.cells[cell] > 0 for cell in every if cell[2] == c) for c in columns}
    number = sum(counts.kinds.values())
    table: dict[str, dict[str, int]] = {}
    for operator, position, column in every:
        row = table.setdefault(operator, {})
        row[column] = row.get(column, 0) + (counts.cells[operator, position, column] > 0)
    return {
        "networks": number,
        **{kind: counts.kinds[kind] for kind in KINDS},
        "right_when_judged_again": dict(counts.again),
        "cells": len(every),
        "cells_hit": sum(hit.values()),
        "cells_hit_by_column": hit,
        "positions_hit_by_operator_and_column": table,
        "options": _nested(counts.options),
        "refusals": _nested(counts.reasons),
        "not_drawn": _nested(counts.invalid),
        "cpu_seconds": round(cpu, 1),
        "wall_seconds": round(wall, 1),
        "networks_per_cpu_second": round(number / cpu, 2) if cpu else None,
    }


def replace(file: Path, content: dict[str, Any]) -> None:
    """Write a file atomically: it may be read meanwhile."""
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    temporary.replace(file)


def _nested(counter: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (first, second), count in sorted(counter.items()):
        nested.setdefault(first, {})[second] = count
    return nested


def show(result: dict[str, Any]) -> None:
    """Print the counts."""
    print(f"\n{result['networks']} networks in {result['cpu_seconds']} CPU s, "
          f"{result['networks_per_cpu_second']} a CPU second")  # fmt: skip
    print(", ".join(f"{kind} {result[kind]}" for kind in KINDS))
    share = 100 * result["cells_hit"] / max(1, result["cells"])
    print(f"cells hit: {result['cells_hit']} of {result['cells']} ({share:.1f} %)")
    for column, count in result["cells_hit_by_column"].items():
        print(f"  {column:20} {count} of {result['cells'] // len(result['cells_hit_by_column'])}")
    reasons: Counter[str] = Counter()
    for found in result["refusals"].values():
        reasons.update(found)
    print("refusals:")
    for text, count in reasons.most_common(20):
        print(f"  {count:5} {text}")


def judge_again(folder: Path, *, optimised: bool) -> int:
    """Judge the failures in a folder with each driver, and remove the files of those that pass.

    A failure that passes now, because the oracle or the compiler was fixed, is counted under its
    new verdict.
    """
    drivers = processor_drivers(quick=not optimised) or [None]
    workers = [Worker(driver, optimised=optimised) for driver in drivers]
    failed = 0
    passed: Counter[tuple[str, str]] = Counter()
    for inputs in sorted(folder.rglob("*.npz")):
        said = inputs.with_suffix(".json")
        network, configuration = load(said)
        verdicts = [v for w in workers for v in w.judge([network], configuration)]
        worst = next((v for v in verdicts if v.failed), None)
        print(worst or f"{inputs.stem}: {verdicts[0].kind}", flush=True)
        failed += worst is not None
        if worst is not None:
            continue
        if inputs.parent.name == DRAWN:
            passed[json.loads(said.read_text())["kind"], verdicts[0].kind] += 1
        for file in inputs.parent.glob(f"{glob.escape(inputs.stem)}.*"):
            file.unlink()
    for worker in workers:
        worker.close()
    kept = folder / RUNS
    if passed and kept.exists():
        state = json.loads(kept.read_text())
        counts = Counts.from_json(state["counts"])
        for (before, now), number in passed.items():
            counts.kinds[before] -= number
            counts.kinds[now] += number
            counts.again[before] += number * (now == RIGHT)
        write_counts(folder, counts, state["columns"], state["cpu_seconds"], state["wall_seconds"])
    return failed


def write_counts(
    folder: Path, counts: Counts, columns: list[str], cpu: float, wall: float
) -> dict[str, Any]:
    """Write the counts, and the state that another run continues from."""
    result = summary(counts, columns, cpu, wall)
    replace(folder / COUNTS, result)
    times = {name: result[name] for name in ("cpu_seconds", "wall_seconds")}
    replace(folder / RUNS, {"counts": counts.as_json(), "columns": columns, **times})
    return result


def publish(folder: Path) -> None:
    """Write the counts to ``benchmarks/results/fuzz.json``, with the machine and versions."""
    sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
    from common import write_json

    counts = json.loads((folder / COUNTS).read_text())
    # Refusals name files and devices of this machine.
    del counts["refusals"]
    print(f"written: {write_json('fuzz', counts)}")


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzzer; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--shrink-seconds", type=float, default=45)
    parser.add_argument(
        "--columns", nargs="+", default=list(COLUMNS), choices=[*COLUMNS, *CUDA], metavar="NAME",
        help=f"of {', '.join(COLUMNS)}; also {', '.join(CUDA)}",
    )  # fmt: skip
    parser.add_argument("--operators", nargs="*", default=[])
    parser.add_argument("--positions", nargs="*", default=[], choices=POSITIONS)
    parser.add_argument("--values", nargs="*", default=VALUES, choices=VALUES)
    parser.add_argument("--again", action="store_true", help="judge what failed before, alone")
    parser.add_argument("--optimised", action="store_true", help="machine code, by all compilers")
    parser.add_argument("--publish", action="store_true", help="write the counts as results")
    options = parser.parse_args(arguments)
    if options.again or options.publish:
        failed = judge_again(options.output, optimised=options.optimised) if options.again else 0
        if options.publish:
            publish(options.output)
        return int(failed > 0)
    options.output.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    columns = options.columns
    kept = options.output / RUNS
    counts, cpu_before, wall_before = Counts(), 0.0, 0.0
    if kept.exists():
        state = json.loads(kept.read_text())
        counts = Counts.from_json(state["counts"])
        cpu_before, wall_before = state["cpu_seconds"], state["wall_seconds"]
        columns = [*dict.fromkeys([*state["columns"], *columns])]
    # They are not daemons, because they have child processes.
    processes = [
        context.Process(target=work, args=(i, options, counts, queue)) for i in range(options.jobs)
    ]
    started = time.monotonic()
    for process in processes:
        process.start()
    cpu, left = dict.fromkeys(range(options.jobs), 0.0), options.jobs
    result: dict[str, Any] = {}
    while left:
        try:
            index, part, cpu_seconds = queue.get(timeout=5)
        except Empty:
            if not any(process.is_alive() for process in processes):
                break
            continue
        cpu[index] = cpu_seconds
        left -= part is None
        if part is not None:
            counts.merge(part)
        wall = wall_before + time.monotonic() - started
        result = write_counts(options.output, counts, columns, cpu_before + sum(cpu.values()), wall)
    show(result)
    print(f"counts: {options.output / COUNTS}")
    return int(any(result[kind] for kind in KINDS if kind not in ("right", "refused", "unjudged")))


if __name__ == "__main__":
    sys.exit(main())
