"""``tvmflow compile``: an ONNX network to a module file; ``tvmflow precompile``: binaries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..compiler.options import CompileOptions
from ..devices.choices import STANDALONE
from ..ir.units import bytes_text
from .options import farm_of, in_panels, load_operators, with_compile_flags
from .output import err_console, note, note_file, print_json, print_table, state
from .places import Place
from .session import command
from .text import ms_text

if TYPE_CHECKING:
    from ..module.module import Module
    from ..module.standalone.precompile import Precompiled
    from ..runtime.json_types import JsonObject

COMPILE_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow compile mobilenet_v2.onnx
      for this machine's OpenCL device; writes mobilenet_v2.so
  tvmflow compile net.onnx --shape image=1,3,224,224 -o net.so
      if the model leaves the batch size or the image size open
  tvmflow compile net.onnx --shape image=1..8,3,?,? --at 224x224,320x240
      several shapes in one module: batches 1, 2, 4 and 8 of two sizes
  tvmflow compile net.onnx --device adreno --host linux-arm64
      for an Arm board with an Adreno GPU
  tvmflow compile net.onnx --device adreno --storage-overrides one.json -v
      with one.json {"stem_Clip": "buffer"}: storage of one tensor; -v prints every tensor
  tvmflow compile net.onnx --device adreno --journal mine.journal --journal adreno740
      with the results of your tuning, and of measurements on an Adreno 740
  tvmflow compile net.onnx --device adreno --host android-arm64 --standalone -o libnet.so
      one library for an Android app: network, kernels and runtime with a C interface
  tvmflow compile detector.onnx --ops my_ops.py
      with nodes of the domain ai.tvmflow that my_ops.py defines
  tvmflow compile net.onnx --result scores=softmax+topk:5
      the five largest probabilities, with their indices as an output scores_indices
  tvmflow compile net.onnx --target llvm --dump-ir ir/
      for the CPU, with the program after each stage in the folder ir
"""
PRECOMPILE_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow precompile libmobilenet.so
      on this machine's first OpenCL device
  tvmflow precompile libmobilenet.so --tracker 192.168.1.10:9190 --key rk3588
      --secret-file farm.secret
      on every free server of a farm that has this key
  tvmflow precompile libmobilenet.so --on adb
      on the attached phone
  tvmflow inspect libmobilenet.so
      shows the devices whose binaries there are

[bold]What is written[/bold]
  OUT.so.programs, next to the library: ship both. Other devices and drivers compile the
  kernels when they start.

[bold]Safety[/bold]
  Binaries are machine code that comes from the devices: use only devices that you trust.
"""


@command
@in_panels(
    Apps_and_phones="format standalone fallback alternatives choices cpu weights embed_limit",
    Pictures_and_results="image_input result",
    Precision="dtype calibrate accumulate",
    Expert="input bound storage storage_overrides algorithms knobs keep_layout check_indices "
    "cuda_graph dump_ir dump_ir_filter ops",
)
@with_compile_flags()
def compile_model(
    model: Path,
    context: typer.Context,
    options: CompileOptions,
    output: Annotated[
        Path | None, "OUT.so", "The module to write. Default: the model's name in this folder."
    ] = None,
    overwrite: Annotated[bool, "Replace OUT.so even if it is not a module."] = False,
    standalone: Annotated[bool, "The same as --format standalone."] = False,
    dump_ir: Annotated[Path | None, "DIR", "Write the IR after each stage and pass to DIR."] = None,
    dump_ir_filter: Annotated[
        str, "REGEX", "Write only passes whose names match; ^$ matches none."
    ] = "",
    ops: list[Path] | None = None,
) -> None:
    """Compile an ONNX network to a module file."""
    final = output or Path(model.with_suffix(".so").name)
    if model.exists() and final.exists() and model.samefile(final):
        raise typer.BadParameter(f"{final} is the model itself.", param_hint="'-o' / '--output'")
    if standalone:
        source = context.get_parameter_source("format")
        if options.format != STANDALONE and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"--standalone and --format {options.format} contradict each other."
            )
        options = replace(options, format=STANDALONE)
    from .. import compile as compile_network
    from ..module.files import staging
    from ..module.module import check_overwritten

    if not overwrite:
        check_overwritten(final)

    load_operators(ops)
    started = time.perf_counter()
    # Staged next to `final`, so that an unwritable folder is reported before the work, not after
    # it.
    with staging(final) as stage:
        with _stages() as progress:
            module = compile_network(
                model,
                options=options,
                file_name=final.name,
                dump_ir=dump_ir,
                dump_ir_filter=dump_ir_filter,
                work_folder=stage,
                progress=progress,
            )
        try:
            saved = module.save(final, overwrite=overwrite)
            _report(module, saved, time.perf_counter() - started)
        finally:
            module.close()


@contextmanager
def _stages() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show the progress of stages on a terminal."""
    console = err_console()
    if state.quiet or state.verbose or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("starting", total=None)

        def progress(name: str, index: int, total: int) -> None:
            display.update(task, description=name, completed=index, total=total)

        yield progress


