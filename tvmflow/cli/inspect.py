"""``tvmflow inspect``: what a module file says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .formats import (
    bytes_text,
    facts,
    ms_text,
    option_text,
    print_section,
    shape_text,
    table,
    tensors_table,
)
from .host_abi import inspect_host_abi
from .memory import memory_plan, print_memory, print_placements, write_picture
from .options import Debug, Json, ModuleFile, Quiet, Verbose
from .schedules import print_algorithms, print_schedules
from .session import command, note, note_file, out_console, print_json

if TYPE_CHECKING:
    from ..module.artifact import Artifact

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow inspect net.so
  tvmflow inspect net.so --kernels --weights
  tvmflow inspect net.so --memory --memory-svg plan.svg
      which intermediate tensors share memory, as tables and as a picture
  tvmflow inspect net.so --check
      compares every byte with the digests it was written with
  tvmflow inspect net.so --json | jq .inputs
  tvmflow inspect libnet.so --host-abi --host android-arm64
      whether such a machine loads it: what it needs, alignment, symbols; status 1 if not
"""


@command
def inspect_module(
    module: ModuleFile,
    kernels: Annotated[bool, typer.Option("--kernels", help="List the kernels.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="List the weights.")] = False,
    placements: Annotated[
        bool, typer.Option("--placements", help="List where each tensor is kept, and why.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show the plan of intermediate memory.")
    ] = False,
    memory_svg: Annotated[
        Path | None,
        typer.Option("--memory-svg", metavar="OUT.svg", help="Draw that plan over time."),
    ] = None,
    schedules: Annotated[
        bool,
        typer.Option("--schedules", help="List the schedule family and knobs of each function."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare code and weights with their digests.")
    ] = False,
    host_abi: Annotated[
        bool,
        typer.Option(
            "--host-abi",
            help="Check what the library asks of the machine that loads it, and only that; any "
            "ELF library. The exit status is 1 if a rule of that machine is broken.",
        ),
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The machine for --host-abi, such as android-arm64. Default: the one that the "
            "file looks to be made for.",
        ),
    ] = None,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Show target, inputs, outputs, kernels, weights and versions of a module.

    Nothing of the module is run or loaded: modules for other machines can be inspected.
    """
    if host is not None and not host_abi:
        raise typer.BadParameter("--host goes with --host-abi.")
    if host_abi:
        inspect_host_abi(module, host, as_json)
        return
    from ..module.artifact import read_artifact
    from ..module.standalone.read import find_plan
    from .inspect_standalone import Asked, inspect_standalone

    encoded = find_plan(module) if module.is_file() else None
    if encoded is not None:
        if placements or schedules or memory_svg:
            raise typer.BadParameter(
                f"{module} is a standalone library, which carries no placements, schedules or "
                "pictures of its memory; compile -v prints the first two, --memory lists the last."
            )
        inspect_standalone(module, encoded, Asked(kernels, weights, memory, check, as_json))
        return
    artifact = read_artifact(module)
    if check:
        artifact.check()
    plan = memory_plan(module, artifact.metadata) if memory or memory_svg else None
    if plan is not None and memory_svg is not None:
        write_picture(plan, str(artifact.metadata["name"]), memory_svg)
        note_file(memory_svg)
    if as_json:
        print_json(_describe(artifact, check))
        return
    if not memory_svg or memory or kernels or weights or placements or schedules:
        _print(artifact, kernels, weights)
    if placements:
        print_placements(out_console(), artifact.metadata.get("placements", []))
    if schedules:
        print_algorithms(out_console(), artifact.metadata.get("algorithms", []))
        print_schedules(out_console(), artifact.metadata.get("schedules", {}))
    if plan is not None and memory:
        print_memory(out_console(), plan)
    if check:
        note(("Every byte is what was written.", "green"))


def _sizes(artifact: Artifact) -> dict[str, Any]:
    sidecar = artifact.sidecar
    return {
        "file": artifact.path.stat().st_size,
        "library": artifact.library_bytes,
        "weights": artifact.weights_bytes,
        "weights_file": sidecar.stat().st_size if sidecar else 0,
    }


def _describe(artifact: Artifact, checked: bool) -> dict[str, Any]:
    return {
        "path": str(artifact.path),
        **artifact.metadata,
        "weights_path": str(artifact.weights_path) if artifact.weights_path else None,
        "architecture": artifact.architecture,
        "sizes": _sizes(artifact),
        "checked": checked,
    }


def _weights_text(artifact: Artifact) -> str:
    if not artifact.weights:
        return "in the library"
    where = f"beside it in {artifact.sidecar.name}" if artifact.sidecar else "in the file"
    return f"{len(artifact.weights)} {where}, {bytes_text(artifact.weights_bytes)}"


def _print(artifact: Artifact, with_kernels: bool, with_weights: bool) -> None:
    from ..module.storage_summary import storage_summary

    meta, sizes, console = artifact.metadata, _sizes(artifact), out_console()
    about = [
        ("network", str(meta["name"])),
        ("target", f"{meta['target']} ({meta['device']})"),
        ("host", str(meta["host"])),
        ("size", f"{bytes_text(sizes['file'])}, library {bytes_text(sizes['library'])}"),
        ("weights", _weights_text(artifact)),
        ("kernels", str(len(meta["kernels"]))),
        ("storage", storage_summary(meta) if "memory" in meta else "unknown"),
        *([("chosen by", settled)] if (settled := meta.get("settled_storage")) else []),
        *([("needs", ", ".join(meta["extensions"]))] if meta.get("extensions") else []),
        ("versions", f"tvmflow {meta['tvmflow']}, TVM {meta['tvm']}, format {meta['format']}"),
        ("options", ", ".join(option_text(k, v) for k, v in meta["options"].items()) or "none"),
        ("compiled in", ms_text(sum(meta["stage_ms"].values()))),
    ]
    print_section(console, str(artifact.path), facts(about))
    for title, infos in (("Inputs", artifact.inputs), ("Outputs", artifact.outputs)):
        print_section(console, title, tensors_table(infos))
    if with_kernels:
        names = [(str(k["name"]), str(k["function"])) for k in meta["kernels"]]
        print_section(console, "Kernels", table(["kernel", "primary function"], names))
    if with_weights:
        listed = [
            (w["name"], w["dtype"], shape_text(w["shape"]), bytes_text(w["bytes"]))
            for w in meta["weights"]
        ]
        print_section(console, "Weights", table(["name", "dtype", "shape", ">size"], listed))
