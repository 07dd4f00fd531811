"""Extraction of the execution plan from a compiled network.

`main`, with its memory planned, is a list of bindings; each is processed once::

    image0 = R.vm.alloc_storage(R.shape([1, 64, 16, 4]), ...)    an allocation
    alloc  = R.call_packed("vm.builtin.alloc_tensor", image0, 0, ...)   a tensor in it
    _      = conv2d(x, w, alloc)                                 its launches
    lv     = R.reshape(alloc, ...)                               the same tensor

Inputs, weights and results have separate allocations.  A kernel copies a result that is an input,
a constant, or another result under a second name, so that an application may provide memory for
any input and output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst, StringImm

from ...codegen.kernels import REMEDY, KernelCall, Kernels, kernel_calls, refuse
from ...errors import CompileError
from ...ir.rewriter import op_name, shape_of
from ...ir.signatures import bindings_of
from ...ir.tensors import TensorInfo
from ...module.standalone.format import MAX_DIMENSIONS
from ...module.standalone.plan import (
    COPY,
    Allocation,
    Call,
    Interface,
    Launch,
    Operand,
    Plan,
    PlanTensor,
)

_ALLOC_TENSOR = "vm.builtin.alloc_tensor"


@dataclass
class PlanExtractor:
    """Extractor of the plan of a module with planned memory and generated code."""

    mod: IRModule
    kernels: Kernels
    #: Inputs and outputs, and the weights, in the order of the parameters of ``main``.
    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]
    given: Mapping[str, np.ndarray]
    plan: Plan = field(default_factory=Plan)
    #: Value of each variable: a tensor, a tuple of tensors, or the number of an allocation.
    env: dict[relax.Var, Any] = field(default_factory=dict)
    constants: dict[int, PlanTensor] = field(default_factory=dict)
    calls: dict[str, list[KernelCall]] = field(default_factory=dict)
    #: Names in `given` of the parameters of ``main``, whose own names are identifiers.
    names: dict[relax.Var, str] = field(default_factory=dict)

    def run(self) -> Plan:
        """Return the plan of ``main``.

        Raises `CompileError` if launches of static sizes cannot express the program.
        """
        for info in (*self.inputs, *self.outputs):
            if len(info.shape) > MAX_DIMENSIONS:
                raise CompileError(
                    f"A standalone module cannot be made: {info.name!r} has {len(info.shape)} "
                    f"dimensions, but its C interface has at most {MAX_DIMENSIONS}.",
                    remedy=REMEDY,
                )
        main = self.mod["main"]
        params = set(main.params)
        # Take the scopes of the parameters of ``main`` from the functions that read them.
        self.scopes = {
            argument: _scope(param)
            for call in (b.value for b in bindings_of(main) if isinstance(b.value, relax.Call))
            if isinstance(call.op, relax.GlobalVar)
            for param, argument in zip(self.mod[call.op].params, call.args, strict=True)
            if argument in params
        }
        inputs = main.params[: len(self.inputs)]
        self.names = dict(zip(main.params[len(inputs) :], self.given, strict=True))
        for param, info in zip(inputs, self.inputs, strict=True):
            scope = self.scopes.get(param, info.scope)
            self.env[param] = self._tensor(info.name, info.shape, info.dtype, scope)
            self.plan.inputs.append(Interface(info, self.env[param]))
        for binding in bindings_of(main):
            self.env[binding.var] = value = self._value(binding.var, binding.value)
            if isinstance(binding.value, relax.Var) and isinstance(value, PlanTensor):
                layout = f"{list(shape_of(binding.var))} {binding.var.ty.dtype}"
                self.plan.names[id(value)] = binding.var.name, layout
        results = self._operand(main.body.body)
        self._results(results if isinstance(results, tuple) else (results,))
        used = {launch.kernel for launch in self.plan.launches}
        self.plan.sources |= {k: v for k, v in self.kernels.sources.items() if k in used}
        self.plan.code = self.kernels.code
        return self.plan

    # -- parameters ------------------------------------------------------------------------------

    def _weight(self, name: str, array: np.ndarray, scope: str | None) -> PlanTensor:
        # The arrays of 16-bit weights already have 16 bits.
        tensor = self._tensor(name, tuple(array.shape), array.dtype.name, scope)
        if prod(array.shape):
            self.plan.weights[name], self.plan.weight_tensors[name] = array, tensor
        return tensor

    def _operand(self, expr: relax.Expr) -> Any:
        """Return the value of an argument or a result, see `env`."""
        if isinstance(expr, relax.Var):
            if expr not in self.env:
                name = self.names[expr]
                self.env[expr] = self._weight(name, self.given[name], self.scopes.get(expr))
            return self.env[expr]
        if isinstance(expr, GenericConst):
            key = hash(expr.value)
            if key not in self.constants:
                name = f"constant{len(self.constants)}"
                self.constants[key] = self._weight(name, expr.value.numpy(), None)
            return self.constants[key]
        if isinstance(expr, relax.Tuple):
            return tuple(self._operand(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._operand(expr.tuple_value)[expr.index]
        raise CompileError(
            f"A standalone module cannot be made: {type(expr).__name__} in the program has no "
            "place in a plan.",
            remedy=REMEDY,
        )

    # -- bindings ----------------------------------------------------------------------------------

    def _value(self, var: relax.Var, value: relax.Expr) -> Any:
        if not isinstance(value, relax.Call):
            return self._operand(value)
        if isinstance(value.op, relax.GlobalVar):
            return self._call(value)
        name = op_name(value)
        if isinstance(value.op, relax.ExternFunc):
            name = str(value.op.global_symbol)
        if name == "relax.vm.alloc_storage":
            shape = tuple(int(d) for d in value.args[0].values)
            scope = value.args[3].value if isinstance(value.args[3], StringImm) else None
            return self.plan.allocate(Allocation.of(shape, str(value.args[2].value), scope))
        if name == "relax.builtin.alloc_tensor":
            # This is a result, in a separate buffer.
            return self._tensor(var.name, shape_of(var), str(var.ty.dtype), None)
        if name in (_ALLOC_TENSOR, "relax.memory.alloc_tensor"):
            scope = value.args[4].value if name == _ALLOC_TENSOR else None
            return PlanTensor(var.name, self.env[value.args[0]], scope)
        if name == "relax.reshape":
            return self._operand(value.args[0])
        raise refuse(str(name), "it is called on the host and launches no kernels of ours")

    def _tensor(
        self, name: str, shape: tuple[int, ...], dtype: str, scope: str | None
    ) -> PlanTensor:
        return PlanTensor(name, self.plan.allocate(Allocation.of(shape, dtype, scope)), scope)

    def _call(self, call: relax.Call) -> None:
        name = call.op.name_hint
        if name not in self.calls:
            self.calls[name] = kernel_calls(self.kernels, name)
        operands = [self._operand(argument) for argument in call.args]
        for operand, param in zip(operands, self.mod[call.op].params, strict=True):
            if operand.scope != _scope(param):
                raise refuse(
                    name, f"{operand.name} is in {operand.scope}, and it takes {_scope(param)}"
                )
        self._append(name, launches_of(name, self.calls[name], operands), operands)

    def _append(
        self, name: str, launches: Sequence[Launch], operands: Iterable[PlanTensor]
    ) -> None:
        first = len(self.plan.launches)
        self.plan.calls.append(Call(name, first, len(launches), tuple(operands)))
        self.plan.launches += launches

    # -- results -----------------------------------------------------------------------------------

    def _results(self, results: tuple[PlanTensor, ...]) -> None:
        taken = {i.tensor.allocation for i in self.plan.inputs}
        taken |= {tensor.allocation for tensor in self.plan.weight_tensors.values()}
        for info, tensor in zip(self.outputs, results, strict=True):
            if tensor.allocation in taken:
                copy = self.plan.allocate(self.plan.allocations[tensor.allocation])
                target = PlanTensor(info.name, copy, tensor.scope)
                launch, source = copy_launch(tensor, target, self.plan.allocations[copy])
                if self.kernels.code:
                    launch = replace(launch, kernel=COPY, global_size=(1,), local_size=(1,))
                else:
                    self.plan.sources[launch.kernel] = source
                self._append(COPY, [launch], (tensor, target))
                tensor = target
            taken.add(tensor.allocation)
            self.plan.outputs.append(Interface(info, tensor))


def launches_of(
    function: str, kernels: Iterable[KernelCall], operands: Sequence[PlanTensor]
) -> list[Launch]:
    """Return the launches of a function's kernels with these tensors as its parameters."""
    launches = []
    for kernel in kernels:
        arguments = tuple(
            argument
            if isinstance(argument, bytes)
            else Operand(operands[argument.source], argument.read, argument.written)
            for argument in kernel.arguments
        )
        sizes = kernel.global_size, kernel.local_size
        launches.append(Launch(kernel.kernel, function, arguments, *sizes))
    return launches


