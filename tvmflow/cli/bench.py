"""``tvmflow bench``: the time of a module, and its throughput over batches and devices."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.units import counted
from .options import farm_of, in_panels, parse_shapes
from .output import (
    err_console,
    note_file,
    out_console,
    print_facts,
    print_json,
    print_launches,
    print_table,
    state,
)
from .session import command
from .text import ms_text, times_text

if TYPE_CHECKING:
    from ..explain.scaling.communication import Communication
    from ..explain.scaling.devices import DevicePool
    from ..explain.scaling.measure import Scaling
    from ..explain.scaling.predict import Law, Point
    from ..explain.scaling.sources import Network
    from ..module.kernel_time import KernelTime
    from .output import Cell

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
  tvmflow bench batch1.so --scaling --link 10Gbit --latency-us 20 --plot efficiency.svg
      and what 1 to 64 such devices would lose to a link between them
  tvmflow bench batch1.so batch8.so --scaling --devices 1,2,3 --tracker 10.0.0.2:9190 --key rk3588
      on devices of a farm, by RPC; with --link measured what 64 of them would lose
"""

_WARMUP = 5
_MODEL_BATCHES = [1, 2, 4, 8]
_MODEL = ".onnx"
_MEASURED = "measured"


@command
@in_panels(
    **{
        "With --scaling": "batches threads devices link latency_us microbatches plot target device "
        "host tracker key secret_file"
    }
)
def bench_module(
    files: Annotated[
        list[Path],
        "OUT.so",
        "A compiled module. With --scaling several of different batches, an ONNX model with an "
        "open batch, or several with different ones.",
    ],
    runs: Annotated[int | None, typer.Option(min=1), "Measure this many runs."] = None,
    seconds: Annotated[float | None, typer.Option(min=0.001), "Measure for this long."] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0), f"Runs before those that are measured, default {_WARMUP}."
    ] = None,
    kernels: Annotated[bool, "Measure each kernel on the device, too."] = False,
    scaling: Annotated[bool, "Measure samples a second over batches, threads and devices."] = False,
    batches: Annotated[
        str | None,
        "N,...",
        "Of each device, default those of the modules, or 1,2,4,8 of a model; those without a "
        "module are predicted.",
    ] = None,
    threads: Annotated[
        str | None, "N,...", "Of the CPU (llvm, PoCL); more than it has cores are predicted."
    ] = None,
    devices: Annotated[
        str | None,
        "N,...",
        "How many devices share the samples; more than there are, are predicted.",
    ] = None,
    link: Annotated[
        str | None,
        "RATE",
        "Bandwidth between devices (10Gbit, 500MB), or with --tracker 'measured', that of its "
        "servers: predict the efficiency of 1 to 64.",
    ] = None,
    latency_us: Annotated[
        float | None, typer.Option(min=0), "Of that link, for each transfer, default 0."
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(min=1), "Calls that go through a pipeline, default 8."
    ] = None,
    plot: Annotated[Path | None, "PLOT.svg", "Draw the efficiency over a --link."] = None,
    target: str = "",
    device: str = "",
    host: Annotated[
        str | None,
        "HOST",
        "The machine that the farm's servers run on, for ONNX models: linux-x64, linux-arm64, "
        "android-arm64, or a triple. Default: this one.",
    ] = None,
    shape: Annotated[
        list[str] | None,
        "NAME=1,3,224,224",
        "Of a module with several shapes, the one with this input; with --scaling, shape of an "
        "input that an ONNX model leaves open; repeatable.",
    ] = None,
    of_extents: str | None = None,
    tracker: str | None = None,
    key: str | None = None,
    secret_file: Path | None = None,
    inputs: Path | None = None,
    picture: list[str] | None = None,
    random_seed: int = 0,
    device_index: int = 0,
    backend: str = "auto",
    check_weights: bool = True,
) -> None:
    """Measure a compiled network: load, first call, and the spread of many calls.

    A call includes copying the inputs to the device and the outputs back. In the
    first call a driver builds the kernels, unless it finds them built.

    With --scaling: samples a second over batches, CPU threads and devices, measured where
    they exist, each number of threads in a process of its own, and predicted elsewhere by a
    law that is fitted to what was measured (docs/scaling.md). The options from --batches to
    --key go with it; --link predicts what communication costs; --target, --device and --host
    are for ONNX models.
    """
    if seconds is not None and math.isinf(seconds):
        raise typer.BadParameter("--seconds has to end.")
    wanted = ScalingOptions(
        *(batches, threads, devices, target, device, host),
        shape=(shape or []) if scaling else [],
        tracker=tracker,
        key=key,
        link=link,
        latency_us=latency_us,
        microbatches=microbatches,
        plot=plot,
    )
    if scaling:
        given = any(option is not None for option in (runs, warmup, inputs, picture, of_extents))
        if kernels or given or backend != "auto":
            raise typer.BadParameter(
                "--runs, --warmup, --kernels, --at, --inputs, --picture and --backend do not go "
                "with --scaling."
            )
        if link is None and (plot, microbatches, latency_us) != (None, None, None):
            raise typer.BadParameter("--latency-us, --microbatches and --plot go with --link.")
        if link == _MEASURED and (tracker is None or latency_us is not None):
            raise typer.BadParameter(
                "--link measured is that of a farm's servers, latency and all: it needs --tracker "
                "and does not go with --latency-us. Give a bandwidth, such as 10Gbit."
            )
        result, predicted = _measure_scaling(
            files, wanted, secret_file, device_index, seconds or 2.0, random_seed
        )
        told = {} if predicted is None else {"communication": predicted.described()}
        if not print_json({"files": [*map(str, files)], **result.described(), **told}):
            _print_scaling(result)
            if predicted is not None:
                _print_communication(predicted)
        return
    if any(value not in (None, "", []) for value in vars(wanted).values()):
        raise typer.BadParameter(
            "--batches, --threads, --devices, --link, --latency-us, --microbatches, --plot, "
            "--target, --device, --host, --tracker and --key go with --scaling."
        )
    if len(files) > 1:
        raise typer.BadParameter(f"{len(files)} modules are measured with --scaling only.")
    from .. import load
    from ..module.bench import bench
    from .arrays import choose_inputs
    from .shapes import chosen

    (module,) = files
    # Not opened here: how long that takes is measured, too.
    opened = load(module, device=device_index, check_weights=check_weights, backend=backend)
    with closing(opened) as whole:
        network = chosen(whole.variants, whole.metadata, shape, of_extents) or whole.variants[0]
        values = choose_inputs(inputs, random_seed, network, picture)
        console = err_console()
        is_watched = console.is_terminal and not state.quiet
        with console.status("measuring") if is_watched else nullcontext():
            before = _WARMUP if warmup is None else warmup
            timing = bench(network, values, runs=runs, seconds=seconds, warmup=before)
            times = network.profile(values, runs=min(timing.runs, 20)) if kernels else None
    measured = asdict(timing)
    by_kernel = {} if times is None else {"kernels": times}
    if print_json({"module": str(module), **measured.pop("setting"), **measured, **by_kernel}):
        return
    title = f"{counted(timing.runs, 'run')} after {timing.warmup} that are not counted"
    names = {"load": "load", "first": "first call", "median": "median"}
    names |= {each: each for each in ("min", "p10", "p90", "p99", "max")}
    facts = [(name, ms_text(measured[f"{of}_ms"])) for of, name in names.items()]
    print_facts(
        title,
        [
            *timing.setting.facts(),
            *facts,
            ("throughput", f"{_rate_text(timing.runs_per_s)} runs/s"),
        ],
    )
    if times is not None:
        _print_kernels(times)


