"""Removal of run-time checks of primary functions' arguments that cannot fail.

TVM begins the host's side of each primary function with some fifty checks per argument: type, rank,
extents, strides, offset, device.  With their messages they are four fifths of the library, and of
LLVM's time.  `main` checks its own arguments.  Tensors that it allocates have the type that they
are declared with, and so have weights; if that is the type of the function's parameter, all checks
hold, and they are removed (`mark_checked`, then `DropChecks`)::

    alloc = R.vm.alloc_tensor(buffer0, 0, R.shape([1, 4, 8, 8, 4]), R.dtype("float32"), 0)
    conv2d(x, w, alloc)        # keeps its checks: x is an input
    pool(alloc, w, alloc1)     # has none

Inputs keep theirs: strides and offsets of a caller's tensor are checked nowhere else.  Functions of
symbolic extents keep theirs, too, as the checks determine the extents.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import IRModule, relax, tirx

from ..ir.passes import module_pass
from ..ir.rewriter import op_name
from ..ir.signatures import bindings_of

#: Attribute of primary functions whose arguments are known to be right.
CHECKED = "tvmflow.arguments_checked"

#: Functions that create a compact tensor of its declared type, without an offset.
_ALLOCATIONS = ("relax.vm.alloc_tensor", "vm.builtin.alloc_tensor")
#: Functions that return a view of their first argument.
_VIEWS = ("vm.builtin.reshape",)


def mark_checked(mod: IRModule) -> IRModule:
    """Mark functions that are only called with the program's own tensors, of matching types.

    ``mod`` is ready for TVM's virtual machine; its functions' parameters starting at index
    ``num_input``, an attribute, are weights.
    """
    unknown: set[str] = set()
    called: set[str] = set()

    def look(expr: relax.Expr, own: set[relax.Var]) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, relax.GlobalVar):
            callee = mod[expr.op]
            if isinstance(callee, tirx.PrimFunc):
                name = expr.op.name_hint
                called.add(name)
                if not (own.issuperset(expr.args) and _fits(expr.args, callee)):
                    unknown.add(name)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            own = _own_tensors(function)
            relax.analysis.post_order_visit(function, lambda expr, own=own: look(expr, own))
    return IRModule(
        {
            gv: f.with_attr(CHECKED, True) if gv.name_hint in called - unknown else f
            for gv, f in mod.functions.items()
        },
        attrs=mod.attrs,
        global_infos=mod.global_infos,
    )


def _own_tensors(function: relax.Function) -> set[relax.Var]:
    """Return weights, allocated tensors, and views of these."""
    inputs = (function.attrs or {}).get("num_input")
    own = set() if inputs is None else set(function.params[int(inputs) :])
    for binding in bindings_of(function):
        value = binding.value
        if not isinstance(value, relax.Call):
            continue
        external = isinstance(value.op, relax.ExternFunc)
        name = str(value.op.global_symbol) if external else op_name(value)
        if name in _ALLOCATIONS or (name in _VIEWS and value.args[0] in own):
            own.add(binding.var)
    return own


def _fits(arguments: list[relax.Expr], callee: tirx.PrimFunc) -> bool:
    """Return whether arguments have exactly the constant shapes and types of the parameters."""
    return len(arguments) == len(callee.params) and all(
        isinstance(parameter.ty, tirx.BufferType)
        and isinstance(argument.ty.shape, relax.ShapeExpr)
        and argument.ty.dtype == parameter.ty.dtype
        and _extents(argument.ty.shape) == _extents(parameter.ty.shape) is not None
        for argument, parameter in zip(arguments, callee.params, strict=True)
    )


def _extents(shape: Iterable[tirx.Expr]) -> list[int] | None:
    """Return the extents if all are constant."""
    extents = list(shape)
    return [int(e) for e in extents] if all(isinstance(e, tirx.IntImm) for e in extents) else None


@module_pass("DropChecks")
def DropChecks(mod: IRModule) -> IRModule:
    """Remove the checks of marked functions; runs on the host's functions."""
    marked = {gv: f for gv, f in mod.functions.items() if f.attrs.get(CHECKED)}
    without = tirx.transform.SkipAssert()(IRModule(marked, attrs=mod.attrs))
    return IRModule({**mod.functions, **without.functions}, attrs=mod.attrs)
