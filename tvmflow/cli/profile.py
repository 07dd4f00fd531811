"""``tvmflow profile``: time of each kernel of a network, compared with the device's peaks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..devices.choices import PRECISIONS
from ..ir.units import bytes_text, counted
from .options import with_flags, words
from .output import note, note_file, out_console, print_facts, print_json, print_launches
from .places import MODEL, Place, Requested, opened_there
from .session import command
from .text import ms_text
from .yardsticks import print_yardsticks

if TYPE_CHECKING:
    from rich.console import Console

    from ..devices.device_file import DeviceFile
    from ..explain.isa.record import Report
    from ..explain.profiling.record import KernelLaunch, Profile
    from ..module.module import Module

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow profile net.so
      time, rates and share of the roofline for every kernel
  tvmflow profile net.so --trace trace.json
      a timeline for ui.perfetto.dev or chrome://tracing
  tvmflow profile net.so --yardstick
      next to each layer, the times of TFLite's GPU delegate on three phones
  tvmflow profile net.so --json > before.json
  tvmflow profile net.so --html report.html
      a page: roofline, time by layer, timeline and memory, kernels with their code
  tvmflow profile net.so --html report.html --compare before.json
      two profiles next to each other
  tvmflow profile net.so --html report.html --isa adreno-740
      next to each kernel, its machine code for another GPU (tvmflow isa --setup)
  tvmflow profile phone.json --html phone.html
      measures nothing: the page for a profile from another machine
  tvmflow profile net.onnx --on adb --device pixel8.json --html phone.html
      on the attached phone, with the ceilings that `tvmflow probe` measured there
"""

_MAX_FINDINGS = 10

_COLUMNS = (
    *("nodes", "kernel", ">median", ">p10 - p90", ">share", ">MFLOP", ">MB", ">GFLOP/s", ">GB/s"),
    *(">FLOP/B", ">roofline", "bound"),
)
#: Columns that fit next to names in 80 columns, and the width that all columns need.
_NARROW = ("nodes", ">median", ">share", ">GFLOP/s", ">GB/s", ">FLOP/B", ">roofline", "bound")
_WIDTH = 150