def _print_kernels(times: Sequence[KernelTime]) -> None:
    total = sum(kernel.median_us for kernel in times)
    rows: list[tuple[str, ...]] = [
        (
            *(kernel.kernel, f"{kernel.median_us:.1f} µs", f"{kernel.p90_us:.1f} µs"),
            f"{100 * kernel.median_us / total:.1f} %" if total else "",
            *map(times_text, (kernel.global_size, kernel.local_size)),
        )
        for kernel in sorted(times, key=lambda kernel: -kernel.median_us)
    ]
    columns = ["kernel", ">median", ">p90", ">share", "work-items", "group"]
    # A launch that has no size (on a CPU, a kernel is a function call) needs no such columns.
    if not any(kernel.global_size for kernel in times):
        columns, rows = columns[:4], [row[:4] for row in rows]
    print_launches(columns, rows, total, by_device=all(k.clock == "device" for k in times))


@dataclass(frozen=True)
class ScalingOptions:
    """Options of the command that only go with ``--scaling``, as they are written."""

    batches: str | None
    threads: str | None
    devices: str | None
    target: str
    device: str
    host: str | None
    shape: list[str]
    tracker: str | None
    key: str | None
    link: str | None
    latency_us: float | None
    microbatches: int | None
    plot: Path | None


def _measure_scaling(
    files: Sequence[Path],
    wanted: ScalingOptions,
    secret_file: Path | None,
    device_index: int,
    seconds: float,
    random_seed: int,
) -> tuple[Scaling, Communication | None]:
    """Measure modules, or a model that is compiled for each batch; predict a link's devices."""
    from rich.text import Text

    from ..explain.scaling.communication import Communication, Link
    from ..explain.scaling.devices import FarmDevices, LocalDevices
    from ..explain.scaling.measure import scale
    from ..explain.scaling.work import work_of
    from ..module.files import TEXT, publish, staging

    link = None
    if wanted.link not in (None, _MEASURED):
        link = Link.parse(wanted.link, wanted.latency_us or 0.0)
    lent = farm_of(wanted.tracker, wanted.key, secret_file)
    batches, threads, devices = (
        _numbers(name, getattr(wanted, name)) for name in ("batches", "threads", "devices")
    )
    with (
        tempfile.TemporaryDirectory(prefix="tvmflow-scaling-") as folder,
        nullcontext() if wanted.plot is None else staging(wanted.plot, TEXT) as stage,
        err_console().status("starting") as status,
    ):

        def watch(what: str) -> None:
            # As text, not markup: names of files may contain brackets.
            status.update(Text(what))

        def find_place(target: str, host: str | None) -> DevicePool:
            if lent is None:
                place: DevicePool = LocalDevices.find(target, device_index)
            else:
                place = FarmDevices.find(*lent, target, device_index, host)
            # Before anything is compiled.
            for count in threads or ():
                place.environment(count)
            return place

        network, place = _network(files, wanted, batches, Path(folder), find_place, watch)
        measured = scale(
            network,
            place,
            batches=batches or sorted(network.modules),
            threads=threads or [],
            devices=devices or [1],
            seconds=seconds,
            seed=random_seed,
            watch=watch,
        )
        if wanted.link is None:
            return measured, None
        watch("measuring kernels" if lent is None else "measuring the link")
        batch, work = work_of(network, measured, place)
        if link is None:
            assert isinstance(place, FarmDevices)
            link = place.link
        found = Communication(work, link, wanted.microbatches or 8, batch)
        if stage is not None and wanted.plot is not None:
            written = stage / wanted.plot.name
            title = f"Predicted efficiency, link {found.link}, batch {batch} a device"
            written.write_text(found.plot(title), encoding="utf-8")
            publish({written: wanted.plot})
            note_file(wanted.plot)
        return measured, found


