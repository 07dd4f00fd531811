"""``tvmflow tasks`` and ``tvmflow tune``: list a network's tasks, and measure knobs for them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..compiler.options import CompileOptions
from .options import TUNED, farm_of, load_operators, with_compile_flags, words
from .output import (
    err_console,
    note,
    note_file,
    out_console,
    print_json,
    print_table,
    state,
    table,
    without_spare,
)
from .session import command
from .text import ms_text

if TYPE_CHECKING:
    from rich.table import Table

    from ..runtime.json_types import JsonObject
    from ..tuning.measure import Standing
    from ..tuning.session import Tuned
    from ..tuning.tuner import Progress, Watch

TASKS_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tasks mobilenet_v2.onnx
  tvmflow tasks mobilenet_v2.onnx --device adreno --storage texture
"""


TUNE_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal
      32 trials for each task on this machine's OpenCL device; the same command continues
      after Ctrl-C
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal --seconds 900 --report tuned.html
  tvmflow tune net.onnx --journal new.journal --relatives old.journal
      starting with the best knobs of another device of the same kind
  tvmflow tune net.onnx --tracker 10.0.0.2:9190 --key pixel8 --secret-file farm.secret
      --journal pixel8.journal
      on all phones of a farm that have this key
  tvmflow tune net.onnx --on adb --journal phone.journal
      on the attached phone, for what its driver reports; no NDK and no farm are needed
  tvmflow tune net.onnx --device adreno740 --offline --journal predicted.journal
      by predicted times, for a phone that is not connected
