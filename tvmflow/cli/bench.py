"""``tvmflow bench``: time of a module, and its throughput over batches and devices."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..devices.choices import PRECISIONS
from ..ir.units import counted
from .options import farm_of, in_panels, parse_shapes, words
from .output import (
    err_console,
    out_console,
    print_facts,
    print_json,
    print_launches,
    print_table,
    state,
)
from .places import MODEL, Place, Requested, opened_there
from .session import command
from .text import ms_text, times_text

if TYPE_CHECKING:
    from ..agent.module import Conditions
    from ..explain.scaling.devices import DevicePool
    from ..explain.scaling.link import Prediction
    from ..explain.scaling.measure import Scaling
    from ..explain.scaling.sources import Network
    from ..module.bench import Benchmark
    from ..module.kernel_time import KernelTime

logger = logging.getLogger(__name__)

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow bench net.so
      100 runs or 10 s, whichever comes first, after 5 that are not counted
  tvmflow bench net.so --seconds 30 --kernels
      longer, and the time of each kernel
  tvmflow bench net.onnx --on adb
      compile for the attached phone, and measure there
  tvmflow bench net.onnx --scaling --target llvm --batches 1,4,16 --threads 1,2,4
      samples a second over batches and threads
  tvmflow bench batch1.so batch8.so --scaling --devices 1,2
      given modules, on one device and on two
  tvmflow bench batch1.so --scaling --link 10Gbit --latency-us 20
      also the efficiency of 1 to 64 such devices that share a link to their host
  tvmflow bench batch1.so batch8.so --scaling --devices 1,2,3 --tracker 10.0.0.2:9190 --key rk3588
      on devices of a farm, by RPC
"""

_WARMUP = 5
_MODEL_BATCHES = [1, 2, 4, 8]


@command
@in_panels(
    **{
        "With --scaling": "batches threads devices link latency_us target device host tracker key "
        "secret_file"
    }
)
def bench_module(
    files: Annotated[
        list[Path],
        "OUT.so",
        "A compiled module. With --scaling several of different batches, an ONNX model with an "
        "open batch, or several models with different batches.",
    ],
    runs: Annotated[int | None, typer.Option(min=1), "Measure this many runs."] = None,
    seconds: Annotated[float | None, typer.Option(min=0.001), "Measure for this long."] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0), f"Runs before the measured ones, default {_WARMUP}."
    ] = None,
    kernels: Annotated[bool, "Measure each kernel on the device, too."] = False,
    scaling: Annotated[bool, "Measure samples a second over batches, threads and devices."] = False,
    batches: Annotated[
        str | None,
        "N,...",
        "Samples of a call on each device, default those of the modules, or 1,2,4,8 for a model.",
    ] = None,
    threads: Annotated[
        str | None, "N,...", "Threads of the CPU (llvm, PoCL), at most its cores."
    ] = None,
    devices: Annotated[
        str | None, "N,...", "Numbers of devices that share the samples, at most the existing ones."
    ] = None,
    link: Annotated[
        str | None,
        "RATE",
        "Bandwidth between a host and its devices (10Gbit, 500MB): predict the efficiency of 1 to "
        "64 devices.",
    ] = None,
    latency_us: Annotated[
        float | None, typer.Option(min=0), "Latency of each transfer over --link, default 0."
    ] = None,
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
        "Select the shape with this input from a module with several shapes; with --scaling, the "
        "shape of an input that an ONNX model leaves open; repeatable.",
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
    on: str | None = None,
    dtype: Annotated[
        str | None,
        words(*PRECISIONS),
        "For an ONNX model with --on: precision of tensors, default fp16 on GPUs that have it.",
    ] = None,
) -> None:
    """Measure a compiled network: load, first call, and the spread of many calls.

    A call includes copying the inputs to the device and the outputs back. In the
    first call a driver builds the kernels, unless they are cached.

    With --on the calls are measured on that device, without the way to it, and an ONNX model is
    first compiled for what the device reports: its system, its GPU's limits, fp16 where that is
    fast.

    With --scaling: samples a second over batches, CPU threads and devices, with a separate
    process for each number of threads (docs/scaling.md). The options from --batches to --key
    need --scaling; --link predicts the cost of communication; --target, --device and --host are
    for ONNX models.
    """
    if seconds is not None and math.isinf(seconds):
        raise typer.BadParameter("--seconds must be finite.")
    wanted = ScalingOptions(
        *(batches, threads, devices, target, device, host),
        shape=(shape or []) if scaling else [],
        tracker=tracker,
        key=key,
        link=link,
        latency_us=latency_us,
    )
    if scaling:
        given = any(option is not None for option in (runs, warmup, inputs, picture, of_extents))
        if kernels or given or backend != "auto":
            raise typer.BadParameter(
                "--runs, --warmup, --kernels, --at, --inputs, --picture and --backend do not go "
                "with --scaling."
            )
        if link is None and latency_us is not None:
            raise typer.BadParameter("--latency-us goes with --link.")
        if link is not None and tracker is not None:
            raise typer.BadParameter(
                "--link does not go with --tracker: calls of a farm's servers contain their link."
            )
        result, predicted = _measure_scaling(
            files, wanted, secret_file, device_index, seconds or 2.0, random_seed
        )
        extra = {} if predicted is None else {"communication": predicted.described()}
        if not print_json({"files": [*map(str, files)], **result.described(), **extra}):
            _print_scaling(result)
            if predicted is not None:
                _print_prediction(predicted)
        return
    if on is not None:
        if batches or threads or devices or host or tracker or key or link or latency_us:
            raise typer.BadParameter(
                "--batches, --threads, --devices, --link, --latency-us, --host, --tracker and "
                "--key do not go with --on."
            )
        requested = Requested(
            target or None, device or None, dtype, shape or [], device_index, backend, check_weights
        )
        _measure_there(
            files,
            Place(on, secret_file),
            requested,
            Length(runs, seconds, _WARMUP if warmup is None else warmup),
            (inputs, random_seed, picture),
            kernels=kernels,
            at=of_extents,
        )
        return
    if dtype is not None:
        raise typer.BadParameter("--dtype goes with --on.")
    if any(value not in (None, "", []) for value in vars(wanted).values()):
        raise typer.BadParameter(
            "--batches, --threads, --devices, --link, --latency-us, --target, --device, --host, "
            "--tracker and --key go with --scaling."
        )
    if len(files) > 1:
        raise typer.BadParameter(f"{len(files)} modules are measured with --scaling only.")
    from .. import load
    from ..module.bench import bench
    from .arrays import choose_inputs
    from .shapes import chosen

    (module,) = files
    # Not opened here, because `bench` also measures how long opening takes.
    opened = load(module, device=device_index, check_weights=check_weights, backend=backend)
    with closing(opened) as whole:
        network = chosen(whole, shape, of_extents) or whole.variants[0]
        values = choose_inputs(inputs, random_seed, network, picture)
        console = err_console()
        is_watched = console.is_terminal and not state.quiet
        with console.status("measuring") if is_watched else nullcontext():
            before = _WARMUP if warmup is None else warmup
            timing = bench(network, values, runs=runs, seconds=seconds, warmup=before)
            times = network.profile(values, runs=min(timing.runs, 20)) if kernels else None
    _print_timing(module, timing, times)