def _scope(param: tirx.Var) -> str | None:
    """Return the memory scope of a primary function's parameter, ``None`` for a plain buffer."""
    if not tirx.is_buffer_var(param) or param.scope() in ("", "global"):
        return None
    return str(param.scope())


#: OpenCL's types by size; each work-item copies one of the widest type that divides a buffer.
_UNITS = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort", 1: "uchar"}
_GROUP = 64

_BUFFER = """\
__kernel void {name}(__global const {unit}* restrict from, __global {unit}* restrict to) {{
  const size_t i = get_global_id(0);
  to[i] = from[i];
}}
"""
#: Kernel without a sampler, so that coordinates are whole texels.
_IMAGE = """\
__kernel void {name}(__read_only image2d_array_t from, __write_only image2d_array_t to) {{
  const int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_image{suffix}(to, at, read_image{suffix}(from, at));
}}
"""


def copy_launch(
    source: PlanTensor, target: PlanTensor, allocation: Allocation
) -> tuple[Launch, str]:
    """Return a launch that copies a tensor to an allocation of the same kind, and its source."""
    if (extent := allocation.extent) is not None:
        suffix = {"f": "f", "i": "i", "u": "ui"}[allocation.channels[0]]
        name = f"tvmflow_copy_image{suffix}_kernel"
        text = _IMAGE.format(name=name, suffix=suffix)
        size: tuple[int, ...] = (extent.width, extent.height, extent.layers)
        local: tuple[int, ...] = (1, 1, 1)
    else:
        unit = next(unit for unit in _UNITS if allocation.bytes % unit == 0)
        name = f"tvmflow_copy{unit}_kernel"
        text = _BUFFER.format(name=name, unit=_UNITS[unit])
        size = (allocation.bytes // unit,)
        local = (gcd(size[0], _GROUP),)
    arguments = Operand(source, True, False), Operand(target, False, True)
    return Launch(name, COPY, arguments, size, local), text
