"""Scheduling and lowering of primary functions, and code generation.

TIR is lowered by our own pipeline (:mod:`.tir_pipeline`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm
from tvm import IRModule, relax, s_tir, tirx

from . import opencl_source  # noqa: F401 (registers its callback with TVM)
from .deploy.device_code import modules_in, sources_in
from .errors import CompileError
from .graph.cuda_graph import capture, stage_boundary
from .graph.memory import MemoryPlan
from .graph.plan_memory import plan_memory
from .runtime.devices import FP16_EXTENSION, FP64_EXTENSION
from .schedules import FAMILIES, Scheduled, schedule_function
from .target import TargetSpec
from .texture.refusal import refusals
from .tir_pipeline import TIR_PIPELINE
from .tuning.journal import Journal
from .tuning.lookup import lookup_in

if TYPE_CHECKING:
    from .standalone.kernels import Kernels


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
    nodes: Mapping[str, Sequence[str]] | None = None,
    last_resort: Collection[str] = (),
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
    nodes
        Names of the ONNX nodes of each function, for messages.
    last_resort
        Functions that only the fallback schedules.

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
                    # The last family never declines.
                    families = FAMILIES[-1:] if name in last_resort else FAMILIES
                    scheduled = schedule_function(
                        function, target, given.get(name), name, lookup, families
                    )
                except Exception as error:
                    raise CompileError(
                        f"{described(name, nodes)} could not be scheduled for "
                        f"{target.kind}: {_reason(error)}",
                        remedy="Compile with --target llvm to see whether the model itself "
                        "is sound.",
                    ) from error
                choices[name] = scheduled
                function = scheduled.schedule.mod["main"].with_attrs(
                    {"tirx.is_scheduled": True, **dict(function.attrs or {})}
                )
            functions[gv] = function
    return ScheduledModule(IRModule(functions, attrs=mod.attrs), choices)


def described(name: str, nodes: Mapping[str, Sequence[str]] | None) -> str:
    """A primary function, with the ONNX nodes that it computes, for messages."""
    known = list((nodes or {}).get(name, ()))
    if not known:
        return f"The primary function {name}"
    shown = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    return f"The primary function {name} ({'nodes' if len(known) > 1 else 'node'} {shown})"


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def without_code(mod: IRModule, target: TargetSpec) -> dict[str, str]:
    """Scheduled primary functions for which no code can be generated, with TVM's reasons.

    Each is built by itself: in a whole module TVM does not say which function it is at.
    """
    found = {}
    for gv, function in mod.functions.items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        single = function.with_attr("global_symbol", gv.name_hint)
        try:
            with _generating(target):
                tirx.build(single, target=target.tvm_target, pipeline=TIR_PIPELINE)
        except CompileError as error:
            found[gv.name_hint] = error.message.rpartition("could not be generated: ")[2]
    return found


def wants_schedule(function: tirx.PrimFunc) -> bool:
    """Whether a function is still a plain computation.

    TVM's own sorts and scans come scheduled, or as low-level loops without blocks.
    """
    if "tirx.is_scheduled" in (function.attrs or {}):
        return False
    body = function.body
    return isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"


def plan_calls(
    mod: IRModule, prepare: Callable[[IRModule], IRModule] | None = None
) -> tuple[IRModule, MemoryPlan]:
    """A graph of calls that return tensors, to a list of calls that write to planned memory.

    ``prepare`` runs before memory is planned.
    """
    transform = relax.transform
    calls = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
    ]
    mod = tvm.transform.Sequential(calls)(mod)
    return plan_memory(prepare(mod) if prepare is not None else mod)


def lower_graph(mod: IRModule, *, cuda_graph: bool = False) -> tuple[IRModule, MemoryPlan]:
    """Graph-level passes between fusion and the virtual machine: memory plan and calls.

    With ``cuda_graph``, the calls become one CUDA graph.

    Raises
    ------
    CompileError
        If a function cannot be part of a CUDA graph.
    """
    transform = relax.transform
    mod, plan = plan_calls(mod, stage_boundary if cuda_graph else None)
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
    with _generating(target):
        return relax.build(
            mod, target=target.tvm_target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE
        )


def build_kernels(mod: IRModule, target: TargetSpec) -> Kernels:
    """Generate the kernels of a scheduled module, without any code for the host.

    Raises
    ------
    CompileError
        As for `build_executable`.
    """
    from .standalone.kernels import generate_kernels

    with _generating(target):
        return generate_kernels(mod, target)


@contextmanager
def _generating(target: TargetSpec) -> Iterator[None]:
    """Say in an error of ours what TVM's code generation refused."""
    try:
        with refusals(), target.tvm_target:
            yield
    except CompileError:
        raise
    except Exception as error:
        raise CompileError(
            f"Code for the target {target.kind} could not be generated: {_reason(error)}",
            details="\n".join(str(error).strip().splitlines()[:-1]) or None,
        ) from error


# -- what was built ------------------------------------------------------------------------


def device_modules(executable: relax.VMExecutable) -> list[tvm.runtime.Module]:
    """Modules of device code inside an executable, however deep TVM nests them."""
    return modules_in(executable.mod)


def device_sources(executable: relax.VMExecutable) -> list[str]:
    """Source of the device modules inside an executable."""
    return sources_in(executable.mod)


def extensions(sources: Iterable[str]) -> list[str]:
    """OpenCL extensions that the kernels need of the device.

    TVM asks for ``cl_khr_fp16`` in the source of kernels that compute with ``half``, and for
    ``cl_khr_fp64`` where they have ``double``.
    """
    text = "".join(sources)
    return [name for name in (FP16_EXTENSION, FP64_EXTENSION) if name in text]


#: Definitions (not declarations) of kernels in OpenCL C and CUDA C++.
_KERNEL = re.compile(r"(?:__kernel void|__global__ void(?: __\w+\([^)]*\))?) (\w+)\([^;{]*\{")


def kernel_texts(sources: Iterable[str]) -> dict[str, str]:
    """Kernels in generated source by name, each from its head to its last brace."""
    found = {}
    for source in sources:
        for head in _KERNEL.finditer(source):
            end = source.find("\n}", head.end())
            found[head[1]] = source[head.start() : end + 2 if end >= 0 else None]
    return found


def kernel_names(sources: Iterable[str], choices: Mapping[str, Scheduled]) -> list[dict[str, str]]:
    """Kernels in generated source with the primary function and schedule family of each.

    TVM names the kernels of a function ``f_kernel``, ``f_kernel_1`` and so on; on
    a CPU a primary function is one "kernel" of its own name.
    """
    names = [name for source in sources for name in _KERNEL.findall(source)]
    kernels = []
    for name in names or choices:
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        family = choices[function].family if function in choices else ""
        kernels.append({"name": name, "function": function, "family": family})
    return kernels
