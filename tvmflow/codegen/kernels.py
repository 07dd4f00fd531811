"""Primary functions as kernels: their OpenCL C, and the launches by the host.

The TIR pipeline is the same as for TVM's virtual machine (:mod:`.tir_pipeline`), but the host's
side is interpreted instead of compiled.  TVM leaves a short program there.  For example, with a
workspace ``t`` that has become a parameter (:func:`tvmflow.graph.memory.HoistWorkspaces`)::

    T.call_ffi_kernel("f_kernel", x.data, t.data, 8, 64, launch_params=["blockIdx.x", ...])
    T.call_ffi_kernel("f_kernel_1", t.data, y.data, 4, 64, launch_params=["blockIdx.x", ...])

Loops over launches are unrolled.  Memory and computations on data are rejected, because a plan
cannot express them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.ir.transform import Sequential
from tvm.sym import Analyzer
from tvm.tirx.build import codegen_build

from ..devices.target import TargetSpec
from ..errors import CompileError
from ..ir.dot_products import DOT
from ..ir.expressions import nodes_in, substitute_vars
from ..ir.machine_code import MachineCode
from ..ir.rewriter import op_name
from .argument_checks import CHECKED
from .half import PREFIX as HALF_PREFIX
from .textures import STORE, image_of
from .tir_pipeline import DEVICE, HOST_AND_DEVICE, STORE_NARROW, TIR_PIPELINE

#: TVM's code generator writes this line before each kernel.
_DELIMITER = "// Function: "


@dataclass(frozen=True)
class Kernels:
    """Generated code of the primary functions of a module."""

    hosts: dict[str, tirx.PrimFunc]  #: The host's side of each primary function, by its name.
    devices: dict[str, tirx.PrimFunc]  #: Each kernel before code generation, by its name.
    sources: dict[str, str]  #: OpenCL C of each kernel.
    #: If the host's functions are the kernels: their machine code, first of all of them, then of
    #: some for processors with more features.
    code: Sequence[MachineCode] = ()


def split_kernels(
    mod: IRModule, target: TargetSpec
) -> tuple[dict[str, tirx.PrimFunc], dict[str, tirx.PrimFunc]]:
    """Lower a module's scheduled primary functions; return host functions and kernels by name."""
    primary = {gv: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    named = relax.transform.AttachGlobalSymbol()(IRModule(primary))
    bound = tirx.transform.BindTarget(target.tvm_target)(named)
    split = Sequential(HOST_AND_DEVICE)(bound)
    hosts: dict[str, tirx.PrimFunc] = {}
    devices: dict[str, tirx.PrimFunc] = {}
    for gv, function in split.functions.items():
        # Both have the target; only the target of host functions has a host.
        side = devices if function.attrs["target"].host is None else hosts
        side[gv.name_hint] = function
    return hosts, devices


def generate_kernels(mod: IRModule, target: TargetSpec) -> Kernels:
    """Lower the scheduled primary functions of a module, and generate their source."""
    hosts, devices = split_kernels(mod, target)
    return Kernels(hosts, devices, split_source(device_source(devices)) if devices else {})


def generate_machine_code(mod: IRModule, target: TargetSpec) -> Kernels:
    """Generate the machine code of the scheduled primary functions of a module for the CPU.

    Functions with dot products have two versions if the target does not require an instruction for
    them, but processors with one exist: other features would make no difference.
    """
    primary = {
        gv: f.with_attr(CHECKED, True)
        for gv, f in mod.functions.items()
        if isinstance(f, tirx.PrimFunc)
    }
    hosts = {gv.name_hint: f for gv, f in primary.items()}
    code = [_machine_code(hosts, target)]
    dots = {name: f for name, f in hosts.items() if DOT in map(op_name, nodes_in(f.body, Call))}
    if dots and (better := target.with_dots) is not None:
        code.append(_machine_code(dots, better, better.needs[-1]))
    return Kernels(hosts, {}, {}, code)


def _machine_code(
    functions: Mapping[str, tirx.PrimFunc], target: TargetSpec, feature: str = ""
) -> MachineCode:
    symbols = {name: name + (f"__{feature}" if feature else "") for name in functions}
    named = {
        tvm.ir.GlobalVar(symbols[name]): f.with_attr("global_symbol", symbols[name])
        for name, f in functions.items()
    }
    built = tirx.build(IRModule(named), target=target.tvm_target, pipeline=TIR_PIPELINE)
    with tempfile.TemporaryDirectory(prefix="tvmflow-") as folder:
        path = Path(folder, "kernels.o")
        built.write_to_file(str(path), "o")
        return MachineCode(path.read_bytes(), symbols, feature)


def device_source(devices: Mapping[str, tirx.PrimFunc]) -> str:
    """Generate the source of lowered kernels: OpenCL C or CUDA C++."""
    mod = IRModule({tvm.ir.GlobalVar(name): f for name, f in devices.items()})
    kind = next(iter(devices.values())).attrs["target"]
    return str(codegen_build(Sequential([*STORE_NARROW, *DEVICE])(mod), kind).inspect_source())


def split_source(code: str) -> dict[str, str]:
    """Return the text of each kernel in generated code."""
    parts = (part.partition("\n") for part in code.split(_DELIMITER)[1:])
    return {name.strip(): text.strip() + "\n" for name, _, text in parts}


# -- launches -----------------------------------------------------------------------------

REMEDY = "Compile with `format=tvm`, whose modules run in TVM's runtime."
_LAUNCH = "tirx.call_ffi_kernel"
#: The operator for the pointer of a buffer, which neither reads nor writes it.
_POINTER = "tirx.buffer_data"


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel that is a parameter of the primary function."""

    source: int  #: Index of the parameter.
    read: bool
    written: bool


@dataclass(frozen=True)
class KernelCall:
    """A launch of a kernel; bytes among the arguments are scalars."""

    kernel: str
    arguments: tuple[Argument | bytes, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


def refuse(function: str, what: str) -> CompileError:
    """Return the error for something that a plan cannot express."""
    message = f"The function {function} cannot be part of a standalone module: {what}."
    return CompileError(message, remedy=REMEDY)


#: Most launches of one primary function: a loop of more is not a loop over kernels.
_LIMIT = 4096


def kernel_calls(kernels: Kernels, name: str) -> list[KernelCall]:
    """Return the launches of a primary function.

    Raises a `CompileError` if its host does anything but launch kernels of static sizes.
    """
    if kernels.code:
        function = kernels.hosts[name]
        if any("call_packed" in (op_name(call) or "") for call in nodes_in(function.body, Call)):
            raise refuse(name, "it calls a function of TVM's runtime")
        # A function that gets a pointer may read and write.
        passed = {
            pointer
            for call in nodes_in(function.body, Call)
            if op_name(call) != _POINTER
            for pointer in map(image_of, call.args)
        }
        arguments = tuple(
            Argument(i, read or param in passed, written or param in passed)
            for i, (param, (read, written)) in enumerate(accesses_of(function).items())
        )
        return [KernelCall(name, arguments, (1,), (1,))]
    host = _Host(kernels, name)
    host.run(kernels.hosts[name].body)
    return [call for call in host.calls if 0 not in call.global_size]


class _Host:
    """Interpreter of a function's host side, in which only known numbers occur."""

    def __init__(self, kernels: Kernels, name: str):
        self.kernels, self.name = kernels, name
        self.calls: list[KernelCall] = []
        params = kernels.hosts[name].params
        self.indices: dict[tirx.Var, int] = {param: i for i, param in enumerate(params)}
        #: Values of variables.  Functions of TVM accept tensors with an offset into another buffer;
        #: those of a plan have none.
        self.values: dict[tirx.Var, tirx.Expr] = {
            param.elem_offset: tirx.const(0, param.elem_offset.ty.dtype)
            for param in params
            if tirx.is_buffer_var(param) and isinstance(param.elem_offset, tirx.Var)
        }
        self.analyzer = Analyzer()

    def run(self, body: tirx.Stmt) -> None:
        """Interpret a statement."""
        if isinstance(body, (tirx.SeqStmt, tirx.AttrStmt)):
            for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body.body]:
                self.run(statement)
        elif isinstance(body, tirx.DeclBuffer):
            self.indices[body.buffer] = self.indices[image_of(body.data)]
        elif isinstance(body, tirx.Bind):
            self.values[body.var] = self.evaluate(body.value, str(body.var.name))
        elif isinstance(body, tirx.For):
            begin, extent = (int(self.evaluate(e, "a loop")) for e in (body.min, body.extent))
            for step in range(begin, begin + extent):
                self.values[body.loop_var] = tirx.const(step, body.loop_var.ty.dtype)
                self.run(body.body)
        elif isinstance(body, tirx.IfThenElse):
            holds = int(self.evaluate(body.condition, "a condition"))
            if (branch := body.then_case if holds else body.else_case) is not None:
                self.run(branch)
        elif isinstance(body, tirx.Evaluate):
            self.call(body.value)
        elif not isinstance(body, tirx.AssertStmt):
            what = "memory" if isinstance(body, tirx.AllocBuffer) else type(body).__name__
            raise refuse(self.name, f"it has {what} on the host, where only kernels are launched")

    def evaluate(self, value: tirx.Expr, what: str) -> tirx.Expr:
        """Return a number that the host computes, as an immediate."""
        found = self.analyzer.simplify(substitute_vars(value, self.values))
        if not isinstance(found, (tirx.IntImm, tirx.FloatImm)):
            raise refuse(self.name, f"{what} is {found} on the host, not known before it runs")
        return found

    def call(self, call: tirx.Expr) -> None:
        """Interpret a call; statements without effect have been simplified to numbers."""
        if isinstance(call, (tirx.IntImm, tirx.FloatImm)):
            return
        if op_name(call) != _LAUNCH:
            raise refuse(self.name, f"it calls {call} on the host, where only kernels are launched")
        if len(self.calls) == _LIMIT:
            raise refuse(self.name, f"it has more than {_LIMIT} launches")
        tags = [str(tag) for tag in call.attrs.launch_params]
        kernel = str(call.args[0].value)
        split = len(call.args) - len(tags)
        sizes: dict[str, int] = {}
        for tag, extent in zip(tags, call.args[split:], strict=True):
            if not tag.startswith(("blockIdx.", "threadIdx.")):
                raise refuse(self.name, f"its kernel {kernel} has the launch parameter {tag}")
            sizes[tag] = int(self.evaluate(extent, f"{tag} of the kernel {kernel}"))
        axes = "xyz"[: max(("xyz".index(tag[-1]) + 1 for tag in sizes), default=1)]
        local, groups = (
            tuple(sizes.get(f"{kind}.{axis}", 1) for axis in axes)
            for kind in ("threadIdx", "blockIdx")
        )
        size = tuple(a * b for a, b in zip(local, groups, strict=True))
        arguments = self.arguments(kernel, call.args[1:split])
        self.calls.append(KernelCall(kernel, arguments, size, local))

    def arguments(self, kernel: str, operands: Sequence[tirx.Expr]) -> tuple[Argument | bytes, ...]:
        """Return the kernel's arguments in order: parameters of the function, and numbers."""
        found: list[Argument | bytes] = []
        accesses = accesses_of(self.kernels.devices[kernel])
        for (param, access), operand in zip(accesses.items(), operands, strict=True):
            source = self.indices.get(image_of(operand)) if isinstance(operand, Call) else None
            if source is not None:
                found.append(Argument(source, *access))
                continue
            value = self.evaluate(operand, f"{param.name} of the kernel {kernel}")
            found.append(np.array(value.value, str(operand.ty.dtype)).tobytes())
        return tuple(found)