def _network(
    files: Sequence[Path],
    wanted: ScalingOptions,
    batches: list[int] | None,
    folder: Path,
    find_place: Callable[[str, str | None], DevicePool],
    watch: Callable[[str], object],
) -> tuple[Network, DevicePool]:
    from ..compiler.options import CompileOptions
    from ..devices.target import check_target
    from ..explain.scaling.devices import check_preset
    from ..explain.scaling.sources import from_model, from_models, from_modules, is_batch_open

    if not any(file.suffix == _MODEL for file in files):
        if wanted.target or wanted.device or wanted.host or wanted.shape:
            raise typer.BadParameter("--target, --device, --host and --shape are for ONNX models.")
        network = from_modules(files)
        return network, find_place(network.target, network.host)
    if any(file.suffix != _MODEL for file in files):
        raise typer.BadParameter("ONNX models or modules are measured, not both together.")
    target, device = wanted.target or "opencl", wanted.device or "auto"
    check_target(target)
    if wanted.tracker is not None:
        check_preset(target, device)
    elif wanted.host is not None:
        raise typer.BadParameter("--host is for the servers of --tracker and --key.")
    place = find_place(target, wanted.host)
    options = CompileOptions(
        target=target, device=device, host=wanted.host, shapes=parse_shapes(wanted.shape)
    )
    # A model with a fixed batch is measured with that, unless others are asked for.
    if len(files) > 1 or (batches is None and not is_batch_open(files[0])):
        return from_models(files, folder, options, watch), place
    return from_model(files[0], batches or _MODEL_BATCHES, folder, options, watch), place