"""


@command
@with_compile_flags(*TUNED)
def list_tasks(model: Path, options: CompileOptions, ops: list[Path] | None = None) -> None:
    """List the tasks for tuning a network: its distinct primary functions."""
    from ..tuning.session import Network

    load_operators(ops)
    tasks = Network(model, options).tasks()
    everything = sum(task.calls * task.operations for task in tasks)
    described: list[JsonObject] = [
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
    if print_json(described):
        return
    rows = [
        (
            *(d[fact] for fact in ("name", "family", "storage", "calls")),
            *(f"{d['operations'] / 1e6:.2f} M", f"{d['share']:.1%}", d["candidates"]),
        )
        for d in sorted(described, key=lambda d: -d["share"])
    ]
    columns = ["task", "family", "storage", ">calls", ">loop steps", ">share", ">candidates"]
    print_table(None, columns, rows)


@command
@with_compile_flags(*TUNED, "host")
def tune_model(
    model: Path,
    journal: Annotated[
        Path, "FILE", "Journal for all trials. Tuning continues after its last trial."
    ],
    options: CompileOptions,
    trials: Annotated[int, typer.Option(min=1), "N", "Trials of each task."] = 32,
    seconds: Annotated[
        float | None, typer.Option(min=0), "S", "Time limit, without the heuristics' trials."
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1), "N", "Leave a task after N trials without an improvement."
    ] = None,
    search: Annotated[
        str,
        words("evolutionary", "random", "grid", "neighbourhood"),
        "How knobs are proposed: evolved with a learnt cost model, at random, in even steps "
        "through the space, or outwards from the heuristic's knobs.",
    ] = "evolutionary",
    seed: Annotated[
        int, typer.Option(min=0), "N", "Seed of proposals, repeatable as far as costs are."
    ] = 0,
    relatives: Annotated[
        list[Path] | None,
        "FILE",
        "Journal of another device of the same kind, whose best knobs are tried first; repeatable.",
    ] = None,
    cool_down: Annotated[
        float, typer.Option(min=0), "S", "Pause before each trial, for hot devices."
    ] = 0.0,
    workers: Annotated[
        int | None, typer.Option(min=1), "N", "Build processes. Default: one a core."
    ] = None,
    build_on: Annotated[
        str | None,
        "tcp://HOST:PORT",
        "Build candidates on the workers of this Dask scheduler (docs/tuning.md).",
    ] = None,
    device_index: int = 0,
    tracker: str | None = None,
    key: str | None = None,
    secret_file: Path | None = None,
    on: str | None = None,
    report: Annotated[
        Path | None, "OUT.html", "Write a page with each task's progress and share of time."
    ] = None,
    compare: Annotated[bool, "Measure the whole network before and after, at the end."] = True,
    offline: Annotated[
        bool,
        "Measure nothing: choose knobs of convolutions by a model of the GPU that --device names, "
        "and by the machine code of the best candidates.",
    ] = False,
    ops: list[Path] | None = None,
) -> None:
    """Find better knobs for a network's primary functions by measuring them.

    Tuning also decides on algorithms of convolutions and, with --storage auto, on the storage.
    """
    if offline:
        load_operators(ops)
        _tune_offline(model, journal, options, seed)
        return
    from ..farm.runner import Farm
    from ..module.files import TEXT, check_writable
    from ..runtime.load import is_disturbed
    from ..tuning.measure import Config
    from ..tuning.report import write_report
    from ..tuning.session import Devices, Network, Options, tune
    from ..tuning.tuner import Budget

    if on is not None and (tracker or key):
        raise typer.BadParameter("--tracker and --key do not go with --on.")
    lent = farm_of(tracker, key, None if on else secret_file)
    if report is not None:
        check_writable(report, TEXT)
    load_operators(ops)
    with ExitStack() as stack:
        farm: Devices | None = Farm(*lent) if lent else None
        if farm is not None and options.device == "auto" and farm.builds_kernels:
            options = replace(options, device=_reported_by(f"farm:{tracker}/{key}", secret_file))
        if on is not None:
            from ..compiler.remote import device_file_of
            from ..tuning.remote import RemoteDevices

            farm = there = RemoteDevices.at(on, secret_file, device_index)
            stack.enter_context(there.remote)
            if options.device == "auto":
                options = replace(options, device=str(device_file_of(there.remote, device_index)))
        network = Network(model, options)
        how = Options(
            budget=Budget(trials, seconds, patience),
            search=search,
            seed=seed,
            workers=workers,
            build_on=build_on,
            device_index=device_index,
            measuring=Config(cool_down_s=cool_down),
            compare=compare,
        )
        watch = stack.enter_context(watching(trials, seconds))
        tuned = tune(network, journal, how, relatives=relatives or (), farm=farm, watch=watch)
    if report is not None:
        write_report(report, model.name, tuned)
        note_file(report)
    if print_json(_describe(tuned)):
        return
    console = out_console()
    console.print(_progress_table(tuned.progress, console.width))
    if tuned.settled:
        columns = ["decision", "of", "cost model", "measured", "cost"]
        print_table(None, columns, [s.row for s in tuned.settled])
    done = sum(p.trials for p in tuned.progress)
    note(("Tuned", "green"), f" in {tuned.seconds:.0f} s; {done} of its trials are in {journal}")
    for each in tuned.devices:
        note(("Device", "yellow" if each.aside else "green"), f" {_standing(each)}")
    if tuned.comparison is not None:
        before, after = tuned.comparison.before_ms, tuned.comparison.after_ms
        # If the run was disturbed, a warning has already said why there is no ratio.
        disturbed = is_disturbed(tuned.others_share)
        ratio = "" if disturbed else f": {before / after:.2f} times as fast"
        note(("Network", "green"), f" before {ms_text(before)}, after {ms_text(after)}{ratio}")


def _reported_by(place: str, secret_file: Path | None) -> str:
    """Return a device file with what the driver of a farm's device reports."""
    from ..agent.device import connect
    from ..compiler.remote import device_file_of

    with connect(place, secret_file=secret_file) as device:
        return str(device_file_of(device))


def _tune_offline(model: Path, journal: Path, options: CompileOptions, seed: int) -> None:
    """Predict knobs, append them to the journal, and print them."""
    from ..devices.gpus import gpu_named, typical_gpu
    from ..errors import DeviceError
    from ..explain.isa.candidates import machine_code_for
    from ..journal.journal import Journal
    from ..tuning.device_model import rates_of
    from ..tuning.offline import predict, write_down
    from ..tuning.session import Network
    from ..tuning.verified import verification_of

    if options.device == "auto":
        raise typer.BadParameter("--offline needs --device with a GPU's name, such as adreno740.")
    spec = options.resolve()
    gpu = gpu_named(options.device) or typical_gpu(spec.kind, spec.device.name)
    rates_of(gpu)
    try:
        machine_code = machine_code_for(gpu)
    except DeviceError as error:
        machine_code = None
        note(("No machine code: ", "yellow"), f"{error.message} {error.remedy}")
    tasks = Network(model, options).tasks()
    with Journal.open(journal, "a") as output:
        found = predict(tasks, gpu, machine_code, seed)
        write_down(output, found, gpu)
    described: list[JsonObject] = [
        {
            "functions": list(each.task.names),
            "family": each.task.family.NAME,
            "calls": each.task.calls,
            "heuristic_s": each.heuristic.seconds,
            "best_s": each.best.seconds,
            "knobs": each.best.knobs,
            "code": each.best.code,
        }
        for each in found
    ]
    said = verification_of(gpu).sentence
    if print_json({"gpu": gpu.name, "verification": said, "tasks": described}):
        return
    rows = [
        (
            *(each.task.name, each.task.family.NAME, each.task.calls),
            *(f"{choice.seconds * 1e6:.1f}" for choice in (each.heuristic, each.best)),
            *((code.registers, code.waves, code.spills) if (code := each.best.code) else "---"),
        )
        for each in sorted(found, key=lambda each: -each.task.calls * each.best.seconds)
    ]
    columns = ["task", "family", ">calls", ">heuristic, µs", ">best, µs"]
    print_table(
        f"Predicted for {gpu.name}",
        [*columns, ">registers", ">waves", ">spills"],
        rows,
        spare=("family", ">waves", ">heuristic, µs"),
    )
    before, after = (
        1e3 * sum(each.task.calls * choice.seconds for each, choice in pairs)
        for pairs in ([(e, e.heuristic) for e in found], [(e, e.best) for e in found])
    )
    left = len(tasks) - len(found)
    note(said)
    note(
        ("Predicted", "green"),
        f" {len(found)} tasks: {ms_text(before)} with the heuristics, {ms_text(after)} with these "
        f"knobs; {left} others keep the heuristics'. {journal} has the predictions",
    )