def _report(module: Module, saved: Path, seconds: float) -> None:
    from ..module.artifact import SIDECAR_SUFFIX
    from ..module.storage_summary import counts, storage_summary

    meta, size = module.metadata, saved.stat().st_size
    # Saving removed the weights file of an earlier module.
    weights = saved.with_name(saved.name + SIDECAR_SUFFIX)
    weights_size = weights.stat().st_size if weights.is_file() else 0
    about = {
        "output": str(saved),
        "bytes": size,
        "weights_file": str(weights) if weights.is_file() else None,
        "weights_file_bytes": weights_size,
        "seconds": round(seconds, 3),
        **{key: meta[key] for key in ("target", "device", "host", "stage_ms")},
        **counts(meta),
        "placements": meta.get("placements", []),
    }
    if print_json(about):
        return
    what = f"{meta['target']} ({meta['device']}) on {meta['host']}"
    if len(module.variants) > 1:
        what = f"{len(module.variants)} shapes on {what}"
    note_file(saved, f" ({bytes_text(size)}) for {what} in {seconds:.1f} s")
    if weights.is_file():
        note_file(weights, f" ({bytes_text(weights_size)}): its weights, keep them next to it")
    note(("Tensors", "green"), f" between kernels: {storage_summary(meta)}")


@command
def precompile_library(
    library: Annotated[Path, typer.Argument(), "OUT.so", "A library of `compile --standalone`."],
    tracker: str | None = None,
    key: str | None = None,
    secret_file: Path | None = None,
    device_index: int = 0,
    on: str | None = None,
) -> None:
    """Store the binaries that devices' drivers build next to a standalone library.

    The library then starts on these devices without compiling its kernels.
    """
    from ..errors import FarmError
    from ..farm.precompile import precompile_on_farm
    from ..module.standalone.format import Section
    from ..module.standalone.precompile import Source, precompile, start_here
    from ..module.standalone.programs import sidecar_path, update

    if on is not None and (tracker or key):
        raise typer.BadParameter("--tracker and --key do not go with --on.")
    lent = farm_of(tracker, key, None if on else secret_file)
    source = Source.open(library)
    found: dict[str, Precompiled] = {}
    failed: dict[str, str] = {}
    changed: Counter[str] = Counter()
    answers: Iterator[tuple[str, Precompiled | str]]
    if on is not None:
        from ..agent.precompile import start_on

        with Place(on, secret_file).connect() as device:
            answers = iter([(on, precompile(source, start_on(device, device_index)))])
    elif lent is None:
        answers = iter([("this machine", precompile(source, start_here(device_index)))])
    else:
        answers = precompile_on_farm(source, *lent, device_index)
    for where, answer in answers:
        if isinstance(answer, str):
            note((f"{where} returned no binaries.", "yellow"))
            failed[where] = answer
            continue
        note((where, "bold"), f" returned {bytes_text(answer.binary_bytes)}.")
        found[where] = answer
        # Write at once, so that a later failure of other devices does not lose these binaries.
        changed.update(asdict(update(sidecar_path(library), answer.programs)))
    devices: list[JsonObject] = [
        {
            "where": where,
            "device": answer.device,
            "platform": answer.platform,
            "driver": answer.driver,
            "programs": len(answer.programs),
            "bytes": answer.binary_bytes,
            "start_without_ms": answer.without_ms,
            "start_with_ms": answer.with_ms,
        }
        for where, answer in found.items()
    ]
    refused = [{"where": where, "reason": reason} for where, reason in failed.items()]
    about = {"path": str(sidecar_path(library)), "devices": devices, "failed": refused, **changed}
    if not print_json(about) and devices:
        programs = len(source.plan[Section.PROGRAMS])
        rows = [
            (
                *(d["where"], d["device"], d["driver"]),
                str(programs) if d["programs"] == programs else f"{d['programs']} of {programs}",
                bytes_text(d["bytes"]),
                *map(ms_text, (d["start_without_ms"], d["start_with_ms"])),
            )
            for d in devices
        ]
        columns = ["where", "device", "driver", ">programs", ">size"]
        print_table(str(library), [*columns, ">start without", ">start with"], rows)
        if changed["damaged_bytes"]:
            size = bytes_text(changed["damaged_bytes"])
            note((f"The file was damaged: {size} of it are lost, the rest is kept.", "yellow"))
        done = [f"{changed[w]} {w}" for w in ("added", "replaced", "dropped") if changed[w]]
        note_file(sidecar_path(library), f": {', '.join(done)}")
    if failed:
        raise FarmError(
            f"Precompiling {library} returned the binaries of {len(found)} of "
            f"{len(found) + len(failed)} devices.",
            remedy="Run it again when the others are free or repaired: written binaries are kept.",
            details="\n".join(f"{where}: {reason}" for where, reason in failed.items()),
        )
