"""Memory between the kernels of one primary function, among the tensors that `main` allocates.

Kernels of a function that pass values through the device's memory get it as another parameter:
TVM would take it from a pool of the calling thread while the function runs.  Before::

    def f(x, y):                                   _     = f(x, alloc)
        t = T.sblock_alloc_buffer((4096,))

After::

    def f(x, y, t):                                own   = R.builtin.alloc_tensor((4096,))
                                                   _     = f(x, alloc, own)
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax, tirx

from ..codegen.workspaces import with_workspaces
from ..ir.passes import module_pass


@module_pass("HoistWorkspaces")
def HoistWorkspaces(mod: IRModule) -> IRModule:  # noqa: N802
    """Make workspaces tensors of `main`; runs when calls write to tensors that it allocates.

    Functions that are no scheduled blocks keep what they allocate: see
    `tvmflow.codegen.workspaces.allocates`.
    """
    builder = relax.BlockBuilder()
    calls: dict[str, tuple[tvm.ir.GlobalVar, list[Any]]] = {}
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            changed, workspaces = with_workspaces(function)
            calls[gv.name_hint] = builder.add_func(changed, gv.name_hint), workspaces
    functions = dict(builder.get().functions.items())
    for gv, function in mod.functions.items():
        if gv.name_hint == "main":
            functions[gv] = _with_allocations(function, calls)
        elif not isinstance(function, tirx.PrimFunc):
            functions[gv] = function
    return IRModule(functions, attrs=mod.attrs)


def allocation(name: str, ty: Any) -> relax.VarBinding:
    """A binding that allocates a tensor of a type."""
    shape = relax.ShapeExpr(list(ty.shape))
    value = relax.op.builtin.alloc_tensor(shape, str(ty.dtype), 0)
    return relax.VarBinding(relax.Var(name, ty), value)


def _with_allocations(
    main: relax.Function, calls: dict[str, tuple[tvm.ir.GlobalVar, list[Any]]]
) -> relax.Function:
    bindings: list[relax.Binding] = []
    for binding in (b for block in main.body.blocks for b in block.bindings):
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            name = value.op.name_hint
            function, workspaces = calls[name]
            own = [allocation(f"{name}_workspace", _tensor(buffer)) for buffer in workspaces]
            bindings += own
            arguments = [*value.args, *(b.var for b in own)]
            value = relax.Call(function, arguments, value.attrs, value.ty_args)
        bindings.append(relax.VarBinding(binding.var, value))
    return with_body(main, relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body))


def with_body(main: relax.Function, body: relax.SeqExpr) -> relax.Function:
    """A function with another body."""
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)


def _tensor(buffer: Any) -> Any:
    return relax.TensorType([int(d) for d in buffer.shape], str(buffer.dtype))
