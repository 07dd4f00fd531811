"""``tvmflow lab`` and ``tvmflow schedules``: schedules step by step, and their families."""

from __future__ import annotations

from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from ..ir.units import bytes_text, ratio_text
from .output import err_console, out_console, print_json, print_table, state
from .session import command
from .text import ms_text, plain_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime.json_types import JsonObject

LAB_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow lab
      lists the labs
  tvmflow lab matmul --size 1024
      each step's time and speed compared with NumPy's, findings, and the step that removes them
  tvmflow lab matmul --steps blocked,parallel --block 32 --workers 2
      blocks of another size, on two threads
  tvmflow lab matmul --html lab.html
      a page with the tiles, loops, code and findings of each step
  tvmflow lab matmul --target cuda --show packed
      the schedule of a step as TVMScript, which needs no device
"""
SCHEDULES_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow schedules
  tvmflow inspect net.so --schedules
      the family and knobs of each primary function of a module
"""


def _names() -> list[str]:
    from ..schedules.lab import LABS

    return list(LABS)


@command
def run_lab(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=_names),
        "LAB",
        "The lab; without one, they are listed.",
    ] = None,
    size: Annotated[int | None, "N", "Problem size in the lab's unit; default the lab's."] = None,
    steps: Annotated[
        str | None, "NAME,...", "Only these steps: a naive step of a large size is slow."
    ] = None,
    block: Annotated[
        int | None,
        "N",
        "Block size of the steps that have blocks: register tiles on a CPU, items along a side of "
        "a work-group on a GPU.",
    ] = None,
    workers: Annotated[
        int | None, "N", "Threads that share parallel loops (llvm); default all."
    ] = None,
    batch: Annotated[
        int | None, "N", "Samples of a call, each with its own arguments; default 1."
    ] = None,
    html: Annotated[
        Path | None, "OUT.html", "Write a page: tiles, loops, code and findings of each step."
    ] = None,
    show: Annotated[str | None, "STEP", "Print this step's schedule; run nothing."] = None,
    seconds: Annotated[float, typer.Option(min=0.001), "Time for the calls of each step."] = 2.0,
    fresh_ceilings: bool = False,
    target: str = "llvm",
    device: str = "auto",
    device_index: int = 0,
    random_seed: int = 0,
) -> None:
    """Walk from a naive kernel to a fast one: each step is built, checked, timed and explained."""
    from ..schedules.lab import LABS, scheduled

    if name is None:
        if {size, steps, show, block, workers, batch, html} != {None}:
            raise InputError(
                "These options need a lab; there is none on the command line.",
                remedy="Name one, as in `tvmflow lab matmul`; `tvmflow lab` alone lists them.",
            )
        facts = "name", "summary", "size", "counts"
        labs = [{fact: getattr(lab, fact) for fact in facts} for lab in LABS.values()]
        if print_json(labs):
            return
        listed = [(d["name"], f"{d['size']:,}", d["counts"], d["summary"]) for d in labs]
        columns = ["lab", ">--size", "counts", "what it computes"]
        print_table(f"{len(listed)} labs", columns, listed)
        return
    if show is not None:
        from ..module.functions import tir_text

        script = tir_text(
            scheduled(name, show, size=size, target=target, device=device, block=block)
        )
        if not print_json({"lab": name, "step": show, "tir": script}):
            out_console().out(script, highlight=False)
        return
    from ..explain import lab
    from ..module.files import TEXT, check_writable

    if html is not None:
        check_writable(html, TEXT)
    with err_console().status("measuring", spinner="dots"):
        result = lab.run_lab(
            name,
            size=size,
            target=target,
            device=device,
            device_index=device_index,
            steps=steps.split(",") if steps else None,
            block=block,
            workers=workers,
            batch=1 if batch is None else batch,
            seconds=seconds,
            seed=random_seed,
            fresh_ceilings=fresh_ceilings,
        )
    if html is not None:
        from ..explain.lab_page import write_page

        write_page(html, result)
    if print_json(result):
        return
    console = out_console()
    rows = [
        (
            step.step,
            ms_text(step.times.median_ms),
            f"{step.speedup:.1f} ×",
            f"{step.gflops:.1f}",
            f"{step.gbps:.1f}",
            ratio_text(step.of_numpy),
            "" if step.of_peak is None else f"{100 * step.of_peak:.0f} %",
        )
        for step in result.steps
    ]
    numpy_ms = result.numpy_times.median_ms
    gflops, gbps = (count / numpy_ms / 1e6 for count in (result.operations, result.bytes))
    rows.append(("NumPy", ms_text(numpy_ms), "", f"{gflops:.1f}", f"{gbps:.1f}", "100 %", ""))
    title = (
        f"{result.lab}, size {result.size:,}{result.of_batch}: "
        f"{result.operations / 1e9:.3g} GFLOP on {bytes_text(result.bytes)}, "
        f"{result.target} on {result.device_name}"
    )
    columns = ["step", ">median", ">speed-up", ">GFLOP/s", ">GB/s", ">of NumPy", ">of peak"]
    print_table(title, columns, rows)
    if state.quiet:
        return
    for step, following in zip_longest(result.steps, result.steps[1:]):
        console.print(f"[bold]{step.step}[/bold]: {step.summary}")
        if step.removes:
            _print_indented(console, f"removes: {step.removes}")
        for finding in step.found:
            until = f"found, until {following.step}" if finding in step.removed else "found"
            where = f", line {finding.line}" if finding.line else ""
            _print_indented(console, f"{until}: {finding.kind}{where}: {finding.sentence}")
    if (peaks := result.ceilings) is not None:
        int8 = "" if peaks.int8_gops is None else f", int8 {peaks.int8_gops:.1f} GOP/s"
        fp32 = f"fp32 {peaks.fp32_gflops:.1f} GFLOP/s"
        console.print(f"Peaks: {fp32}{int8}, copy {peaks.copy_gbps:.1f} GB/s.")
    console.print(f"For comparison: {result.numpy}.")


def _print_indented(console: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    # As a Text, not as markup: indices are in brackets.
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


@command
def list_families() -> None:
    """List the schedule families in the order in which they are tried, with their knobs."""
    from ..schedules import FAMILIES

    described: list[JsonObject] = [
        {
            "name": family.NAME,
            "summary": plain_text(str(family.__doc__)),
            "knobs": [
                {"name": f.name, "type": f.type, "meaning": f.metadata["sentence"]}
                for f in fields(family.Knobs)
            ],
            "constraints": list(family.CONSTRAINTS),
        }
        for family in FAMILIES
    ]
    if print_json(described):
        return
    for family in described:
        rows = [(k["name"], k["type"], k["meaning"]) for k in family["knobs"]]
        columns = ["knob", "type", "meaning"] if rows else ["no knobs"]
        print_table(f"{family['name']}: {family['summary']}", columns, rows)
        for sentence in family["constraints"]:
            out_console().print(f"  - {sentence}", markup=False)
