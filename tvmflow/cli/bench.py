"""``tvmflow bench``: how long a module takes."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .compile_flags import DeviceName, InputShapes, TargetName
from .formats import counted, facts, ms_text, print_section, table
from .options import (
    CheckWeights,
    Debug,
    DeviceIndex,
    FarmKey,
    InputsFile,
    Json,
    Quiet,
    RandomSeed,
    SecretFile,
    Verbose,
)
from .scaling import Asked, measure_scaling
from .session import command, err_console, out_console, print_json, state

if TYPE_CHECKING:
    from ..module.bench import Timing
    from ..module.kernel_time import KernelTime

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow bench net.so
      100 runs or 10 s, whichever comes first, after 5 that are not counted
  tvmflow bench net.so --seconds 30 --kernels
      longer, and with the time of each kernel
  tvmflow bench net.onnx --scaling --target llvm --batches 1,4,16 --threads 1,2,4,64
      samples a second over batches and threads; 64 threads are predicted on a smaller machine
  tvmflow bench batch1.so batch8.so --scaling --devices 1,2
      of given modules, on one device and on two
  tvmflow bench batch1.so batch8.so --scaling --devices 1,2,3 --tracker 10.0.0.2:9190 --key rk3588
      on devices of a farm, by RPC
"""

_MAX_ROWS = 200
_WARMUP = 5


@command
def bench_module(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="OUT.so",
            help="A compiled module. With --scaling several of different batches, an ONNX model "
            "with an open batch, or several with different ones.",
        ),
    ],
    runs: Annotated[
        int | None, typer.Option("--runs", min=1, help="Measure this many runs.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.001, help="Measure for this long.")
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup", min=0, help=f"Runs before those that are measured, default {_WARMUP}."
        ),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Measure each kernel on the device, too.")
    ] = False,
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling", help="Measure samples a second over batches, threads and devices."
        ),
    ] = False,
    batches: Annotated[
        str | None,
        typer.Option(
            "--batches",
            metavar="N,...",
            help="Of each device, default those of the modules, or 1,2,4,8 of a model; those "
            "without a module are predicted.",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="N,...",
            help="Of the CPU (llvm, PoCL); more than it has cores are predicted.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="N,...",
            help="How many devices share the samples; more than there are, are predicted.",
        ),
    ] = None,
    target: TargetName = "",
    device: DeviceName = "",
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The machine that the farm's servers run on, for ONNX models: linux-x64, "
            "linux-arm64, android-arm64, or a triple. Default: this one.",
        ),
    ] = None,
    shape: InputShapes = None,
    tracker: Annotated[
        str | None,
        typer.Option(
            "--tracker",
            metavar="HOST:PORT",
            help="With --scaling on the devices that this tracker has for --key; they run "
            "`tvmflow farm serve`.",
        ),
    ] = None,
    key: FarmKey = None,
    secret_file: SecretFile = None,
    inputs: InputsFile = None,
    random_seed: RandomSeed = 0,
    device_index: DeviceIndex = 0,
    check_weights: CheckWeights = True,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Measure a compiled network: load, first call, and the spread of many calls.

    A call includes copying the inputs to the device and the outputs back. In the
    first call a driver builds the kernels, unless it finds them built.

    With --scaling: samples a second over batches, CPU threads and devices, measured where
    they exist, each number of threads in a process of its own, and predicted elsewhere by a
    law that is fitted to what was measured (docs/scaling.md). The options from --batches to
    --key go with it; --target, --device, --host and --shape are for ONNX models.
    """
    if seconds is not None and math.isinf(seconds):
        raise typer.BadParameter("--seconds has to end.")
    asked = Asked(
        *(batches, threads, devices, target, device, host, shape or [], tracker, key),
        secret_file=secret_file,
    )
    if scaling:
        if kernels or any(option is not None for option in (runs, warmup, inputs)):
            raise typer.BadParameter(
                "--runs, --warmup, --kernels and --inputs do not go with --scaling."
            )
        measure_scaling(files, asked, device_index, seconds or 2.0, random_seed, as_json)
        return
    if asked:
        raise typer.BadParameter(
            "--batches, --threads, --devices, --target, --device, --host, --shape, --tracker and "
            "--key go with --scaling."
        )
    if len(files) > 1:
        raise typer.BadParameter(f"{len(files)} modules are measured with --scaling only.")
    from .. import load
    from ..module.bench import benchmark
    from .arrays import choose_inputs

    (module,) = files
    network = load(module, device=device_index, check_weights=check_weights)
    try:
        values = choose_inputs(inputs, random_seed, network)
        with err_console().status("measuring") if _watched() else _nothing():
            before = _WARMUP if warmup is None else warmup
            timing = benchmark(network, values, runs=runs, seconds=seconds, warmup=before)
            times = network.profile(values, runs=min(timing.runs, 20)) if kernels else None
    finally:
        network.close()
    if as_json:
        result: dict[str, Any] = {"module": str(module), **asdict(timing)}
        if times is not None:
            result["kernels"] = [asdict(kernel) for kernel in times]
        print_json(result)
        return
    _print_timing(timing)
    if times is not None:
        _print_kernels(times)


def _watched() -> bool:
    return not state.quiet and err_console().is_terminal


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _print_timing(timing: Timing) -> None:
    names = {
        "load": timing.load_ms,
        "first call": timing.first_ms,
        "median": timing.median_ms,
        "p10": timing.p10_ms,
        "p90": timing.p90_ms,
    }
    title = f"{counted(timing.runs, 'run')} after {timing.warmup} that are not counted"
    rows = [(name, ms_text(ms)) for name, ms in names.items()]
    print_section(out_console(), title, facts(rows))


def _print_kernels(times: list[KernelTime]) -> None:
    total = sum(kernel.median_us for kernel in times)
    rows = [
        (
            kernel.kernel,
            f"{kernel.median_us:.1f} µs",
            f"{kernel.p90_us:.1f} µs",
            f"{100 * kernel.median_us / total:.1f} %" if total else "",
            "×".join(map(str, kernel.global_size)),
            "×".join(map(str, kernel.local_size)),
        )
        for kernel in sorted(times, key=lambda kernel: -kernel.median_us)
    ]
    by_device = all(kernel.clock == "device" for kernel in times)
    clock = "by the device's clock" if by_device else "by the host's clock, around each call"
    launches = counted(len(times), "launch", "launches")
    title = f"{launches} a run, {ms_text(total / 1e3)} in total, {clock}"
    columns = ["kernel", ">median", ">p90", ">share", "work-items", "group"]
    # A launch that has no size (on a CPU, a kernel is a function call) needs no such columns.
    if not any(kernel.global_size for kernel in times):
        columns, rows = columns[:4], [row[:4] for row in rows]  # type: ignore[misc]
    console = out_console()
    print_section(console, title, table(columns, rows[:_MAX_ROWS]))
    if len(rows) > _MAX_ROWS:
        console.print(f"… {len(rows) - _MAX_ROWS} more; --json has all")
