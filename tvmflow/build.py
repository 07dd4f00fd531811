"""Scheduling and lowering of primary functions, and code generation.

TIR is lowered by our own pipeline (:mod:`.tir_pipeline`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import IRModule, relax, s_tir, tirx

from . import opencl_source  # noqa: F401 (registers its callback with TVM)
from .errors import CompileError
from .graph.cuda_graph import capture, stage_boundary
from .graph.memory import MemoryPlan
from .graph.plan_memory import plan_memory
from .runtime.devices import FP16_EXTENSION
from .schedules import Scheduled, schedule_function
from .target import TargetSpec
from .texture.refusal import refusals
from .tir_pipeline import TIR_PIPELINE
from .tuning.journal import Journal
from .tuning.lookup import lookup_in


@dataclass
class ScheduledModule:
    """A module whose primary functions are scheduled, and what was chosen for each."""

    mod: IRModule
    choices: dict[str, Scheduled] = field(default_factory=dict)


def schedule_module(
    mod: IRModule,
    target: TargetSpec,
    knobs: Mapping[str, Mapping[str, Any]] | None = None,
    journals: Sequence[Journal] = (),
) -> ScheduledModule:
    """Schedule every primary function.

    Parameters
    ----------
    mod
        Fused primary functions, with their storage decided.
    target
        What they are scheduled for.
    knobs
        Knobs of single functions by name, instead of the heuristic's.
    journals
        Where knobs are looked up for the others.

    Raises
    ------
    CompileError
        If no schedule can be made for a function.
    """
    choices: dict[str, Scheduled] = {}
    given = knobs or {}
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    with target.tvm_target:
        for gv, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
                name = gv.name_hint
                try:
                    lookup = lookup_in(journals, function, target)
                    scheduled = schedule_function(function, target, given.get(name), name, lookup)
                except Exception as error:
                    raise CompileError(
                        f"The primary function {name} could not be scheduled for "
                        f"{target.kind}: {str(error).strip().splitlines()[-1]}",
                        remedy="Compile with --target llvm to see whether the model itself "
                        "is sound.",
                    ) from error
                choices[name] = scheduled
                function = scheduled.schedule.mod["main"].with_attrs(
                    {"tirx.is_scheduled": True, **dict(function.attrs or {})}
                )
            functions[gv] = function
    return ScheduledModule(IRModule(functions, attrs=mod.attrs), choices)


def wants_schedule(function: tirx.PrimFunc) -> bool:
    """Whether a function is still a plain computation.

    TVM's own sorts and scans come scheduled, or as low-level loops without blocks.
    """
    if "tirx.is_scheduled" in (function.attrs or {}):
        return False
    body = function.body
    return isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"


def lower_graph(mod: IRModule, *, cuda_graph: bool = False) -> tuple[IRModule, MemoryPlan]:
    """Graph-level passes between fusion and the virtual machine: memory plan and calls.

    With ``cuda_graph``, the calls become one CUDA graph.

    Raises
    ------
    CompileError
        If a function cannot be part of a CUDA graph.
    """
    transform = relax.transform
    calls = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
    ]
    mod = tvm.transform.Sequential(calls)(mod)
    mod, plan = plan_memory(stage_boundary(mod) if cuda_graph else mod)
    if cuda_graph:
        mod = capture(mod)
    lower = tvm.transform.Sequential(
        [
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )
    return lower(mod), plan


def build_executable(mod: IRModule, target: TargetSpec) -> relax.VMExecutable:
    """Generate code for a scheduled and lowered module.

    Raises
    ------
    CompileError
        If code generation fails; the message names the reason TVM gave.
    """
    try:
        with refusals(), target.tvm_target:
            return relax.build(
                mod, target=target.tvm_target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE
            )
    except CompileError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise CompileError(
            f"Code for the target {target.kind} could not be generated: "
            f"{reason[-1] if reason else type(error).__name__}",
            details="\n".join(reason[:-1]) or None,
        ) from error


# -- what was built ------------------------------------------------------------------------


def device_modules(executable: relax.VMExecutable) -> list[tvm.runtime.Module]:
    """Modules of device code inside an executable, however deep TVM nests them."""
    found, queue = [], [executable.mod]
    while queue:
        module = queue.pop()
        queue.extend(module.imports)
        if module.kind in ("opencl", "cuda"):
            found.append(module)
    return found


def extensions(executable: relax.VMExecutable) -> list[str]:
    """OpenCL extensions that the kernels need of the device.

    TVM asks for ``cl_khr_fp16`` in the source of kernels that compute with ``half``.
    """
    sources = [m.inspect_source() for m in device_modules(executable) if m.kind == "opencl"]
    return [FP16_EXTENSION] if any(FP16_EXTENSION in source for source in sources) else []


#: Definitions (not declarations) of kernels in OpenCL C and CUDA C++.
_KERNEL = re.compile(r"(?:__kernel void|__global__ void(?: __\w+\([^)]*\))?) (\w+)\([^;{]*\{")


def kernel_names(
    executable: relax.VMExecutable, choices: Mapping[str, Scheduled]
) -> list[dict[str, str]]:
    """Kernels of an executable with the primary function and schedule family of each.

    TVM names the kernels of a function ``f_kernel``, ``f_kernel_1`` and so on; on
    a CPU a primary function is one "kernel" of its own name.
    """
    names: list[str] = []
    for module in device_modules(executable):
        names += _KERNEL.findall(module.inspect_source())
    if not names:
        names = list(choices)
    kernels = []
    for name in names:
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        family = choices[function].family if function in choices else ""
        kernels.append({"name": name, "function": function, "family": family})
    return kernels
