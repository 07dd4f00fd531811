"""``tvmflow isa``: machine code of a module's kernels for a GPU that is not connected."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.units import counted
from .output import note, out_console, print_facts, print_json, print_table
from .session import command
from .text import times_text
from .yardsticks import print_yardsticks

if TYPE_CHECKING:
    from rich.console import Console

    from ..devices.gpus import Gpu
    from ..explain.isa.record import KernelCode, Report

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow isa --setup
      fetch Mesa's compilers from Debian into the cache folder; for others: --setup --gpu mali-g610
      (Mesa's compiler in an emulator) or --setup --gpu intel-tgl (Intel's ocloc)
  tvmflow isa net.so --gpu adreno-740
      registers, waves, issue slots of each kernel, and what may cost time
  tvmflow isa net.so --gpu adreno-660 --kernel conv2d3 --listing
      the machine code of the kernels with this text in their name
  tvmflow isa net.so --json > before.json
  tvmflow isa net.so --compare before.json
      the differences since then
"""

#: Number of printed findings, and their kernels' smallest share of the network's arithmetic.
_MAX_FINDINGS, _MIN_SHARE = 10, 0.01
_COLUMNS = (
    *("kernel", ">share", ">group", ">lanes", ">registers", ">waves", ">slots", ">idle", ">hot"),
    *(">mad", ">fetches", ">loads", ">spills"),
)
#: Columns that a narrow terminal leaves out, the first ones first.
_SPARE = (">fetches", ">loads", ">group", ">lanes", ">mad", ">idle", ">hot")


@command
def machine_code_of_module(
    module: Annotated[
        Path | None, typer.Argument(), "OUT.so", "A module or standalone library."
    ] = None,
    gpu: Annotated[
        str | None,
        "GPU",
        "adreno-660, adreno-740, adreno-830, mali-g610, amd-navi21, intel-dg2, sm_90 and others. "
        "Default: one that fits the module's device.",
    ] = None,
    kernel: Annotated[
        list[str] | None, "NAME", "Only kernels with this text in their name; repeatable."
    ] = None,
    listing: Annotated[bool, "Show the machine code."] = False,
    yardstick: Annotated[
        bool,
        "Show the times of TFLite's GPU delegate on three phones for each kernel's operator, or "
        "for the nearest one that was measured.",
    ] = False,
    compare: Annotated[
        Path | None,
        "OTHER",
        "Compare with another module, or with a file that --json printed earlier.",
    ] = None,
    setup: Annotated[bool, "Fetch the GPU's compiler from Debian into the cache folder."] = False,
    suite: Annotated[str, "NAME", "Debian suite that the compilers come from."] = "sid",
) -> None:
    """Show the machine code that a GPU's compiler makes of a module's kernels, without the GPU.

    Counts are of the code, not of an execution: they show registers, waves, spills and idle
    slots, but not the time. Mesa compiles for Adreno, Mali and AMD, ocloc for Intel, nvcc for
    NVIDIA.
    """
    if module is None and not setup:
        raise typer.BadParameter("a module (or --setup) was expected.")
    from ..devices.gpus import find_gpu, typical_gpu
    from ..explain.isa.kernels import metadata_of
    from ..explain.isa.record import read_report
    from ..explain.isa.report import machine_code

    if setup:
        _setup(find_gpu(gpu or "adreno-740"), suite)
        if module is None:
            return
    assert module is not None
    if gpu:
        chosen = find_gpu(gpu)
    else:
        about = metadata_of(module)
        chosen = typical_gpu(str(about["target"]), str(about["device"]))
    compiled = partial(machine_code, gpu=chosen, names=kernel or (), suite=suite)
    report, before = compiled(module, yardstick=yardstick), None
    if compare is not None:
        before = read_report(compare) if compare.suffix == ".json" else compiled(compare)
    if not print_json(report.to_json(with_listing=listing)):
        if before is not None:
            _print_changes(before, report)
        else:
            _print(report, listing)
            if yardstick:
                layers = [(each.kernel, each.yardstick) for each in report.kernels]
                print_yardsticks(layers, "kernel", out_console())
    if report.failures:
        raise typer.Exit(1)