def accesses_of(kernel: tirx.PrimFunc) -> dict[tirx.Var, tuple[bool, bool]]:
    """Return for each parameter whether the kernel reads and whether it writes its memory."""
    roots: dict[tirx.Var, tirx.Var] = {param: param for param in kernel.params}
    for statement in nodes_in(kernel.body, tirx.DeclBuffer):
        if image_of(statement.data) in roots:
            roots[statement.buffer] = roots[image_of(statement.data)]
    read = {load.source for load in nodes_in(kernel.body, TensorLoad)}
    written = {store.buffer for store in nodes_in(kernel.body, tirx.BufferStore)}
    for call in nodes_in(kernel.body, Call):
        if op_name(call) not in (None, _POINTER):
            pointers = (p for p in map(image_of, call.args) if isinstance(p, tirx.Var))
            (written if _stores(call) else read).update(pointers)
    reads, writes = ({roots[v] for v in used if v in roots} for used in (read, written))
    return {param: (param in reads, param in writes) for param in kernel.params}


def _stores(call: Call) -> bool:
    """Return whether a call writes to the pointer among its arguments."""
    name = str(getattr(call.args[0], "value", "")) if call.args else ""
    stores = (f"{HALF_PREFIX}store", f"{HALF_PREFIX}scatter")
    return op_name(call) == STORE or name.startswith(stores)
