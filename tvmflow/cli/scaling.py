"""``tvmflow bench --scaling``: what it reads and prints."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .formats import ms_text, print_section, table
from .options import parse_shapes
from .session import err_console, out_console, print_json

if TYPE_CHECKING:
    from ..scaling.fit import Fit
    from ..scaling.measure import Law, Point, Scaling
    from ..scaling.sources import Network

_MODEL_BATCHES = [1, 2, 4, 8]


@dataclass(frozen=True)
class Asked:
    """Options of the command that only go with ``--scaling``, as they are written."""

    batches: str | None
    threads: str | None
    devices: str | None
    target: str
    device: str
    shape: list[str]


def measure_scaling(
    files: Sequence[Path],
    asked: Asked,
    device_index: int,
    seconds: float,
    random_seed: int,
    as_json: bool,
) -> None:
    """Measure modules, or a model that is compiled for each batch, and print."""
    from ..scaling.measure import scale

    batches = _numbers("--batches", asked.batches)
    threads, devices = _numbers("--threads", asked.threads), _numbers("--devices", asked.devices)
    with (
        tempfile.TemporaryDirectory(prefix="tvmflow-scaling-") as folder,
        err_console().status("measuring"),
    ):
        network = _network(files, asked, batches, Path(folder))
        result = scale(
            network,
            batches=batches or sorted(network.modules),
            threads=threads or [],
            devices=devices or [1],
            device_index=device_index,
            seconds=seconds,
            seed=random_seed,
        )
    if as_json:
        print_json({"files": [str(file) for file in files], **asdict(result)})
        return
    _print(result)


def _network(
    files: Sequence[Path], asked: Asked, batches: list[int] | None, folder: Path
) -> Network:
    from ..scaling.sources import from_model, from_modules

    if any(file.suffix == ".onnx" for file in files):
        if len(files) > 1:
            raise typer.BadParameter("one ONNX model, or modules, are measured.")
        return from_model(
            files[0],
            _MODEL_BATCHES if batches is None else batches,
            folder,
            target=asked.target or "opencl",
            device=asked.device or "auto",
            shapes=parse_shapes(asked.shape),
        )
    if asked.target or asked.device or asked.shape:
        raise typer.BadParameter("--target, --device and --shape are for an ONNX model.")
    return from_modules(files)


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Read whole numbers; what is none of them is refused, their size is the library's to check."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{option} {text!r} is not of the form 1,2,4, whole numbers."
        ) from None


def _print(result: Scaling) -> None:
    points = result.points
    base = points[0].items_per_s
    has_threads = any(point.threads is not None for point in points)

    def row(point: Point) -> tuple[str, ...]:
        how = "measured" if point.measured else f"predicted: {point.law}"
        ms = point.median_ms
        cells: tuple[str, ...] = (str(point.devices), str(point.batch))
        if has_threads:
            cells = (*cells, str(point.threads))
        numbers = (f"{point.items_per_s:.1f}", f"{point.items_per_s / base:.2f} ×")
        return (*cells, "" if ms is None else ms_text(ms), *numbers, how)

    columns = [">devices", ">batch", *([">threads"] if has_threads else [])]
    columns += [">median", ">samples/s", ">gain", "how"]
    console = out_console()
    title = f"Throughput, {result.target} on {result.device_name}"
    print_section(console, title, table(columns, [row(point) for point in points]))
    laws = [law for law in result.laws if law.fit.points > 1]
    if laws:
        columns = ["over", "at", "law", ">with 1", ">contention", ">coherency", ">error", ">limit"]
        title = "Laws: rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))"
        print_section(console, title, table(columns, [_law_row(law) for law in laws]))
    if any("linear" in point.law for point in points):
        console.print("linear: one number was measured there, so this is an upper bound.")


def _law_row(law: Law) -> tuple[str, ...]:
    fixed: dict[str, Any] = {
        "batch": law.batch,
        "threads": law.threads,
        "devices": law.devices,
    }
    at = ", ".join(f"{name} {number}" for name, number in fixed.items() if number is not None)
    return (law.axis, at, *_fit_cells(law.fit))


def _fit_cells(fit: Fit) -> tuple[str, ...]:
    # With no more points than parameters, nothing is left to tell how well it fits.
    error = "not known" if fit.error is None else f"{100 * fit.error:.1f} %"
    limit = "" if fit.limit is None else f"{fit.limit:.1f}/s"
    coherency = f"{fit.coherency:.4f}" if fit.coherency else ""
    return (fit.law, f"{fit.rate:.1f}/s", f"{fit.contention:.3f}", coherency, error, limit)
