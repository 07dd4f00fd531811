"""Reader of a module file's kernels: their source and their launches.

Modules are not loaded, so that modules for other machines and devices can be read, too.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from ...codegen.kernels import split_source
from ...devices.gpus import Gpu
from ...devices.target import resolve
from ...errors import ArtifactError, TargetError
from ...module.artifact import Artifact, read_artifact
from ...module.functions import unpack_functions
from ...module.shapes import warn_default_shape
from ...module.standalone.format import Section
from ...module.standalone.read import EncodedPlan, find_plan
from ...runtime.json_types import JsonObject
from ...runtime.regular_files import open_file
from ..analysis.lowered import kernels_of
from ..profiling.counting import count_kernels
from ..profiling.measure import launch_origins, work_of
from ..yardstick.measured import Operator
from ..yardstick.operators import operators_of
from .record import KernelSource

#: Text that TVM's code generators write at the head of each kernel, by target.
_HEADS = {"opencl": b"// Function: ", "cuda": b'extern "C" __global__ void '}
#: The head of a kernel's definition in OpenCL C.
_DEFINITION = re.compile(r"^(?:__attribute__[^\n]*\n)?__kernel void (\w+)\([^;{]*\{", re.MULTILINE)


def metadata_of(path: Path) -> JsonObject:
    """Return the metadata of a module or library; `ArtifactError` if it is none, or damaged."""
    return _read(path).metadata


def kernels_in(path: Path, gpu: Gpu) -> tuple[JsonObject, list[KernelSource]]:
    """Read the metadata of a module or standalone library, and its kernels in their order.

    `ArtifactError` if the file is no module, is damaged, or has no kernels; `TargetError` if the
    kernels are for a target that the GPU does not run.
    """
    file = _read(path)
    metadata = file.metadata
    if metadata["target"] != gpu.target:
        raise TargetError(
            f"Compiling {path} for {gpu.name} failed: kernels for {gpu.target} were expected, and "
            f"the module is for {metadata['target']}.",
            remedy=f"Compile the model with `target={gpu.target}`, or choose another GPU.",
        )
    if isinstance(file, EncodedPlan):
        return metadata, list(_of_plan(file))
    return metadata, _of_artifact(file, gpu.target)


def _read(path: Path) -> EncodedPlan | Artifact:
    return (find_plan(path) if path.is_file() else None) or read_artifact(path)


def _of_plan(plan: EncodedPlan) -> Iterator[KernelSource]:
    """Yield each kernel of a standalone library at its first launch."""
    source, programs, seen = plan.source.encode(), plan[Section.PROGRAMS], set[str]()
    for launch in plan[Section.LAUNCHES]:
        name = plan.text(int(launch["kernel"]))
        if name in seen:
            continue
        seen.add(name)
        program = programs[launch["program"]]
        begin = int(program["offset"])
        text = _alone(source[begin : begin + int(program["bytes"])].decode(), name)
        local = launch["local"][: launch["dimensions"]].tolist()
        items = launch["global"][: launch["dimensions"]].tolist()
        groups = prod(whole // each for whole, each in zip(items, local, strict=True))
        function = plan.text(int(launch["function"]))
        yield KernelSource(name, function, text, tuple(local), groups)


def _alone(program: str, kernel: str) -> str:
    """Return a program's text without the definitions of its other kernels."""
    parts, end = [], 0
    for head in _DEFINITION.finditer(program):
        parts.append(program[end : head.start()])
        depth, end = 1, head.end()
        while depth and end < len(program):
            depth += {"{": 1, "}": -1}.get(program[end], 0)
            end += 1
        if head[1] == kernel:
            parts.append(program[head.start() : end])
    return "".join([*parts, program[end:]])


def _of_artifact(artifact: Artifact, target: str) -> list[KernelSource]:
    """Return the kernels of a module for TVM, with groups from its scheduled functions."""
    source = _embedded_text(artifact.path, _HEADS[target])
    functions = {each["name"]: each["function"] for each in artifact.metadata["kernels"]}
    # CUDA kernels are compiled as one file: each has the whole source.
    texts = split_source(source) if target == "opencl" else dict.fromkeys(functions, source)
    warn_default_shape(artifact.variants, artifact.path, "the analysis of machine code")
    if len(artifact.variants) > 1:
        # The rest of the metadata describes the first shape only.
        texts = {name: text for name, text in texts.items() if name in functions}
    launches = _launches(artifact, sorted({functions.get(name, name) for name in texts}))
    return [
        KernelSource(name, functions.get(name, name), text, *launches.get(name, ()))
        for name, text in texts.items()
    ]


def _launches(
    artifact: Artifact, functions: Sequence[str]
) -> dict[str, tuple[tuple[int, ...], int, int | None, Operator | None]]:
    """Return work-group, number of groups, operations and operator of each kernel, if known."""
    carried = unpack_functions(artifact.read_functions())
    meta = artifact.metadata
    operators = operators_of(meta, carried)
    target = resolve(meta["target"], str(meta["device"]))
    calls = Counter(meta.get("memory", {}).get("steps", ()))
    found = {}
    for name in functions:
        if name not in carried:
            continue
        counts = count_kernels(carried[name], on_gpu=True)
        for kernel in kernels_of(carried[name], target):
            (origin,) = launch_origins([kernel.name], meta)
            work = work_of(origin, kernel.name, counts)
            flops = None if work is None else work.flops.total() * calls[name]
            group = tuple(extent for _, extent in reversed(kernel.items))
            found[kernel.name] = (group, kernel.groups, flops, operators.pop(name, None))
    return found


def _embedded_text(path: Path, head: bytes) -> str:
    """Return the text with this head that TVM's modules embed after the 8 bytes of its length."""
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(head)
        begin = content.rfind(b"\0", 0, at) + 1
        if at >= 0 and begin >= 8:
            (size,) = struct.unpack("<Q", content[begin - 8 : begin])
            if at < begin + size <= len(content):
                return content[begin : begin + size].decode()
    raise ArtifactError(
        f"Reading the kernels of {path} failed: their source was expected in the file.",
        remedy="Compile the model again with this tvmflow.",
    )
