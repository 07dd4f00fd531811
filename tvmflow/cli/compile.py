"""``tvmflow compile``: an ONNX network to a module file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..compiler.options import CompileOptions
from ..devices.choices import STANDALONE
from .compile_flags import with_compile_flags
from .options import load_operators
from .output import bytes_text, err_console, note, note_file, print_json, state
from .session import command

if TYPE_CHECKING:
    from ..module.module import Module

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow compile mobilenet_v2.onnx
      for this machine's OpenCL device, to mobilenet_v2.so
  tvmflow compile net.onnx --shape image=1,3,224,224 -o net.so
      where the model leaves the batch size or the image size open
  tvmflow compile net.onnx --device adreno --host linux-arm64
      for an Arm board with an Adreno GPU
  tvmflow compile net.onnx --device adreno --storage-overrides one.json -v
      with one.json {"stem_Clip": "buffer"}: the storage of one tensor; -v prints every tensor
  tvmflow compile net.onnx --device adreno --journal mine.journal --journal adreno740
      with what tuning found, and what was measured on an Adreno 740
  tvmflow compile net.onnx --device adreno --host android-arm64 --standalone -o libnet.so
      one library for an Android app: network, kernels and runtime with a C interface
  tvmflow compile detector.onnx --ops my_ops.py
      with nodes of the domain ai.tvmflow that my_ops.py defines
  tvmflow compile net.onnx --target llvm --dump-ir ir/
      for the CPU, with the program after each stage in the folder ir
"""


@command
@with_compile_flags()
def compile_model(
    model: Path,
    context: typer.Context,
    options: CompileOptions,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output"),
        "OUT.so",
        "The module to write. Default: the model's name in this folder.",
    ] = None,
    standalone: Annotated[bool, "The same as --format standalone."] = False,
    dump_ir: Annotated[Path | None, "DIR", "Write the IR after each stage and pass to DIR."] = None,
    dump_ir_filter: Annotated[
        str, "REGEX", "Of the passes, only those whose names have this in them; ^$ is none."
    ] = "",
    ops: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Compile an ONNX network to a module file."""
    final = output or Path(model.with_suffix(".so").name)
    _refuse_overwriting(model, final)
    if standalone:
        source = context.get_parameter_source("format")
        if options.format != STANDALONE and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"--standalone and --format {options.format} contradict each other."
            )
        options = replace(options, format=STANDALONE)
    from .. import compile as compile_network
    from ..module.files import staging

    load_operators(ops)
    started = time.perf_counter()
    # Staged beside `final`: that it cannot be written is learnt before the work, not after it.
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
            saved = module.save(final)
            _report(module, saved, time.perf_counter() - started, as_json)
        finally:
            module.close()


def _refuse_overwriting(model: Path, final: Path) -> None:
    if model.exists() and final.exists() and model.samefile(final):
        raise typer.BadParameter(f"{final} is the model itself.", param_hint="'-o' / '--output'")


@contextmanager
def _stages() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show the stages while they run, where a person watches."""
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


def _report(module: Module, saved: Path, seconds: float, as_json: bool) -> None:
    from ..module.artifact import SIDECAR_SUFFIX
    from ..module.storage_summary import counts, storage_summary

    meta, size = module.metadata, saved.stat().st_size
    # A file of an earlier module is not there any more: saving removes it.
    weights = saved.with_name(saved.name + SIDECAR_SUFFIX)
    weights_size = weights.stat().st_size if weights.is_file() else 0
    if as_json:
        print_json(
            {
                "output": str(saved),
                "bytes": size,
                "weights_file": str(weights) if weights.is_file() else None,
                "weights_file_bytes": weights_size,
                "seconds": round(seconds, 3),
                **{key: meta[key] for key in ("target", "device", "host", "stage_ms")},
                **counts(meta),
                "placements": meta.get("placements", []),
            }
        )
        return
    what = f"{meta['target']} ({meta['device']}) on {meta['host']}"
    note_file(saved, f" ({bytes_text(size)}) for {what} in {seconds:.1f} s")
    if weights.is_file():
        note_file(weights, f" ({bytes_text(weights_size)}): its weights, which belong beside it")
    note(("Tensors", "green"), f" between kernels: {storage_summary(meta)}")
