"""One candidate, in a build process: scheduled, lowered and linked."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, tirx

from ..codegen.tir_pipeline import TIR_PIPELINE
from ..devices.host import Host
from ..devices.target import TargetSpec
from ..module.artifact import export_library
from ..module.files import publish, staging
from ..runtime import plugin
from ..schedules import schedule_function
from .memory import Memory
from .tasks import Argument, arguments_of

#: The name of the one function in a module.
ENTRY = "candidate"


@dataclass(frozen=True)
class Built:
    """A candidate as a module, or why there is none.

    Parameters
    ----------
    task
        Digest of the task.
    knobs
        The candidate.
    source_hash
        Of the kernels' source: candidates with the same are the same. Empty if none was made.
    path
        A shared library in TVM's own format, with the function :data:`ENTRY`; candidates of the
        same source have the same.
    arguments
        What the function takes, results last.
    error
        Why there is no library.
    seconds
        Time of the build.
    """

    task: str
    knobs: Mapping[str, Any]
    source_hash: str
    path: Path | None
    arguments: tuple[Argument, ...]
    error: str | None
    seconds: float


@lru_cache(maxsize=64)
def function_of(text: str) -> tirx.PrimFunc:
    """Read a function's text, once for all of its candidates."""
    return tvm.ir.load_json(text)


def build_candidate(
    text: str,
    target: TargetSpec,
    knobs: dict[str, Any],
    digest: str,
    folder: str,
    device_index: int | None = None,
) -> Built:
    """Schedule, lower and link one candidate; called in a worker process.

    Parameters
    ----------
    text
        The task's function.
    target, knobs, digest
        What it is built for, the candidate, and the task's digest.
    folder
        Where libraries are.
    device_index
        Of the OpenCL device that compiles the kernels, too; ``None`` leaves this to whoever
        measures.
    """
    started = time.perf_counter()
    function = function_of(text)

    def built(source: str, path: Path | None, error: str | None) -> Built:
        seconds = time.perf_counter() - started
        return Built(digest, knobs, source, path, arguments_of(function), error, seconds)

    with target.tvm_target:
        scheduled = schedule_function(function, target, knobs)
        if scheduled.source != "given":
            return built("", None, "The knobs do not lead to a schedule.")
        try:
            library = lower(scheduled.schedule.mod["main"], target)
        except Exception as error:  # noqa: BLE001 (whatever TVM finds is the candidate's fault)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return built("", None, f"No code can be generated: {lines[-1]}")
    source = source_hash(library, target)
    path = Path(folder, f"{source}.so")
    if not path.exists():
        link(library, path, target)
        if device_index is not None:
            compile_kernels(path, arguments_of(function), device_index)
    return built(source, path, None)


def compile_kernels(path: Path, arguments: Sequence[Argument], device_index: int) -> None:
    """Run a library once, so that the driver's compiler leaves its kernels in the program cache.

    CPU drivers compile most of a kernel when it is first launched.
    """
    plugin.load()
    device = tvm.device("opencl", device_index)
    memory = [Memory(argument, device) for argument in arguments]
    for argument, each in zip(arguments, memory, strict=True):
        # Whatever is an index, 0 exists.
        each.write(np.zeros(argument.shape, argument.dtype))
    # The cache has it when the library and the device are done with it.
    tvm_ffi.load_module(path, keep_module_alive=False)[ENTRY](*(each.tensor for each in memory))
    device.sync()


def lower(function: tirx.PrimFunc, target: TargetSpec) -> tvm.runtime.Module:
    """Generate code for one scheduled function."""
    named = function.with_attrs(
        {"global_symbol": ENTRY, "tirx.noalias": True, "tirx.is_scheduled": True}
    )
    return tvm.tirx.build(IRModule({ENTRY: named}), target=target.tvm_target, pipeline=TIR_PIPELINE)


def link(library: tvm.runtime.Module, path: Path, target: TargetSpec) -> None:
    """Write a library for the target's host."""
    # Two processes may build the same: each writes it whole.
    with staging(path) as work:
        machine = Host.parse(target.host) if target.host else Host.native()
        made = work / path.name
        export_library(library, made, machine, work)
        publish({made: path})


def source_hash(library: tvm.runtime.Module, target: TargetSpec) -> str:
    """A hash of what runs: the kernels, and the host's code that launches them."""
    content = hashlib.sha256(str(target.host).encode())
    queue = [library]
    while queue:
        module = queue.pop()
        queue.extend(module.imports)
        # The host's code holds the launches' sizes.
        content.update(str(module.inspect_source()).encode())
    return content.hexdigest()[:24]
