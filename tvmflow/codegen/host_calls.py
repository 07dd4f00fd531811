"""What the host does in a primary function, as a list of launches.

TVM leaves a short program.  For example, with a workspace ``t`` that is a parameter by then
(:mod:`tvmflow.graph.workspaces`)::

    T.call_ffi_kernel("f_kernel", x.data, t.data, 8, 64, launch_params=["blockIdx.x", ...])
    T.call_ffi_kernel("f_kernel_1", t.data, y.data, 4, 64, launch_params=["blockIdx.x", ...])

Loops over launches are unrolled.  Memory and computations with data are refused: a plan cannot
express them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.sym import Analyzer

from ..errors import CompileError
from .accesses import accesses_of
from .kernels import Kernels
from .textures import image_of

REMEDY = "Compile with `format=tvm`, whose modules run in TVM's runtime."
_LAUNCH = "tirx.call_ffi_kernel"
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
        f"The function {function} cannot be part of a standalone module: {what}.",
        remedy=REMEDY,
    )


#: Launches of one primary function, at most: a loop of more is no loop over kernels.
_LIMIT = 4096


def kernel_calls(kernels: Kernels, name: str) -> list[KernelCall]:
    """The launches of a primary function.

    Raises
    ------
    CompileError
        If its host does anything else than launching kernels of static sizes.
    """
    host = _Host(kernels, name)
    host.run(kernels.hosts[name].body)
    return [call for call in host.calls if 0 not in call.global_size]


class _Host:
    """Runs the host's side of a function, where only numbers that are known can occur."""

    def __init__(self, kernels: Kernels, name: str):
        self.kernels, self.name = kernels, name
        self.calls: list[KernelCall] = []
        params = kernels.hosts[name].params
        self.behind: dict[Any, int] = {param: i for i, param in enumerate(params)}
        #: What variables are.  Functions of TVM's own accept tensors that begin inside of
        #: others; those of a plan do not.
        self.values: dict[Any, Any] = {
            param.elem_offset: tirx.const(0, param.elem_offset.ty.dtype)
            for param in params
            if tirx.is_buffer_var(param) and isinstance(param.elem_offset, tirx.Var)
        }
        self.analyzer = Analyzer()

    def run(self, body: tirx.Stmt) -> None:
        """Follow a statement."""
        if isinstance(body, tirx.SeqStmt):
            for statement in body.seq:
                self.run(statement)
        elif isinstance(body, tirx.AttrStmt):
            self.run(body.body)
        elif isinstance(body, tirx.DeclBuffer):
            self.behind[body.buffer] = self.behind[image_of(body.data)]
        elif isinstance(body, tirx.Bind):
            self.values[body.var] = self.evaluate(body.value, str(body.var.name))
        elif isinstance(body, tirx.For):
            begin, extent = (int(self.evaluate(e, "a loop")) for e in (body.min, body.extent))
            for step in range(begin, begin + extent):
                self.values[body.loop_var] = tirx.const(step, body.loop_var.ty.dtype)
                self.run(body.body)
        elif isinstance(body, tirx.IfThenElse):
            branch = body.then_case
            if not int(self.evaluate(body.condition, "a condition")):
                branch = body.else_case
            if branch is not None:
                self.run(branch)
        elif isinstance(body, tirx.Evaluate):
            self.call(body.value)
        elif not isinstance(body, tirx.AssertStmt):
            what = "memory" if isinstance(body, tirx.AllocBuffer) else type(body).__name__
            raise refuse(self.name, f"it has {what} on the host, where only kernels are launched")

    def evaluate(self, value: Any, what: str) -> Any:
        """A number that the host computes, as an immediate."""
        replaced = tvm_ffi.structural_map(value, (tirx.Var, lambda v: self.values.get(v, v)))
        found = self.analyzer.simplify(replaced)
        if not isinstance(found, (tirx.IntImm, tirx.FloatImm)):
            raise refuse(self.name, f"{what} is {found} on the host, not known before it runs")
        return found

    def call(self, call: Any) -> None:
        """Follow a call; what is left of statements that do nothing are numbers."""
        if isinstance(call, (tirx.IntImm, tirx.FloatImm)):
            return
        if not (isinstance(call, Call) and isinstance(call.op, Op) and call.op.name == _LAUNCH):
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
        dimensions = max((_AXES.index(tag[-1]) + 1 for tag in sizes), default=1)
        local = tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in _AXES[:dimensions])
        groups = tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in _AXES[:dimensions])
        size = tuple(a * b for a, b in zip(local, groups, strict=True))
        arguments = self.arguments(kernel, call.args[1:split])
        self.calls.append(KernelCall(kernel, arguments, size, local))

    def arguments(self, kernel: str, operands: Sequence[Any]) -> tuple[Argument | bytes, ...]:
        """Parameters of the function, and numbers, in the order of the kernel's parameters."""
        device = self.kernels.devices[kernel]
        accesses = accesses_of(device)
        found: list[Argument | bytes] = []
        for param, operand in zip(device.params, operands, strict=True):
            source = self.behind.get(image_of(operand)) if isinstance(operand, Call) else None
            if source is not None:
                found.append(Argument(source, *accesses[param]))
                continue
            value = self.evaluate(operand, f"{param.name} of the kernel {kernel}")
            found.append(np.array(value.value, str(operand.ty.dtype)).tobytes())
        return tuple(found)
