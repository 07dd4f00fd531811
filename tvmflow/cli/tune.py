"""``tvmflow tasks`` and ``tvmflow tune``: what there is to tune, and tuning it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .formats import ms_text, table
from .options import (
    Accumulate,
    Debug,
    DeviceIndex,
    DeviceName,
    Dtype,
    InputShapes,
    Json,
    ModelFile,
    Quiet,
    Storage,
    TargetName,
    Verbose,
    parse_shapes,
)
from .session import command, err_console, note, note_file, out_console, print_json, state

if TYPE_CHECKING:
    from rich.table import Table

    from ..tuning.progress import Progress
    from ..tuning.session import Tuned

TASKS_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tasks mobilenet_v2.onnx
  tvmflow tasks mobilenet_v2.onnx --device adreno --storage texture
"""
TUNE_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal
      32 trials for each task on this machine's OpenCL device; the same command goes on
      after Ctrl-C
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal --seconds 900 --report tuned.html
  tvmflow tune net.onnx --journal new.journal --relatives old.journal
      beginning with what was best on another device of the kind
  tvmflow tune net.onnx --device adreno --tracker 10.0.0.2:9190 --key pixel8
      --host aarch64-linux-android24 --journal pixel8.journal
      on all devices of a farm that have this key
"""


@command
def list_tasks(
    model: ModelFile,
    target: TargetName = "opencl",
    device: DeviceName = "auto",
    shape: InputShapes = None,
    storage: Storage = "auto",
    dtype: Dtype = "fp32",
    accumulate: Accumulate = "fp32",
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List what there is to tune in a network: its distinct primary functions."""
    from ..tuning.session import Network

    network = Network(
        *(model, target, device, None, parse_shapes(shape or []) or None),
        *(storage, dtype, accumulate),
    )
    tasks = network.tasks()
    everything = sum(task.calls * task.operations for task in tasks)
    described: list[dict[str, Any]] = [
        {
            "name": task.name,
            "functions": list(task.names),
            "family": task.family.NAME,
            "shape": dict(task.workload.shape),
            "storage": task.workload.storage,
            "dtype": task.workload.dtype,
            "calls": task.calls,
            "operations": task.operations,
            "share": task.calls * task.operations / everything,
            "candidates": math.prod(map(len, task.space.values())),
        }
        for task in tasks
    ]
    if as_json:
        print_json(described)
        return
    rows = [
        (
            *(d["name"], d["family"], d["storage"], str(d["calls"])),
            *(f"{d['operations'] / 1e6:.2f} M", f"{d['share']:.1%}", str(d["candidates"])),
        )
        for d in sorted(described, key=lambda d: -d["share"])
    ]
    columns = ["task", "family", "storage", ">calls", ">loop steps", ">share", ">candidates"]
    out_console().print(table(columns, rows))


