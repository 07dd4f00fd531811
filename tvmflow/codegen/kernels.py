"""Primary functions as kernels: their OpenCL C, and what the host does to launch them.

The TIR pipeline is that of modules for TVM's virtual machine (:mod:`.tir_pipeline`), only that
the host's side is read and not compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import IRModule, relax, tirx
from tvm.ir.transform import Sequential
from tvm.tirx.build import codegen_build

from ..devices.target import TargetSpec
from .tir_pipeline import finish_device, host_and_device, store_narrow

#: TVM's code generator writes this line before each kernel.
_DELIMITER = "// Function: "
#: A declaration of a kernel; TVM repeats all of them before each one.
_DECLARATION = re.compile(r"^__kernel [^{;]*;[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class Kernels:
    """What was generated for the primary functions of a module."""

    #: The host's side of each primary function, by its name.
    hosts: dict[str, tirx.PrimFunc]
    #: Each kernel as it was before code generation, by its name.
    devices: dict[str, tirx.PrimFunc]
    #: OpenCL C of each kernel.
    sources: dict[str, str]


def split_kernels(
    mod: IRModule, target: TargetSpec
) -> tuple[dict[str, tirx.PrimFunc], dict[str, tirx.PrimFunc]]:
    """Lower the scheduled primary functions of a module: the host's side and kernels, by name."""
    primary = {gv: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    named = relax.transform.AttachGlobalSymbol()(IRModule(primary))
    bound = tirx.transform.BindTarget(target.tvm_target)(named)
    split = Sequential(host_and_device())(bound)
    hosts: dict[str, tirx.PrimFunc] = {}
    devices: dict[str, tirx.PrimFunc] = {}
    for gv, function in split.functions.items():
        # Both have the target; only functions for the host know their host.
        side = devices if function.attrs["target"].host is None else hosts
        side[gv.name_hint] = function
    return hosts, devices


def generate_kernels(mod: IRModule, target: TargetSpec) -> Kernels:
    """Lower the scheduled primary functions of a module and generate their source."""
    hosts, devices = split_kernels(mod, target)
    if not devices:
        return Kernels(hosts, {}, {})
    return Kernels(hosts, devices, split_source(device_source(devices)))


def device_source(devices: Mapping[str, tirx.PrimFunc]) -> str:
    """Generate the source of lowered kernels: OpenCL C or CUDA C++."""
    mod = IRModule({tvm.ir.GlobalVar(name): f for name, f in devices.items()})
    kind = next(iter(devices.values())).attrs["target"]
    lowered = Sequential([*store_narrow(), *finish_device()])(mod)
    return str(codegen_build(lowered, kind).inspect_source())


def split_source(code: str) -> dict[str, str]:
    """The text of each kernel in generated code, without declarations of the others."""
    kernels = {}
    for part in code.split(_DELIMITER)[1:]:
        name, _, text = part.partition("\n")
        kernels[name.strip()] = _DECLARATION.sub("", text).strip() + "\n"
    return kernels
