"""``tvmflow tune``: measures, and leaves a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..compiler.options import CompileOptions
from .compile_flags import TUNED, with_compile_flags
from .options import (
    Debug,
    DeviceIndex,
    FarmKey,
    Json,
    ModelFile,
    OpsFiles,
    Quiet,
    SecretFile,
    Verbose,
    check_farm,
    load_operators,
)
from .session import command, note_file, print_json
from .tuning_view import describe, summarize, watching

TUNE_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal
      32 trials for each task on this machine's OpenCL device; the same command goes on
      after Ctrl-C
  tvmflow tune mobilenet_v2.onnx --journal cpu.journal --seconds 900 --report tuned.html
  tvmflow tune net.onnx --journal new.journal --relatives old.journal
      beginning with what was best on another device of the kind
  tvmflow tune net.onnx --device adreno --tracker 10.0.0.2:9190 --key pixel8
      --secret-file farm.secret --host android-arm64 --journal pixel8.journal
      on all devices of a farm that have this key
"""


@command
@with_compile_flags(*TUNED, "host")
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
    options: CompileOptions,
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
    key: FarmKey = None,
    secret_file: SecretFile = None,
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
    ops: OpsFiles = None,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Find better knobs for a network's primary functions by measuring them.

    Algorithms of convolutions, and with --storage auto the storage, are settled so, too.
    """
    from ..farm.runner import Farm
    from ..module.files import check_writable
    from ..tuning.measure import Config
    from ..tuning.report import write_report
    from ..tuning.session import Network, Options, tune
    from ..tuning.tuner import Budget

    check_farm(tracker, key)
    if report is not None:
        check_writable(report)
    load_operators(ops)
    farm = Farm(tracker, key, secret_file) if tracker is not None and key is not None else None
    network = Network(model, options)
    how = Options(
        Budget(trials, seconds, patience),
        *(search, seed, workers, device_index),
        measuring=Config(cool_down_s=cool_down),
        compare=compare,
    )
    with watching(trials, seconds) as watch:
        tuned = tune(network, journal, how, relatives=relatives or (), farm=farm, watch=watch)
    if report is not None:
        write_report(report, model.name, tuned)
        note_file(report)
    if as_json:
        print_json(describe(tuned))
        return
    summarize(tuned, journal)