@command
def tune_model(
    model: ModelFile,
    journal: Annotated[
        Path,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="The journal that gets every trial. Tuning goes on where it left off.",
        ),
    ],
    target: TargetName = "opencl",
    device: DeviceName = "auto",
    shape: InputShapes = None,
    storage: Storage = "auto",
    dtype: Dtype = "fp32",
    accumulate: Accumulate = "fp32",
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, help="Trials of each task.")
    ] = 32,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0,
            help="Stop after so long, the heuristics' trials aside.",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            metavar="N",
            min=1,
            help="Leave a task when its last N trials brought nothing.",
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            metavar="evolutionary|random|grid|neighbourhood",
            help="How knobs are proposed: evolved with a learnt cost model, at random, in even "
            "steps through the space, or from the heuristic's outwards.",
            autocompletion=lambda: ["evolutionary", "random", "grid", "neighbourhood"],
        ),
    ] = "evolutionary",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", min=0, help="Makes proposals repeatable, as far as costs are."
        ),
    ] = 0,
    relatives: Annotated[
        list[Path] | None,
        typer.Option(
            "--relatives",
            metavar="FILE",
            help="Journal of another device of the kind, whose best knobs are tried first; "
            "repeatable.",
        ),
    ] = None,
    cool_down: Annotated[
        float,
        typer.Option(
            "--cool-down", metavar="S", min=0, help="Pause before each trial, for hot devices."
        ),
    ] = 0.0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Build processes. Default: one a core."),
    ] = None,
    device_index: DeviceIndex = 0,
    tracker: Annotated[
        str | None,
        typer.Option(
            "--tracker",
            metavar="HOST:PORT",
            help="Measure on all devices that this tracker has for --key.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Of the devices at the tracker.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="TRIPLE",
            help="The machine that the devices' servers run on, such as aarch64-linux-gnu. "
            "Default: this one.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="OUT.html",
            help="Write a page with the course of each task and the shares of time.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Measure the whole network before and after, at the end.",
        ),
    ] = True,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Find better knobs for a network's primary functions by measuring them.

    Algorithms of convolutions, and with --storage auto the storage, are settled so, too.
    """
    from ..tuning.budget import Budget
    from ..tuning.measure import Config
    from ..tuning.report import write_report
    from ..tuning.session import Farm, Network, Options, tune

    if (tracker is None) != (key is None):
        raise typer.BadParameter("--tracker and --key go together.")
    farm = Farm(tracker, key) if tracker is not None and key is not None else None
    network = Network(
        *(model, target, device, host, parse_shapes(shape or []) or None),
        *(storage, dtype, accumulate),
    )
    options = Options(
        Budget(trials, seconds, patience),
        *(search, seed, workers, device_index),
        measuring=Config(cool_down_s=cool_down),
        compare=compare,
    )
    with _watching(trials, seconds) as watch:
        tuned = tune(network, journal, options, relatives=relatives or (), farm=farm, watch=watch)
    if report is not None:
        write_report(report, model.name, tuned)
        note_file(report)
    if as_json:
        print_json(_describe(tuned))
        return
    _summarize(tuned, journal)


@contextmanager
def _watching(
    trials: int, seconds: float | None
) -> Iterator[Callable[[Sequence[Progress]], None] | None]:
    """Show a live table where a person watches."""
    console = err_console()
    if state.quiet or not console.is_terminal:
        yield None
        return
    from rich.live import Live

    began = time.monotonic()
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch(progress: Sequence[Progress]) -> None:
            content = progress_table(progress, console.height - 5)
            spent = time.monotonic() - began
            done = sum(p.trials for p in progress)
            whole = sum(trials if p.task.is_tunable else 1 for p in progress)
            left = spent / max(done, 1) * max(0, whole - done)
            if seconds is not None:
                left = min(left, max(0.0, seconds - spent))
            content.caption = (
                f"{done} of at most {whole} trials, {done / spent:.1f} a second, "
                f"about {left:.0f} s left; Ctrl-C stops, the same command goes on"
            )
            live.update(content)

        yield watch


def progress_table(progress: Sequence[Progress], most: int | None = None) -> Table:
    """The tasks that take most of the network's time, or all."""
    known = [p for p in progress if math.isfinite(p.best)]
    total = sum(p.time for p in known)
    rows = [
        (
            *(p.task.name, p.task.family.NAME, f"{p.trials}", f"{p.failures}"),
            *(f"{p.heuristic * 1e6:.1f}", f"{p.best * 1e6:.1f}"),
            *(f"{p.speedup:.2f}", f"{p.time / total:.1%}"),
        )
        for p in sorted(known, key=lambda p: -p.time)
    ]
    columns = [
        *("task", "family", ">trials", ">failed", ">heuristic, µs", ">best, µs"),
        *(">speed-up", ">share"),
    ]
    return table(columns, rows[:most])


def _describe(tuned: Tuned) -> dict[str, Any]:
    comparison = tuned.comparison
    return {
        "seconds": tuned.seconds,
        "trials": sum(p.trials for p in tuned.progress),
        "before_ms": comparison.before_ms if comparison else None,
        "after_ms": comparison.after_ms if comparison else None,
        "is_slower": comparison.is_slower if comparison else None,
        "settled": [
            {
                "what": s.what,
                "names": list(s.names),
                "cost_model": s.default,
                "choice": s.choice,
                "costs_s": {o: c if math.isfinite(c) else None for o, c in s.costs.items()},
            }
            for s in tuned.settled
        ],
        "tasks": [
            {
                "functions": list(p.task.names),
                "family": p.task.family.NAME,
                "calls": p.task.calls,
                "trials": p.trials,
                "failures": p.failures,
                "heuristic_s": p.heuristic if math.isfinite(p.heuristic) else None,
                "best_s": p.best if math.isfinite(p.best) else None,
                "knobs": p.best_knobs,
            }
            for p in tuned.progress
        ],
    }


def _summarize(tuned: Tuned, journal: Path) -> None:
    out_console().print(progress_table(tuned.progress))
    if tuned.settled:
        columns = ["decision", "of", "cost model", "measured", "cost"]
        out_console().print(table(columns, [s.row for s in tuned.settled]))
    trials = sum(p.trials for p in tuned.progress)
    note(("Tuned", "green"), f" in {tuned.seconds:.0f} s; {journal} has {trials} trials of it")
    if tuned.comparison is not None:
        before, after = tuned.comparison.before_ms, tuned.comparison.after_ms
        ratio = f"{before / after:.2f} times as fast"
        note(("Network", "green"), f" before {ms_text(before)}, after {ms_text(after)}: {ratio}")
