"""What the host does in a primary function, as a list of launches.

TVM leaves a short program.  For example, with a workspace ``t`` that is a parameter by then
(:mod:`..graph.workspaces`)::

    T.call_ffi_kernel("f_kernel", x.data, t.data, 8, 64, launch_params=["blockIdx.x", ...])
    T.call_ffi_kernel("f_kernel_1", t.data, y.data, 4, 64, launch_params=["blockIdx.x", ...])

Loops, conditions, memory and computations on the host are refused: a plan cannot express them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad

from ..errors import CompileError
from ..texture.half import PREFIX as HALF_PREFIX
from ..texture.lowering import STORE, image_of
from .kernels import Kernels

REMEDY = "Compile with --format tvm, whose modules run in TVM's runtime."
_LAUNCH = "tirx.call_ffi_kernel"
#: The pointer of a buffer, whatever is done with it.
_POINTER = "tirx.buffer_data"
_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel that is a parameter of the primary function."""

    #: Its number.
    source: int
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
    """The error for something that a plan cannot hold."""
    return CompileError(
        f"The primary function {function} cannot be part of a standalone module: {what}.",
        remedy=REMEDY,
    )


def kernel_calls(kernels: Kernels, name: str) -> list[KernelCall]:
    """The launches of a primary function.

    Raises
    ------
    CompileError
        If its host does anything else than launching kernels of static sizes.
    """
    host = kernels.hosts[name]
    behind: dict[Any, int] = {param: i for i, param in enumerate(host.params)}
    calls = []
    for statement in _statements(host.body, name):
        if isinstance(statement, tirx.DeclBuffer):
            behind[statement.buffer] = behind[image_of(statement.data)]
        elif (call := _launch_of(statement)) is not None:
            calls.append(_kernel_call(call, behind, kernels, name))
    return [call for call in calls if 0 not in call.global_size]


def _statements(body: tirx.Stmt, name: str) -> Iterator[tirx.Stmt]:
    """Names of buffers and launches, in order."""
    if isinstance(body, tirx.SeqStmt):
        for statement in body.seq:
            yield from _statements(statement, name)
    elif isinstance(body, tirx.AttrStmt):
        yield from _statements(body.body, name)
    elif isinstance(body, tirx.DeclBuffer) or _launch_of(body) is not None:
        yield body
    elif isinstance(body, tirx.Evaluate) and isinstance(body.value, (tirx.IntImm, tirx.FloatImm)):
        return  # what is left of a statement that does nothing
    elif not isinstance(body, tirx.AssertStmt):
        kind = {
            tirx.For: "a loop",
            tirx.While: "a loop",
            tirx.IfThenElse: "a condition",
            tirx.AllocBuffer: "memory of its own",
        }
        what = kind.get(type(body), f"a computation ({type(body).__name__})")
        raise refuse(name, f"it has {what} on the host, where only kernels are launched")


def _launch_of(statement: tirx.Stmt) -> Call | None:
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    is_launch = isinstance(call, Call) and isinstance(call.op, Op) and call.op.name == _LAUNCH
    return call if is_launch else None


def _kernel_call(call: Call, behind: dict[Any, int], kernels: Kernels, name: str) -> KernelCall:
    tags = [str(tag) for tag in call.attrs.launch_params]
    kernel = str(call.args[0].value)
    operands = list(call.args[1 : len(call.args) - len(tags)])
    extents = call.args[len(call.args) - len(tags) :]
    sizes: dict[str, int] = {}
    for tag, extent in zip(tags, extents, strict=True):
        if not tag.startswith(("blockIdx.", "threadIdx.")):
            raise refuse(name, f"its kernel {kernel} has the launch parameter {tag}")
        sizes[tag] = _constant(extent, name, f"the size of its kernel {kernel}")
    dimensions = max((_AXES.index(tag[-1]) + 1 for tag in sizes), default=1)
    local = tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in _AXES[:dimensions])
    groups = tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in _AXES[:dimensions])
    device = kernels.devices[kernel]
    accesses = accesses_of(device)
    arguments: list[Argument | bytes] = []
    for param, operand in zip(device.params, operands, strict=True):
        if isinstance(operand, (tirx.IntImm, tirx.FloatImm)):
            arguments.append(np.array(operand.value, str(operand.ty.dtype)).tobytes())
            continue
        source = behind.get(image_of(operand))
        if source is None:
            raise refuse(name, f"its kernel {kernel} takes {operand}, which the host computes")
        arguments.append(Argument(source, *accesses[param]))
    return KernelCall(
        kernel, tuple(arguments), tuple(a * b for a, b in zip(local, groups, strict=True)), local
    )


def _constant(extent: Any, name: str, what: str) -> int:
    if not isinstance(extent, (int, tirx.IntImm)):
        raise refuse(name, f"{what} is {extent}, which is not known before it runs")
    return int(extent)


def accesses_of(kernel: tirx.PrimFunc) -> dict[Any, tuple[bool, bool]]:
    """Which parameters a kernel reads, and which ones it writes."""
    behind: dict[Any, Any] = {param: param for param in kernel.params}
    read: set[Any] = set()
    written: set[Any] = set()

    def declare(statement: tirx.DeclBuffer) -> None:
        if image_of(statement.data) in behind:
            behind[statement.buffer] = behind[image_of(statement.data)]

    def load(load: TensorLoad) -> None:
        if load.source in behind:
            read.add(behind[load.source])

    def store(statement: tirx.BufferStore) -> None:
        if statement.buffer in behind:
            written.add(behind[statement.buffer])

    def call(call: Call) -> None:
        if not isinstance(call.op, Op) or call.op.name == _POINTER:
            return
        pointers = [image_of(a) for a in call.args]
        used = [behind[p] for p in pointers if _is_key(p) and p in behind]
        (written if _stores(call) else read).update(used)

    tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, declare))
    tvm_ffi.structural_walk(
        kernel.body, [(TensorLoad, load), (tirx.BufferStore, store), (Call, call)]
    )
    return {param: (param in read, param in written) for param in kernel.params}


def _is_key(value: Any) -> bool:
    return isinstance(value, tirx.Var) or tirx.is_buffer_var(value)


def _stores(call: Call) -> bool:
    """Whether a call writes to the pointer among its arguments."""
    if call.op.name == STORE:
        return True
    name = getattr(call.args[0], "value", "") if call.args else ""
    return isinstance(name, str) and name.startswith(
        (f"{HALF_PREFIX}store", f"{HALF_PREFIX}scatter")
    )
