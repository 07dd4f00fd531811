"""Scheduling and lowering of primary functions, and code generation.

TIR is lowered by our own pipeline (:mod:`.tir_pipeline`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx

from .errors import CompileError
from .graph.memory import MemoryPlan
from .graph.plan_memory import plan_memory
from .schedules import schedule_function
from .target import TargetSpec
from .texture.refusal import refusals
from .tir_pipeline import TIR_PIPELINE


@dataclass
class ScheduledModule:
    """A module whose primary functions are scheduled, and which family did it."""

    mod: IRModule
    families: dict[str, str] = field(default_factory=dict)


def schedule_module(mod: IRModule, target: TargetSpec) -> ScheduledModule:
    """Schedule every primary function; equal functions are scheduled once.

    Raises
    ------
    CompileError
        If no schedule can be made for a function.
    """
    families: dict[str, str] = {}
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    with target.tvm_target:
        for gv, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
                try:
                    schedule, family = schedule_function(function, target)
                except Exception as error:
                    raise CompileError(
                        f"The primary function {gv.name_hint} could not be scheduled for "
                        f"{target.kind}: {str(error).strip().splitlines()[-1]}",
                        remedy="Compile with --target llvm to see whether the model itself "
                        "is sound.",
                    ) from error
                families[gv.name_hint] = family
                function = schedule.mod["main"].with_attrs(
                    {"tirx.is_scheduled": True, **dict(function.attrs or {})}
                )
            functions[gv] = function
    return ScheduledModule(IRModule(functions, attrs=mod.attrs), families)


def wants_schedule(function: tirx.PrimFunc) -> bool:
    """Whether a function is still a plain computation.

    TVM's own sorts and scans come scheduled, or as low-level loops without blocks.
    """
    if "tirx.is_scheduled" in (function.attrs or {}):
        return False
    body = function.body
    return isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"


def lower_graph(mod: IRModule) -> tuple[IRModule, MemoryPlan]:
    """Graph-level passes between fusion and the virtual machine: memory plan and calls."""
    transform = relax.transform
    calls = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
    ]
    mod, plan = plan_memory(tvm.transform.Sequential(calls)(mod))
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


# -- OpenCL functions ------------------------------------------------------------------------

#: Functions that OpenCL C has for numbers and vectors alike, and TVM gives C's names there.
_OPENCL_FUNCTIONS = ("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh")


def _direct(call: tvm.ir.Call) -> tvm.ir.Call:
    name = call.op.name.removeprefix("tirx.")
    return tirx.call_pure_extern(call.ty.dtype, name, *call.args)


for _name in _OPENCL_FUNCTIONS:
    tirx.register_intrin_lowering(f"tirx.{_name}", target="opencl", f=_direct, level=99)


# -- OpenCL source -------------------------------------------------------------------------


_SPLAT = re.compile(r"\(\((?:half|float|double|u?char|u?short|u?int|u?long)(2|3|4|8|16)\)\(")


def fold_splats(source: str) -> str:
    """Write ``((float4)(v))`` for ``((float4)(v, v, v, v))``.

    TVM prints a broadcast scalar once for every lane, index arithmetic and all:
    four fifths of a convolution's source.  OpenCL C (section 6.4.5, vector
    literals) replicates a single scalar to all lanes.
    """
    parts: list[str] = []
    position = 0
    while match := _SPLAT.search(source, position):
        lanes, arguments = int(match.group(1)), _arguments(source, match.end())
        parts.append(source[position : match.end()])
        position = match.end()
        if arguments and len(arguments) == lanes and len(set(arguments)) == 1:
            # A splat inside the argument is folded too.
            parts.append(fold_splats(arguments[0]))
            position += _span(source, match.end())
    parts.append(source[position:])
    return "".join(parts)


def _span(source: str, start: int) -> int:
    """Characters from ``start`` to the parenthesis that closes the open one."""
    depth = 0
    for position in range(start, len(source)):
        char = source[position]
        if char in "([":
            depth += 1
        elif char in ")]":
            if depth == 0:
                return position - start
            depth -= 1
    return len(source) - start


def _arguments(source: str, start: int) -> list[str]:
    """Arguments of the call whose parenthesis opened just before ``start``."""
    text = source[start : start + _span(source, start)]
    arguments, depth, begin = [], 0, 0
    for position, char in enumerate(text):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            arguments.append(text[begin:position].strip())
            begin = position + 1
    arguments.append(text[begin:].strip())
    return arguments


@tvm_ffi.register_global_func("tvm_callback_opencl_postproc", override=True)
def _postprocess_opencl(source: str, _target: tvm.target.Target) -> str:
    return fold_splats(source)


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


#: Definitions (not declarations) of kernels in OpenCL C and CUDA C++.
_KERNEL = re.compile(r"(?:__kernel void|__global__ void(?: __\w+\([^)]*\))?) (\w+)\([^;{]*\{")


def kernel_names(executable: relax.VMExecutable, families: dict[str, str]) -> list[dict[str, str]]:
    """Kernels of an executable with the primary function and schedule family of each.

    TVM names the kernels of a function ``f_kernel``, ``f_kernel_1`` and so on; on
    a CPU a primary function is one "kernel" of its own name.
    """
    names: list[str] = []
    for module in device_modules(executable):
        names += _KERNEL.findall(module.inspect_source())
    if not names:
        names = list(families)
    kernels = []
    for name in names:
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        kernels.append({"name": name, "function": function, "family": families.get(function, "")})
    return kernels