@command
def profile_module(
    module: Path,
    runs: Annotated[
        int | None, typer.Option(min=1, show_default="20"), "Measure this many runs."
    ] = None,
    trace: Annotated[Path | None, "TRACE.json", "Write a timeline of a run."] = None,
    html: Annotated[Path | None, "REPORT.html", "Write a page with the whole profile."] = None,
    compare: Annotated[
        Path | None,
        "BEFORE.json",
        "On that page, show the profile that --json printed earlier next to this one.",
    ] = None,
    isa: Annotated[
        list[str] | None,
        "GPU",
        "On that page, show the machine code of the kernels from this GPU's compiler, or from a "
        "file that tvmflow isa --json printed; repeatable.",
    ] = None,
    fresh_ceilings: bool = False,
    no_findings: Annotated[bool, "Leave out the analysis of kernels, which takes time."] = False,
    yardstick: Annotated[
        bool,
        "Show the times of TFLite's GPU delegate on three phones for each layer's operator, or for "
        "the nearest one that was measured.",
    ] = False,
    busy: Annotated[
        bool, "Report findings although other programs use more than a tenth of the processors."
    ] = False,
    inputs: Path | None = None,
    random_seed: int = 0,
    of_shape: list[str] | None = None,
    of_extents: str | None = None,
    device_index: int = 0,
    check_weights: bool = True,
    on: str | None = None,
    secret_file: Path | None = None,
    target: Annotated[
        str | None, words("opencl", "llvm"), "For an ONNX model with --on: default opencl."
    ] = None,
    device: Annotated[
        str | None,
        "DEVICE",
        "With --on: a device file of `tvmflow probe`, whose rates are the ceilings; for an ONNX "
        "model also what its kernels are for, or a preset.",
    ] = None,
    dtype: Annotated[
        str | None,
        words(*PRECISIONS),
        "For an ONNX model with --on: precision of tensors, default fp16 on GPUs that have it.",
    ] = None,
) -> None:
    """Measure each kernel of a network, and report what limits it.

    Operations and bytes are counted in the generated code. Ceilings are measured once on this
    device, by kernels that do only one thing, and cached.

    With --on the kernels are measured on that device. An ONNX model is first compiled for it; a
    standalone library carries no operations and bytes.

    Instead of a module, a profile that --json printed (FILE.json) can be shown again.
    """
    if html is None and (compare is not None or isa):
        raise typer.BadParameter("--compare and --isa go with --html.")
    if trace is not None and trace == html:
        raise typer.BadParameter("--trace and --html name the same file.")
    is_profile = module.suffix == ".json"
    measuring = {
        "--runs": runs is not None,
        "--fresh-ceilings": fresh_ceilings,
        "--no-findings": no_findings,
        "--yardstick": yardstick,
        "--busy": busy,
        "--inputs": inputs is not None,
        "--random-seed": random_seed != 0,
        "--shape": bool(of_shape),
        "--at": of_extents is not None,
        "--device-index": device_index != 0,
        "--no-check-weights": not check_weights,
    }
    if is_profile and (given := [option for option, is_given in measuring.items() if is_given]):
        raise typer.BadParameter(
            f"{', '.join(given)} are for modules: {module} is shown as it was measured."
        )
    if on is None and (target or device or dtype or secret_file):
        raise typer.BadParameter("--target, --device, --dtype and --secret-file go with --on.")
    if on is not None and (is_profile or fresh_ceilings):
        raise typer.BadParameter("--fresh-ceilings and measured profiles do not go with --on.")
    from ..explain.profiling.page.write import page_text
    from ..explain.profiling.reading import read_profile
    from ..explain.profiling.trace import trace as trace_of
    from ..module.files import TEXT, publish, staging

    with ExitStack() as stack:
        # Report unreadable or unwritable files before minutes of measuring.
        stages = {path: stack.enter_context(staging(path, TEXT)) for path in (trace, html) if path}
        codes = [_machine_code(module, each) for each in isa or ()]
        before = None if compare is None else read_profile(compare)
        if is_profile:
            found = read_profile(module)
        else:
            # Showing a profile needs no TVM.
            from .. import load
            from ..explain.profiling.measure import DEFAULT_RUNS, profile
            from .arrays import choose_inputs
            from .shapes import chosen

            functions_of: Module | None = None
            file: DeviceFile | None = None
            whole: Module
            if on is not None:
                file = _device_file(module, target or dtype, device)
                requested = Requested(target, device, dtype, of_shape or [], device_index, "auto")
                place = Place(on, secret_file)
                opened = stack.enter_context(opened_there(module, place, requested, describes=True))
                whole, of_shape, functions_of = opened.module, opened.shape, opened.functions_of
            else:
                whole = load(module, device=device_index, check_weights=check_weights)
                stack.callback(whole.close)
            network = chosen(whole, of_shape, of_extents) or whole.variants[0]
            values = choose_inputs(inputs, random_seed, network)
            found = profile(
                network,
                values,
                runs=runs or DEFAULT_RUNS,
                fresh_ceilings=fresh_ceilings,
                analyse=not no_findings,
                busy=busy,
                functions_of=functions_of,
                device_file=file,
                yardstick=yardstick,
            )
            if on is not None:
                # A model's library is a temporary file.
                found = replace(found, module=replace(found.module, path=str(module)))
        for path, stage in stages.items():
            if path == html:
                text = page_text(found, before, codes)
            else:
                text = json.dumps(trace_of(found), ensure_ascii=False)
            written = stage / path.name
            written.write_text(text, encoding="utf-8")
            publish({written: path})
            note_file(path)
    if print_json(found.to_json()):
        return
    _print(out_console(), found, yardstick=yardstick)


def _device_file(file: Path, compiled: str | None, device: str | None) -> DeviceFile | None:
    """Return the device file of ``--device``, if it names one.

    ``compiled`` is one of the other options of a compilation, if any was given.
    """
    from ..devices.device_file import DeviceFile, is_device_file

    if file.suffix != MODEL and (compiled or (device and not is_device_file(device))):
        raise typer.BadParameter("--target, --dtype, and presets as --device, are for ONNX models.")
    return DeviceFile.read(Path(device)) if device and is_device_file(device) else None


def _machine_code(module: Path, choice: str) -> Report:
    """Return the machine code of a module for a GPU, or the report in a file."""
    if choice.endswith(".json"):
        from ..explain.isa.record import read_report

        return read_report(Path(choice))
    if module.suffix == ".json":
        raise typer.BadParameter(
            f"--isa {choice} is for modules: {module} has no kernels to compile. Name what "
            "`tvmflow isa --json` printed of the module."
        )
    from ..devices.gpus import find_gpu
    from ..explain.isa.report import machine_code

    return machine_code(module, find_gpu(choice))