def _numbers(name: str, text: str | None) -> list[int] | None:
    from ..explain.scaling.measure import check_numbers

    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"--{name} {text!r} is not of the form 1,2,4, whole numbers."
        ) from None
    check_numbers(name, numbers)
    return numbers


def _print_scaling(result: Scaling) -> None:
    points, laws = result.points, result.laws
    base = next(point for point in points if point.measured)
    has_threads = any(point.threads is not None for point in points)
    columns = [">devices", ">batch", *([">threads"] if has_threads else [])]
    columns += [">median", ">samples/s", ">range", ">gain", "how"]
    rows = [_row(point, base, laws, has_threads) for point in points]
    title = f"Throughput, {result.target} on {result.device_name}"
    print_table(title, columns, rows)
    versions = " ".join(f"{name} {version}" for name, version in result.versions.items())
    out_console().print(", ".join(filter(None, (result.driver, versions))), markup=False)
    if laws:
        texts = [(f"law {number}", _law_text(law)) for number, law in enumerate(laws, 1)]
        title = "Laws: rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))"
        print_facts(title, texts)
    for why_not in dict.fromkeys(point.why_not for point in points if point.why_not):
        out_console().print(f"Not predicted: {why_not}.")


def _print_communication(found: Communication) -> None:
    """Print a row for each number of devices, a column for each scheme."""
    points = found.efficiency()
    rates = {(e.devices, e.scheme): e.efficiency for e in points}
    schemes = [*dict.fromkeys(e.scheme for e in points)]
    rows: list[Sequence[Cell]] = []
    for devices in dict.fromkeys(e.devices for e in points):
        own = (rates[devices, scheme] for scheme in schemes)
        rows.append([devices, *(None if rate is None else f"{rate:.1%}" for rate in own)])
    title = f"Predicted efficiency, link {found.link}, batch {found.batch} a device"
    print_table(title, [">devices", *(f">{scheme}" for scheme in schemes)], rows)


def _row(point: Point, base: Point, laws: Sequence[Law], has_threads: bool) -> Sequence[Cell]:
    median = None if point.median_ms is None else ms_text(point.median_ms)
    cells = [point.devices, point.batch, *([point.threads] if has_threads else []), median]
    if point.items_per_s is None or base.items_per_s is None:
        return [*cells, None, None, None, "not predicted"]
    numbers = " × ".join(str(laws.index(law) + 1) for law in point.laws)
    how = "measured" if point.measured else f"predicted, law {numbers}"
    spread = f"{_rate_text(point.low_per_s)}–{_rate_text(point.high_per_s)}"
    gain = f"{point.items_per_s / base.items_per_s:.2f}"
    return [*cells, _rate_text(point.items_per_s), spread, gain, how]


def _rate_text(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _law_text(law: Law) -> str:
    """``Amdahl's law over threads at batch 4, 1 device, fitted to 1, 2: rate …``."""
    from ..explain.scaling.predict import counted_along

    fit = law.fit
    at = ", ".join(counted_along(name, n) for name, n in law.at.items() if n is not None)
    numbers = ", ".join(map(str, law.fitted_to))
    text = f"{fit.law} over {law.axis} at {at}, fitted to {numbers}: rate {_rate_text(fit.rate)}/s"
    if len(law.fitted_to) == 1:
        return f"{text}; one was measured: an upper bound, as if they did not disturb each other"
    text += f", contention {fit.contention:.3f}"
    if fit.coherency:
        text += f", coherency {fit.coherency:.2g}"
    if fit.limit is not None:
        text += f", at most {_rate_text(fit.limit)}/s"
    if fit.error is None:
        return f"{text}; error not known, as {fit.points} points give it exactly"
    return f"{text}; error {100 * fit.error:.1f} %"
