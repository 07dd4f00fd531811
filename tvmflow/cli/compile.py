"""``tvmflow compile``: an ONNX network to a module file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .formats import bytes_text
from .options import (
    Accumulate,
    Debug,
    DeviceName,
    Dtype,
    InputShapes,
    Json,
    ModelFile,
    OpsFiles,
    Quiet,
    Storage,
    TargetName,
    Verbose,
    load_operators,
    parse_keep_layout,
    parse_shapes,
)
from .session import command, err_console, note, note_file, print_json, state

if TYPE_CHECKING:
    from ..deploy.module import Module

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
def compile_model(
    model: ModelFile,
    target: TargetName = "opencl",
    device: DeviceName = "auto",
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The machine that loads the module: linux-x64, linux-arm64, android-arm64, or a "
            "triple. Default: this one.",
        ),
    ] = None,
    shape: InputShapes = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT.so",
            help="The module to write. Default: the model's name in this folder.",
        ),
    ] = None,
    storage: Storage = "auto",
    storage_overrides: Annotated[
        Path | None,
        typer.Option(
            "--storage-overrides",
            metavar="FILE",
            help="JSON object (or TOML table, in a file *.toml) of tensors' names with texture or "
            "buffer: these tensors are kept there, whatever --storage says.",
        ),
    ] = None,
    dtype: Dtype = "fp32",
    accumulate: Accumulate = "fp32",
    knobs: Annotated[
        Path | None,
        typer.Option(
            "--knobs",
            metavar="FILE",
            help="JSON object of primary functions' names with their knobs, as inspect --schedules "
            "prints them, instead of those that the heuristics choose.",
        ),
    ] = None,
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="Tuning journal whose measured knobs are used instead of the heuristics', and "
            "whose algorithms and storage instead of the cost models'; "
            "repeatable, the first one that has something for a function counts. adreno660 and "
            "adreno740 stand for those that ship with tvmflow.",
        ),
    ] = None,
    keep_layout: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-layout",
            metavar="NAME=nchw4c|texture",
            help="An input or output that the application has in blocks of four channels, in a "
            "buffer or an image; repeatable. The others have the layout of the ONNX model.",
        ),
    ] = None,
    algorithms: Annotated[
        Path | None,
        typer.Option(
            "--algorithms",
            metavar="FILE",
            help="JSON object (or TOML table, in a file *.toml) of convolutions' names with "
            "direct, gemm (for cuda), winograd2 or winograd4, instead of what seems cheapest. -v "
            "prints every convolution.",
        ),
    ] = None,
    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph",
            help="Launch all kernels at once, as a CUDA graph that the first run captures. For "
            "the target cuda.",
        ),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="tvm|standalone",
            help="A module for TVM's runtime, or a library with a C interface (tvmflow.h) that "
            "needs nothing but the device's OpenCL.",
            show_default="tvm",
            autocompletion=lambda: ["tvm", "standalone"],
        ),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="The same as --format standalone.")
    ] = False,
    dump_ir: Annotated[
        Path | None,
        typer.Option("--dump-ir", metavar="DIR", help="Write the IR after each stage to DIR."),
    ] = None,
    embed_limit: Annotated[
        int,
        typer.Option(
            "--embed-limit",
            metavar="MB",
            min=0,
            help="Weights of more than this in total go to OUT.so.weights, beside the module.",
        ),
    ] = 512,
    ops: OpsFiles = None,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Compile an ONNX network to a module file."""
    shapes = parse_shapes(shape or [])
    kept = parse_keep_layout(keep_layout or [])
    final = output or Path(model.with_suffix(".so").name)
    _refuse_overwriting(model, final)
    if standalone and format not in (None, "standalone"):
        raise typer.BadParameter(f"--standalone and --format {format} contradict each other.")
    from .. import compile as compile_network
    from ..deploy.files import staging
    from ..knobs import read_knobs_file
    from ..texture.asked_algorithms import read_algorithms
    from ..texture.overrides import read_overrides

    load_operators(ops)
    given = read_knobs_file(knobs) if knobs else None
    overrides = read_overrides(storage_overrides) if storage_overrides else None
    chosen = read_algorithms(algorithms) if algorithms else None
    started = time.perf_counter()
    # Staged beside `final`: that it cannot be written is learnt before the work, not after it.
    with staging(final) as stage:
        with _stages() as progress:
            module = compile_network(
                model,
                target=target,
                device=device,
                host=host,
                shapes=shapes or None,
                storage=storage,
                storage_overrides=overrides,
                dtype=dtype,
                accumulate=accumulate,
                algorithms=chosen,
                knobs=given,
                journals=journal or (),
                keep_layout=kept,
                cuda_graph=cuda_graph,
                format="standalone" if standalone else format or "tvm",
                file_name=final.name,
                dump_ir=dump_ir,
                embed_limit_bytes=embed_limit * 10**6,
                work_folder=stage,
                progress=progress,
            )
        try:
            saved = module.save(final)
            seconds = time.perf_counter() - started
            if as_json:
                print_json(_describe(module, saved, seconds))
            else:
                _report(module, saved, seconds)
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
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("starting", total=None)

        def progress(name: str, index: int, total: int) -> None:
            display.update(task, description=name, completed=index, total=total)

        yield progress


def _sizes(path: Path) -> tuple[int, Path | None, int]:
    """Return the module's size, and its weights file with its size."""
    from ..deploy.reader import SIDECAR_SUFFIX

    # A file of an earlier module is not there any more: saving removes it.
    sidecar = path.with_name(path.name + SIDECAR_SUFFIX)
    if not sidecar.is_file():
        return path.stat().st_size, None, 0
    return path.stat().st_size, sidecar, sidecar.stat().st_size


def _describe(module: Module, saved: Path, seconds: float) -> dict[str, Any]:
    from ..deploy.storage_summary import counts

    size, sidecar, sidecar_bytes = _sizes(saved)
    return {
        "output": str(saved),
        "bytes": size,
        "weights_file": str(sidecar) if sidecar else None,
        "weights_file_bytes": sidecar_bytes,
        "seconds": round(seconds, 3),
        **{key: module.metadata[key] for key in ("target", "device", "host", "stage_ms")},
        **counts(module.metadata),
        "placements": module.metadata.get("placements", []),
    }


def _report(module: Module, saved: Path, seconds: float) -> None:
    from ..deploy.storage_summary import storage_summary

    meta = module.metadata
    size, sidecar, sidecar_bytes = _sizes(saved)
    what = f"{meta['target']} ({meta['device']}) on {meta['host']}"
    note_file(saved, f" ({bytes_text(size)}) for {what} in {seconds:.1f} s")
    if sidecar is not None:
        note_file(sidecar, f" ({bytes_text(sidecar_bytes)}): its weights, which belong beside it")
    note(("Tensors", "green"), f" between kernels: {storage_summary(meta)}")
