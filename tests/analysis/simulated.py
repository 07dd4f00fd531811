"""Kernels under `oclgrind-kernel`, without a driver or a process of TVM: what they execute."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from math import prod
from pathlib import Path

from tvm import IRModule, tirx

from tvmflow.analysis import kernels_of
from tvmflow.standalone.kernels import generate_kernels
from tvmflow.target import TargetSpec

_HEADING = re.compile(r"Instructions executed for kernel '(\w+)'")
_COUNT = re.compile(r"\s*([\d,]+) - (.+?)(?: \(([\d,]+) bytes\))?$")
#: A call of OpenCL C's own functions; mangled names carry the address space.
_CALL = re.compile(r"call _Z\d+(vload\d+|vstore\d+|[a-z_]+)")


def simulate(function: tirx.PrimFunc, target: TargetSpec, folder: Path) -> Counter[str]:
    """Count the instructions of a function's only kernel, as Oclgrind names them.

    Without optimisation: every access of the source is an instruction.
    """
    (kernel,) = kernels_of(function, target)
    name = kernel.name.removesuffix("_kernel")
    with target.tvm_target:
        source = generate_kernels(IRModule({name: function}), target).sources[kernel.name]
    (folder / "kernel.cl").write_text(source)
    extents = {tag: extent for tag, (_, extent) in kernel.launch.items()}
    local = [extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
    blocks = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
    lines = ["kernel.cl", kernel.name]
    lines.append(" ".join(str(b * n) for b, n in zip(blocks, local, strict=True)))
    lines.append(" ".join(map(str, local)))
    sizes = {b.name: prod(map(int, b.shape)) for b in function.params}
    names = [param.name.removesuffix("_ptr") for param in kernel.device.params]
    lines += [f"<size={4 * sizes[name]} fill=0 int>" for name in names]
    (folder / "kernel.sim").write_text("\n".join(lines) + "\n")
    command = ["oclgrind-kernel", "--inst-counts", "--build-options", "-cl-opt-disable"]
    run = subprocess.run(
        [*command, "kernel.sim"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    (counts,) = executed(run.stdout + run.stderr).values()
    return counts


def executed(said: str) -> dict[str, Counter[str]]:
    """Instructions, and bytes of accesses, of each kernel that Oclgrind tells of.

    Calls of OpenCL C's own functions have their name, and the address space if it is global.
    """
    kernels: dict[str, Counter[str]] = {}
    for line in said.splitlines():
        if heading := _HEADING.match(line):
            counts = kernels.setdefault(heading.group(1), Counter())
        elif found := _COUNT.match(line):
            count, name, size = found.groups()
            if call := _CALL.match(name):
                name = call.group(1) + (" global" if "AS1" in name else "")
            counts[name] += int(count.replace(",", ""))
            if size:
                counts[f"{name} bytes"] += int(size.replace(",", ""))
    assert kernels, said
    return kernels
