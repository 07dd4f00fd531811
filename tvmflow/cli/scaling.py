"""``tvmflow bench --scaling``: what it reads and prints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .compile_flags import parse_shapes
from .formats import facts, ms_text, print_section, table
from .options import check_farm
from .session import err_console, out_console, print_json

if TYPE_CHECKING:
    from ..explain.scaling.devices import DevicePool
    from ..explain.scaling.measure import Scaling
    from ..explain.scaling.predict import Law, Point
    from ..explain.scaling.sources import Network

_MODEL_BATCHES = [1, 2, 4, 8]
_MODEL = ".onnx"


@dataclass(frozen=True)
class Asked:
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
    #: Which an environment variable may name for other commands.
    secret_file: Path | None

    def __bool__(self) -> bool:
        """Whether any is given."""
        return any(value for name, value in vars(self).items() if name != "secret_file")


def measure_scaling(
    files: Sequence[Path],
    asked: Asked,
    device_index: int,
    seconds: float,
    random_seed: int,
    as_json: bool,
) -> None:
    """Measure modules, or a model that is compiled for each batch, and print."""
    from rich.text import Text

    from ..explain.scaling.measure import scale

    check_farm(asked.tracker, asked.key)
    batches = _numbers("batches", asked.batches)
    threads, devices = _numbers("threads", asked.threads), _numbers("devices", asked.devices)
    with (
        tempfile.TemporaryDirectory(prefix="tvmflow-scaling-") as folder,
        err_console().status("starting") as status,
    ):

        def watch(what: str) -> None:
            # As text, not markup: names of files may contain brackets.
            status.update(Text(what))

        def find_place(target: str, host: str | None) -> DevicePool:
            place = _place(asked, target, host, device_index)
            # Before anything is compiled.
            for count in threads or ():
                place.environment(count)
            return place

        network, place = _network(files, asked, batches, Path(folder), find_place, watch)
        result = scale(
            network,
            place,
            batches=batches or sorted(network.modules),
            threads=threads or [],
            devices=devices or [1],
            seconds=seconds,
            seed=random_seed,
            watch=watch,
        )
    if as_json:
        print_json({"files": [str(file) for file in files], **result.described()})
        return
    _print(result)


def _place(asked: Asked, target: str, host: str | None, device_index: int) -> DevicePool:
    from ..explain.scaling.devices import FarmDevices, LocalDevices
    from ..farm.network import Address

    if asked.tracker is None or asked.key is None:
        return LocalDevices.find(target, device_index)
    address = Address.parse(asked.tracker, asked.secret_file)
    return FarmDevices.find(address, asked.key, target, device_index, host)


def _network(
    files: Sequence[Path],
    asked: Asked,
    batches: list[int] | None,
    folder: Path,
    find_place: Callable[[str, str | None], DevicePool],
    watch: Callable[[str], object],
) -> tuple[Network, DevicePool]:
    from ..compiler.options import CompileOptions
    from ..devices.target import check_target
    from ..explain.scaling.devices import check_preset
    from ..explain.scaling.sources import (
        from_model,
        from_models,
        from_modules,
        is_batch_open,
    )

    if not any(file.suffix == _MODEL for file in files):
        if asked.target or asked.device or asked.host or asked.shape:
            raise typer.BadParameter("--target, --device, --host and --shape are for ONNX models.")
        network = from_modules(files)
        return network, find_place(network.target, network.host)
    if any(file.suffix != _MODEL for file in files):
        raise typer.BadParameter("ONNX models or modules are measured, not both together.")
    target, device = asked.target or "opencl", asked.device or "auto"
    check_target(target)
    if asked.tracker is not None:
        check_preset(target, device)
    elif asked.host is not None:
        raise typer.BadParameter("--host is for the servers of --tracker and --key.")
    place = find_place(target, asked.host)
    options = CompileOptions(
        target=target, device=device, host=asked.host, shapes=parse_shapes(asked.shape)
    )
    # A model with a fixed batch is measured with that, unless others are asked for.
    if len(files) > 1 or (batches is None and not is_batch_open(files[0])):
        return from_models(files, folder, options, watch), place
    return from_model(files[0], batches or _MODEL_BATCHES, folder, options, watch), place


def _numbers(name: str, text: str | None) -> list[int] | None:
    """Read positive whole numbers."""
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


def _print(result: Scaling) -> None:
    points, laws = result.points, result.laws
    base = next(point for point in points if point.measured)
    has_threads = any(point.threads is not None for point in points)
    console = out_console()
    columns = [">devices", ">batch", *([">threads"] if has_threads else [])]
    columns += [">median", ">samples/s", ">range", ">gain", "how"]
    rows = [_row(point, base, laws, has_threads) for point in points]
    title = f"Throughput, {result.target} on {result.device_name}"
    print_section(console, title, table(columns, rows))
    if laws:
        texts = [(f"law {number}", _law_text(law)) for number, law in enumerate(laws, 1)]
        title = "Laws: rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))"
        print_section(console, title, facts(texts))
    for why_not in dict.fromkeys(point.why_not for point in points if point.why_not):
        console.print(f"Not predicted: {why_not}.")


def _row(point: Point, base: Point, laws: Sequence[Law], has_threads: bool) -> tuple[str, ...]:
    cells: tuple[str, ...] = (str(point.devices), str(point.batch))
    if has_threads:
        cells = (*cells, str(point.threads))
    cells = (*cells, "" if point.median_ms is None else ms_text(point.median_ms))
    if point.items_per_s is None or base.items_per_s is None:
        return (*cells, "", "", "", "not predicted")
    numbers = " × ".join(str(laws.index(law) + 1) for law in point.laws)
    how = "measured" if point.measured else f"predicted, law {numbers}"
    spread = f"{_rate_text(point.low_per_s)}–{_rate_text(point.high_per_s)}"
    gain = f"{point.items_per_s / base.items_per_s:.2f}"
    return (*cells, _rate_text(point.items_per_s), spread, gain, how)


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