@contextmanager
def watching(trials: int, seconds: float | None) -> Iterator[Watch | None]:
    """Show a live table on a terminal."""
    console = err_console()
    if state.quiet or not console.is_terminal:
        yield None
        return
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch(progress: Sequence[Progress], devices: Sequence[Standing]) -> None:
            lines = [*map(_standing, devices)]
            most = max(3, console.height - 5 - len(lines))
            content = _progress_table(progress, console.width, most)
            spent = time.monotonic() - began
            done = sum(p.trials for p in progress)
            whole = sum(trials if p.task.is_tunable else 1 for p in progress)
            left = spent / max(done, 1) * max(0, whole - done)
            if seconds is not None:
                left = min(left, max(0.0, seconds - spent))
            lines.append(
                f"{done} of at most {whole} trials, {done / spent:.1f} a second, "
                f"about {left:.0f} s left; Ctrl-C stops, the same command continues"
            )
            # Not as markup: the text may contain brackets.
            content.caption = Text("\n".join(lines))
            live.update(content)

        yield watch


def _standing(device: Standing) -> str:
    aside = f"; set aside: {device.aside}" if device.aside else ""
    return f"{device.device}: {device.trials} trials{aside}"


def _progress_table(progress: Sequence[Progress], width: int, most: int | None = None) -> Table:
    """Return a table of the tasks that take most of the network's time, at most ``most``."""
    known = [p for p in progress if math.isfinite(p.best)]
    total = sum(p.time for p in known)
    rows = [
        (
            *(p.task.label, p.task.family.NAME, *map(str, (p.trials, p.failures))),
            *(f"{seconds * 1e6:.1f}" for seconds in (p.heuristic, p.best)),
            *(f"{p.speedup:.2f}", f"{p.time / total:.1%}"),
        )
        for p in sorted(known, key=lambda p: -p.time)
    ]
    columns = [
        "task", "family", ">trials", ">failed", ">heuristic, µs", ">best, µs", ">speed-up", ">share"
    ]  # fmt: skip
    shown = without_spare(columns, rows[:most], width, ("family", ">failed", ">heuristic, µs"))
    return table(*shown, width)


def _describe(tuned: Tuned) -> JsonObject:
    compared = ("before_ms", "after_ms", "is_slower")
    return {
        "seconds": tuned.seconds,
        "trials": sum(p.trials for p in tuned.progress),
        "others_share": tuned.others_share,
        # Without a comparison, all of them are None.
        **{name: getattr(tuned.comparison, name, None) for name in compared},
        "settled": [
            {
                "what": s.what,
                "names": list(s.names),
                "cost_model": s.default,
                "choice": s.choice,
                "costs_s": {option: _finite(cost) for option, cost in s.costs.items()},
            }
            for s in tuned.settled
        ],
        "devices": tuned.devices,
        "tasks": [
            {
                "functions": list(p.task.names),
                "family": p.task.family.NAME,
                "calls": p.task.calls,
                "trials": p.trials,
                "failures": p.failures,
                "heuristic_s": _finite(p.heuristic),
                "best_s": _finite(p.best),
                "knobs": p.best_knobs,
            }
            for p in tuned.progress
        ],
    }


def _finite(cost: float) -> float | None:
    return cost if math.isfinite(cost) else None