def _print(console: Console, profile: Profile, *, yardstick: bool = False) -> None:
    print_facts("Time", _times(profile), console)
    if (found := profile.ceilings) is not None:
        rates = {
            **{f"copy in {each.name}": (each.gbps, "GB/s") for each in found.caches},
            "copy": (found.copy_gbps, "GB/s"),
            "texture": (found.texture_gbps, "GB/s"),
            "fp32": (found.fp32_gflops, "GFLOP/s"),
            "fp16": (found.fp16_gflops, "GFLOP/s"),
            "int8": (found.int8_gops, "GOP/s"),
            "launch": (found.launch_us, "µs"),
        }
        known = [(name, f"{v:.1f} {unit}") for name, (v, unit) in rates.items() if v is not None]
        if (measured := found.measured_text()) is not None:
            known.append(("measured", measured))
        print_facts(f"Ceilings of {profile.device.name}", known, console)
    kernels = sorted(profile.kernels, key=lambda kernel: -kernel.median_us)
    total = sum(kernel.median_us for kernel in kernels)
    cells = [_cells(kernel, total) for kernel in kernels]
    is_narrow = console.is_terminal and console.width < _WIDTH
    columns = _NARROW if is_narrow else _COLUMNS
    for row in cells:
        row["nodes"] = row["nodes"] or (row["kernel"] if is_narrow else "-")
    rows = [[row[column] for column in columns] for row in cells]
    by_device = all(kernel.clock == "device" for kernel in kernels)
    print_launches(columns, rows, total, by_device=by_device, console=console)
    if is_narrow:
        console.print("A wider terminal shows more columns; --json and --html have all.")
    if yardstick or any(kernel.yardstick for kernel in kernels):
        layers = [(", ".join(kernel.nodes), kernel.yardstick) for kernel in kernels]
        print_yardsticks(layers, "nodes", console)
    _print_findings(console, profile)
    for sentence in profile.notes:
        note(with_flags(sentence))


def _print_findings(console: Console, profile: Profile) -> None:
    """Print the findings that may save most time; the page has all."""
    worth = [(profile.worth_us(finding), finding) for finding in profile.findings]
    worth.sort(key=lambda one: -one[0])
    if not worth:
        return
    shown = worth[:_MAX_FINDINGS]
    title = counted(len(worth), "finding")
    if len(shown) < len(worth):
        title += f", {len(shown)} that may save most"
    console.print(f"[bold]{title}[/bold]")
    for us, finding in shown:
        where = f", line {finding.line}" if finding.line else ""
        cost = ", ".join(f"{count:,.0f} {unit}" for unit, count in finding.cost.items())
        text = f"{finding.kernel or 'the call'}: {finding.kind}{where}: {finding.sentence}"
        # Not as markup: indices are in brackets.
        console.print(text, highlight=False, markup=False)
        worth_text = (
            f"  costs {cost}, up to {ms_text(us / 1e3)} a run. {with_flags(finding.remedy)}"
        )
        console.print(worth_text, highlight=False, markup=False)


def _times(profile: Profile) -> list[tuple[str, str]]:
    whole, first = profile.whole, profile.first_call
    parts = {name: getattr(first, f"{name}_ms") for name in ("load", "upload", "build", "run")}
    begun = ", ".join(f"{name} {ms_text(ms)}" for name, ms in parts.items() if ms is not None)

    def of_call(ms: float) -> str:
        share = f", {ms / whole.median_ms:.1%} of a call" if whole.median_ms else ""
        return f"{ms_text(ms)}{share}"

    spread = f"p10 {ms_text(whole.p10_ms)}, p90 {ms_text(whole.p90_ms)}"
    rows = [
        ("first call", begun),
        ("a call", f"{ms_text(whole.median_ms)} ({spread}), {counted(profile.runs, 'run')}"),
        ("in kernels", of_call(profile.kernels_ms)),
    ]
    gaps = len(profile.kernels) - 1
    if profile.has_device_clock and gaps > 0:
        each = f"{counted(gaps, 'gap')}, {1e3 * profile.between_ms / gaps:.1f} µs each"
        rows.append(("between kernels", f"{of_call(profile.between_ms)} ({each})"))
    rows.append(("host and copies", of_call(profile.host_ms)))
    if profile.memory:
        live = max(step.live_bytes for step in profile.memory)
        weights = bytes_text(profile.weights_bytes)
        rows.append(("memory", f"weights {weights}, tensors {bytes_text(live)} at most"))
    return rows


def _cells(kernel: KernelLaunch, total_us: float) -> dict[str, str]:
    """Return the cells of a launch by column."""

    def number(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    share, moved = kernel.roofline_share, None
    if kernel.bytes_read is not None and kernel.bytes_written is not None:
        moved = (kernel.bytes_read + kernel.bytes_written) / 1e6
    # The spread uses the unit of the median.
    unit, factor = ("µs", 1.0) if kernel.median_us < 1e3 else ("ms", 1e-3)
    return {
        "nodes": ", ".join(kernel.nodes),
        "kernel": kernel.name,
        ">median": f"{factor * kernel.median_us:.1f} {unit}",
        ">p10 - p90": f"{factor * kernel.p10_us:.1f} - {factor * kernel.p90_us:.1f}",
        ">share": f"{kernel.median_us / total_us:.1%}" if total_us else "",
        ">MFLOP": number(None if kernel.flops is None else kernel.flops / 1e6, 2),
        ">MB": number(moved, 2),
        ">GFLOP/s": number(kernel.gflops),
        ">GB/s": number(kernel.gbps),
        ">FLOP/B": number(kernel.intensity, 2),
        ">roofline": "" if share is None else f"{share:.0%}",
        "bound": kernel.bound or "",
    }
