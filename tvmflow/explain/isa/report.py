"""Report of a module's machine code for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ...devices.gpus import Gpu
from ...errors import InputError, nearest
from ...runtime.cuda_compiler import find_tool
from ..yardstick.measured import yardstick_of
from . import intel, mesa, nvidia
from .findings import all_findings
from .kernels import kernels_in
from .record import Failure, KernelCode, KernelSource, Report

#: Compiles kernels: the compiler's name, and the code or failure of each.
Compile: TypeAlias = Callable[[Sequence[KernelSource]], tuple[str, list[KernelCode | Failure]]]
#: Default Debian suite for the compilers.
SUITE = "sid"


def machine_code(
    path: Path,
    gpu: Gpu,
    *,
    names: Sequence[str] = (),
    suite: str = SUITE,
    least_share: float = 0.0,
    yardstick: bool = False,
) -> Report:
    """Compile the kernels of a module, or of a standalone library, for a GPU.

    Only kernels whose names contain one of ``names``, if there are any, and which have
    ``least_share`` of the network's arithmetic, if their share is known.  ``suite`` is the Debian
    suite that the compilers come from.  ``yardstick`` adds another engine's times for operators
    (:mod:`tvmflow.explain.yardstick`).

    `ArtifactError` if the file is no module, or is damaged; `TargetError` if the GPU does not run
    kernels for the module's target; `InputError` if no kernel has such a name; `DeviceError` if the
    GPU's compiler is not installed.
    """
    metadata, kernels = kernels_in(path, gpu)
    chosen = [k for k in kernels if not names or any(name in k.name for name in names)]
    if not chosen:
        known = [kernel.name for kernel in kernels]
        raise InputError(
            f"{path} has no kernel named {', '.join(names)}{nearest(names[0], known, {})}.",
            remedy=f"tvmflow inspect {path} --kernels lists them.",
        )
    least = least_share * sum(kernel.flops or 0 for kernel in kernels)
    chosen = [k for k in chosen if k.flops is None or k.flops >= least]
    compiler, found = find_compiler(gpu, suite)(chosen)
    codes = tuple(each for each in found if isinstance(each, KernelCode))
    if yardstick:
        times = {k.name: yardstick_of(k.operator) for k in chosen if k.operator is not None}
        codes = tuple(replace(code, yardstick=times.get(code.kernel)) for code in codes)
    return Report(
        path=str(path),
        name=str(metadata["name"]),
        device=str(metadata["device"]),
        gpu=gpu.name,
        compiler=compiler,
        kernels=codes,
        failures=tuple(each for each in found if isinstance(each, Failure)),
        findings=all_findings(codes, gpu),
    )


def find_compiler(gpu: Gpu, suite: str = SUITE) -> Compile:
    """Return the function that compiles kernels for a GPU; `DeviceError` if it is not installed."""
    if gpu.isa == "sass":
        for tool in ("nvcc", "nvdisasm"):
            find_tool(tool)
        return partial(nvidia.compile_kernels, gpu=gpu)
    if gpu.isa == "xe":
        return partial(intel.compile_kernels, gpu=gpu, tree=intel.OCLOC.find(gpu, suite))
    return partial(mesa.compile_kernels, gpu=gpu, tree=mesa.find_tree(gpu, suite))
