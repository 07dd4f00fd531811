"""The pass that makes and applies the plan of :mod:`.memory`."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst, Op, StringImm

from ..ir.rewriter import op_name, shape_of
from ..ir.scope import CHANNELS
from .memory import Block, Kind, MemoryPlan, Tensor, assign_blocks


class _Planner:
    """Follows tensors through ``main`` under all their names."""

    def __init__(self, mod: IRModule):
        self.mod = mod
        self.main = mod["main"]
        self.bindings = [b for block in self.main.body.blocks for b in block.bindings]
        #: Allocated tensors that a variable may refer to.
        self.behind: dict[relax.Var, set[relax.Var]] = {}
        self.tensors: dict[relax.Var, Tensor] = {}
        #: What tuples are made of.
        self.fields: dict[relax.Var, list[relax.Expr]] = {}
        #: What has been called so far.
        self.steps: list[str] = []

    def run(self) -> tuple[IRModule, MemoryPlan]:
        """Return the module with the plan applied, and the plan."""
        for binding in self.bindings:
            self._follow(binding)
        results = self._behind(self.main.body.body)
        shared = [t for var, t in self.tensors.items() if var not in results]
        plan = MemoryPlan(list(self.tensors.values()), assign_blocks(shared), self.steps)
        return self._apply(plan), plan

    def _behind(self, expr: relax.Expr) -> set[relax.Var]:
        found: set[relax.Var] = set()

        def visit(var: relax.Var) -> None:
            found.update(self.behind.get(var, ()))

        tvm_ffi.structural_walk(expr, (relax.Var, visit))
        return found

    def _follow(self, binding: relax.Binding) -> None:
        value, step = binding.value, len(self.steps)
        if op_name(value) == "relax.builtin.alloc_tensor":
            shape = shape_of(binding.var)
            tensor = Tensor(
                binding.var.name, shape, str(binding.var.ty.dtype), first=step, last=step
            )
            self.tensors[binding.var] = tensor
            self.behind[binding.var] = {binding.var}
            return
        used = self._behind(value)
        # A view, a tuple or another name reads nothing; whoever reads through it does.
        if isinstance(value, relax.Call) and op_name(value) != "relax.reshape":
            for var in used:
                self.tensors[var].last = step
            self.steps.append(_name_of(value.op))
        if isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
            self._call(value)
        else:
            # A view, a tuple or one of its fields, or whatever a packed function may return.
            self.behind[binding.var] = used
            if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
                for var in used:
                    self.tensors[var].producer = self.tensors[var].producer or _name_of(value.op)
        if isinstance(value, relax.Tuple):
            self.fields[binding.var] = list(value.fields)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self.fields:
            value = self.fields[value.tuple_value][value.index]
        if isinstance(value, relax.Var):
            for var in self._behind(value):
                self.tensors[var].name = binding.var.name

    def _call(self, call: relax.Call) -> None:
        """A call of a primary function, which reads its first parameters and writes the rest."""
        function = self.mod[call.op]
        for index, argument in enumerate(call.args):
            for var in self._behind(argument):
                tensor = self.tensors[var]
                if tensor.producer:
                    tensor.readers.append(call.op.name_hint)
                    continue
                tensor.producer = call.op.name_hint
                param = function.params[index]
                if tirx.is_buffer_var(param) and param.scope() not in ("", "global"):
                    tensor.scope = param.scope()

    # -- applying it ---------------------------------------------------------------------------

    def _apply(self, plan: MemoryPlan) -> IRModule:
        storages: dict[int, relax.Var] = {}
        bindings: list[relax.Binding] = []
        for binding in self.bindings:
            tensor = self.tensors.get(binding.var)
            if tensor is None or (tensor.block is None and tensor.scope is None):
                bindings.append(binding)
                continue
            if tensor.block is None:
                # A result in an image of its own.
                own = Block(tensor.kind, tensor.bytes, tensor.extent)
                storage = relax.Var(f"{tensor.name}_image", relax.ObjectType())
                bindings.append(relax.VarBinding(storage, _allocate(own)))
                value = _tensor_in(storage, tensor, binding.var.ty)
                bindings.append(relax.VarBinding(binding.var, value))
                continue
            if tensor.block not in storages:
                value = _allocate(plan.blocks[tensor.block])
                name = f"{'image' if tensor.is_image else 'buffer'}{tensor.block}"
                storages[tensor.block] = relax.Var(name, relax.ObjectType())
                bindings.append(relax.VarBinding(storages[tensor.block], value))
            value = _tensor_in(storages[tensor.block], tensor, binding.var.ty)
            bindings.append(relax.VarBinding(binding.var, value))
        main = self.main
        body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
        function = relax.Function(
            main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span
        )
        functions = {
            gv: function if gv.name_hint == "main" else f for gv, f in self.mod.functions.items()
        }
        return IRModule(functions, attrs=self.mod.attrs)


def _name_of(operator: relax.Expr) -> str:
    """Name of a primary function, a packed function or an operator."""
    for attribute in ("name_hint", "global_symbol", "name"):
        if hasattr(operator, attribute):
            return str(getattr(operator, attribute))
    return str(operator)


def _allocate(block: Block) -> relax.Expr:
    extent, dtype = block.extent, "float32"
    if extent is not None:
        shape = [extent.layers, extent.height, extent.width, CHANNELS]
    elif block.kind is Kind.HALF_BUFFER:
        shape = [block.bytes // 2]
    else:
        shape, dtype = [block.bytes], "uint8"
    # The virtual machine's own operator: that of the memory dialect forgets the dtype.
    operator = Op.get("relax.vm.alloc_storage")
    return relax.Call(
        operator,
        [relax.ShapeExpr(shape), relax.prim_value(0), _dtype(dtype), StringImm(block.kind.value)],
    )


def _tensor_in(storage: relax.Var, tensor: Tensor, ty: Any) -> relax.Expr:
    shape = relax.ShapeExpr(tensor.shape)
    if tensor.scope is None:
        return relax.op.memory.alloc_tensor(storage, 0, shape, tensor.dtype)
    arguments = [
        storage,
        relax.prim_value(0),
        shape,
        _dtype(tensor.dtype),
        StringImm(tensor.scope),
    ]
    allocate = relax.ExternFunc("vm.builtin.alloc_tensor")
    return relax.Call(allocate, arguments, None, [ty])


def _dtype(name: str) -> relax.Expr:
    return GenericConst(tvm.DataType(name), relax.AnyType())


def plan_memory(mod: IRModule) -> tuple[IRModule, MemoryPlan]:
    """Plan the memory of ``main`` and write the plan into it."""
    return _Planner(mod).run()