def _print_timing(
    module: Path,
    timing: Benchmark,
    times: Sequence[KernelTime] | None,
    conditions: Conditions | None = None,
) -> None:
    measured = asdict(timing)
    by_kernel = {} if times is None else {"kernels": times}
    there = {} if conditions is None else {"conditions": conditions}
    about = {"module": str(module), **measured.pop("setting"), **measured}
    if print_json({**about, **there, **by_kernel}):
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
            *([] if conditions is None else _condition_facts(conditions)),
        ],
    )
    if times is not None:
        _print_kernels(times)


def _condition_facts(conditions: Conditions) -> list[tuple[str, str]]:
    """Return the device's temperature and clock around the measurement, as far as it shows them."""
    facts = []
    if (celsius := conditions.celsius) is not None:
        facts.append(("hottest sensor", "{:.1f} to {:.1f} °C".format(*celsius)))
    before, after = (each.get("gpu_khz") for each in (conditions.before, conditions.after))
    if before is not None and after is not None:
        facts.append(("GPU clock", f"{before / 1e3:.0f} to {after / 1e3:.0f} MHz"))
    if battery := conditions.after.get("battery"):
        charging = ", charging" if battery.get("charging") else ""
        facts.append(("battery", f"{battery['percent']:.0f} %{charging}"))
    return facts


@dataclass(frozen=True)
class Length:
    """Length of a measurement."""

    runs: int | None
    seconds: float | None
    warmup: int


def _measure_there(
    files: Sequence[Path],
    place: Place,
    requested: Requested,
    length: Length,
    values: tuple[Path | None, int, list[str] | None],
    *,
    kernels: bool,
    at: str | None,
) -> None:
    """Measure a library, or a model that is compiled for the device, there."""
    from ..agent.module import AgentModule
    from ..module.bench import bench
    from .arrays import choose_inputs
    from .shapes import chosen

    if len(files) != 1:
        raise typer.BadParameter(f"{len(files)} modules are measured with --scaling only.")
    (file,) = files
    if file.suffix != MODEL and requested.options():
        raise typer.BadParameter("--target, --device and --dtype are for ONNX models.")
    with ExitStack() as stack:
        status = stack.enter_context(err_console().status("compiling"))
        opened = stack.enter_context(opened_there(file, place, requested))
        status.update("measuring")
        network = chosen(opened.module, opened.shape, at) or opened.module.variants[0]
        assert isinstance(network, AgentModule)
        inputs = choose_inputs(values[0], values[1], network, values[2])
        timing = bench(
            network, inputs, runs=length.runs, seconds=length.seconds, warmup=length.warmup
        )
        times = network.profile(inputs, runs=min(timing.runs, 20)) if kernels else None
        conditions = network.conditions
    _print_timing(file, timing, times, conditions)
    if conditions is not None and conditions.throttled:
        logger.warning(
            "%s Let it cool down, and measure again for its full speed.", conditions.throttled
        )
    if conditions is not None and conditions.slept:
        logger.warning(
            "%s Keep it awake (on phones: developer options), and measure again.", conditions.slept
        )


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
    # Launches without a size (on a CPU, a kernel is a function call) need no such columns.
    if not any(kernel.global_size for kernel in times):
        columns, rows = columns[:4], [row[:4] for row in rows]
    print_launches(columns, rows, total, by_device=all(k.clock == "device" for k in times))


