"""``tvmflow tasks``: what there is to tune."""

from __future__ import annotations

import math
from typing import Any

from ..compiler.options import CompileOptions
from .compile_flags import TUNED, with_compile_flags
from .formats import table
from .options import Debug, Json, ModelFile, OpsFiles, Quiet, Verbose, load_operators
from .session import command, out_console, print_json

TASKS_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow tasks mobilenet_v2.onnx
  tvmflow tasks mobilenet_v2.onnx --device adreno --storage texture
"""


@command
@with_compile_flags(*TUNED)
def list_tasks(
    model: ModelFile,
    options: CompileOptions,
    ops: OpsFiles = None,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List what there is to tune in a network: its distinct primary functions."""
    from ..tuning.session import Network

    load_operators(ops)
    tasks = Network(model, options).tasks()
    everything = sum(task.calls * task.operations for task in tasks)
    described: list[dict[str, Any]] = [
        {
            "name": task.name,
            "functions": list(task.names),
            "family": task.family.NAME,
            "shape": dict(task.workload.shape),
            "storage": task.workload.storage,
            "dtype": task.workload.dtype,
            "calls": task.calls,
            "operations": task.operations,
            "share": task.calls * task.operations / everything,
            "candidates": math.prod(map(len, task.space.values())),
        }
        for task in tasks
    ]
    if as_json:
        print_json(described)
        return
    rows = [
        (
            *(d["name"], d["family"], d["storage"], str(d["calls"])),
            *(f"{d['operations'] / 1e6:.2f} M", f"{d['share']:.1%}", str(d["candidates"])),
        )
        for d in sorted(described, key=lambda d: -d["share"])
    ]
    columns = ["task", "family", "storage", ">calls", ">loop steps", ">share", ">candidates"]
    out_console().print(table(columns, rows))