def _setup(gpu: Gpu, suite: str) -> None:
    from ..explain.isa.packages import setup

    tree = setup(gpu, suite)
    versions = json.loads((tree.root / "versions.json").read_text())
    name = "intel-ocloc" if gpu.isa == "xe" else "mesa-opencl-icd"
    note(f"{name} {versions[name]} for {gpu.name} is in ", (str(tree.root), "bold"))


def _print(report: Report, with_listing: bool) -> None:
    totals = report.totals()
    about = [
        ("network", report.name),
        ("compiled for", report.device),
        ("GPU", report.gpu),
        ("compiler", report.compiler),
        ("kernels", counted(totals["kernels"], "kernel")),
        ("issue slots", f"{totals['issue']:,}, {totals['idle']:,} of them idle"),
        ("multiply-adds", f"{totals['multiply_adds']:,}"),
        ("spills", f"{totals['spills']:,} in {counted(totals['spilling_kernels'], 'kernel')}"),
    ]
    console = out_console()
    print_facts(report.path, about, console)
    units = sorted({unit for each in report.kernels for unit in each.cycles})
    rows = [
        [*_cells(each, report), *(f"{each.cycles.get(unit, 0):g}" for unit in units)]
        for each in report.kernels
    ]
    extra = [f">{unit}" for unit in units]
    print_table("Kernels", [*_COLUMNS, *extra], rows, console, (*reversed(extra), *_SPARE))
    if units:
        console.print(f"{', '.join(units)}: cycles of each unit for one work-item.")
    for failure in report.failures:
        note((f"{failure.kernel}: {failure.reason}", "red"))
    _print_findings(report, console)
    if with_listing:
        for each in report.kernels:
            console.print(f"\n{each.kernel}", style="bold")
            console.out(each.listing, highlight=False)


def _print_findings(report: Report, console: Console) -> None:
    """Print the findings that cost most; JSON has all."""
    shares = {each.kernel: report.share(each.kernel) for each in report.kernels}
    found = [each for each in report.findings if shares[each.kernel] >= _MIN_SHARE]
    found.sort(key=lambda finding: -finding.share * shares[finding.kernel])
    for each in found[:_MAX_FINDINGS]:
        text = f"  {each.kernel} ({shares[each.kernel]:.0%}): {each.sentence} {each.remedy}"
        console.print(text, markup=False)
    if left := len(report.findings) - len(found[:_MAX_FINDINGS]):
        note(f"{counted(left, 'finding')} that cost less, or of kernels with less than "
             f"{_MIN_SHARE:.0%} of the arithmetic, are in --json.")  # fmt: skip


def _cells(kernel: KernelCode, report: Report) -> list[str | int]:
    filled = kernel.lanes_filled
    return [
        kernel.kernel,
        f"{report.share(kernel.kernel):.1%}" if kernel.flops is not None else "-",
        times_text(kernel.group) if kernel.group else "-",
        f"{filled:.0%}" if filled is not None else "-",
        kernel.registers,
        kernel.waves,
        kernel.whole.issue,
        kernel.whole.idle,
        "all" if kernel.is_straight else kernel.hot.issue,
        f"{kernel.multiply_add_share:.0%}",
        kernel.hot.fetches,
        kernel.hot.loads,
        kernel.spills,
    ]


def _print_changes(before: Report, after: Report) -> None:
    """Print the differences between two reports, kernel by kernel."""
    print_facts(
        after.path,
        [("before", f"{before.path}, {before.gpu}, {before.compiler}"),
         ("after", f"{after.path}, {after.gpu}, {after.compiler}")],
    )  # fmt: skip
    was, now = ({each.kernel: _cells(each, report)[1:] for each in report.kernels}
                for report in (before, after))  # fmt: skip
    rows = []
    for name in dict.fromkeys([*was, *now]):
        old, new = was.get(name), now.get(name)
        if old is None or new is None:
            rows.append([name, *["-"] * (len(_COLUMNS) - 2), "new" if old is None else "gone"])
        elif old != new:
            pairs = zip(old, new, strict=True)
            rows.append([name, *(f"{a}" if a == b else f"{a} → {b}" for a, b in pairs)])
    print_table("Kernels that differ", list(_COLUMNS), rows)
    sums = zip(before.totals().items(), after.totals().values(), strict=True)
    print_table("Totals", ["", ">before", ">after"], [(n, a, b) for (n, a), b in sums])