@dataclass(frozen=True)
class ScalingOptions:
    """Options that need ``--scaling``, as they are typed."""

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


def _measure_scaling(
    files: Sequence[Path],
    wanted: ScalingOptions,
    secret_file: Path | None,
    device_index: int,
    seconds: float,
    random_seed: int,
) -> tuple[Scaling, Prediction | None]:
    """Measure modules, or a model compiled for each batch; predict several devices on a link."""
    from rich.text import Text

    from ..explain.scaling.devices import FarmDevices, LocalDevices, check_numbers
    from ..explain.scaling.link import Link, Prediction
    from ..explain.scaling.measure import scale

    link = None if wanted.link is None else Link.parse(wanted.link, wanted.latency_us or 0.0)
    lent = farm_of(wanted.tracker, wanted.key, secret_file)
    batches, threads, devices = (
        _numbers(name, getattr(wanted, name)) for name in ("batches", "threads", "devices")
    )
    with (
        tempfile.TemporaryDirectory(prefix="tvmflow-scaling-") as folder,
        err_console().status("starting") as status,
    ):

        def watch(what: str) -> None:
            # As text, not as markup: file names may contain brackets.
            status.update(Text(what))

        def find_place(target: str, host: str | None) -> DevicePool:
            if lent is None:
                place: DevicePool = LocalDevices.find(target, device_index)
            else:
                place = FarmDevices.find(*lent, target, device_index, host)
            # Check before anything is compiled.
            check_numbers("devices", devices or [1], range(1, place.existing + 1))
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
        return measured, None if link is None else Prediction.of(network, measured, link)


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
    from ..explain.scaling.sources import from_model, from_models, from_modules, is_batch_open
    from ..farm.server_info import check_preset

    if not any(file.suffix == MODEL for file in files):
        if wanted.target or wanted.device or wanted.host or wanted.shape:
            raise typer.BadParameter("--target, --device, --host and --shape are for ONNX models.")
        network = from_modules(files)
        return network, find_place(network.target, network.host)
    if any(file.suffix != MODEL for file in files):
        raise typer.BadParameter("ONNX models or modules are measured, not both together.")
    target, device = wanted.target or "opencl", wanted.device or "auto"
    check_target(target)
    if wanted.tracker is not None:
        if target != "llvm":
            check_preset("Compiling for", device, target)
    elif wanted.host is not None:
        raise typer.BadParameter("--host is for the servers of --tracker and --key.")
    place = find_place(target, wanted.host)
    options = CompileOptions(
        target=target, device=device, host=wanted.host, shapes=parse_shapes(wanted.shape)
    )
    # Without `batches`, a model with a fixed batch is measured with it.
    if len(files) > 1 or (batches is None and not is_batch_open(files[0])):
        return from_models(files, folder, options, watch), place
    return from_model(files[0], batches or _MODEL_BATCHES, folder, options, watch), place


def _numbers(name: str, text: str | None) -> list[int] | None:
    from ..explain.scaling.devices import check_numbers

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
    points = result.points
    has_threads = any(point.threads is not None for point in points)
    columns = [">devices", ">batch", *([">threads"] if has_threads else [])]
    columns += [">median", ">samples/s", ">range", ">gain"]
    rows = [
        (
            *(point.devices, point.batch, *([point.threads] if has_threads else [])),
            *(ms_text(point.median_ms), _rate_text(point.items_per_s)),
            f"{_rate_text(point.low_per_s)}–{_rate_text(point.high_per_s)}",
            f"{point.items_per_s / points[0].items_per_s:.2f}",
        )
        for point in points
    ]
    print_table(f"Throughput, {result.target} on {result.device_name}", columns, rows)
    versions = " ".join(f"{name} {version}" for name, version in result.versions.items())
    out_console().print(", ".join(filter(None, (result.driver, versions))), markup=False)


def _print_prediction(found: Prediction) -> None:
    from ..explain.scaling.link import COUNTS

    title = f"Predicted, link {found.link}, batch {found.batch} a device"
    rows = [(n, _rate_text(found.items_per_s(n)), f"{found.efficiency(n):.1%}") for n in COUNTS]
    print_table(title, [">devices", ">samples/s", ">efficiency"], rows)


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
