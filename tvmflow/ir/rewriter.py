"""Rewriting of ``main``, binding by binding.

The front end returns one function of one dataflow block.  A :class:`Rewriter` walks its bindings in
order, emits new ones, and remembers the new expression of each old variable.
:func:`with_bindings` is for passes that change bindings and keep the variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst, Op

from .signatures import bindings_of, with_parameters


def with_bindings(
    function: relax.Function, change: Callable[[relax.Binding], Iterable[relax.Binding]]
) -> relax.Function:
    """Replace each binding of a function with others, in the same blocks."""
    blocks = [
        type(block)([new for old in block.bindings for new in change(old)])
        for block in function.body.blocks
    ]
    return with_body(function, blocks, function.body.body)


def with_body(
    function: relax.Function,
    blocks: Sequence[relax.BindingBlock],
    result: relax.Expr,
    params: Sequence[relax.Var] = (),
) -> relax.Function:
    """Replace the body of a function, and append parameters."""
    body = relax.SeqExpr(blocks, result)
    params = [*function.params, *params]
    return relax.Function(
        params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )


def with_main(mod: IRModule, main: relax.Function, primary: IRModule | None = None) -> IRModule:
    """Replace ``main`` of a module, and its primary functions with those of ``primary``."""
    functions = dict(primary.functions.items()) if primary is not None else {}
    for gv, function in mod.functions.items():
        if gv.name_hint == "main":
            functions[gv] = main
        elif primary is None or not isinstance(function, tirx.PrimFunc):
            functions[gv] = function
    return IRModule(functions, attrs=mod.attrs)


class Rewriter:
    """Base of passes that rebuild ``main`` binding by binding.

    A subclass overrides :meth:`rewrite`, which gets the old variable and its
    value and returns the new expression (already emitted or not), and
    :meth:`plain`, if a variable can live in more than one form.
    """

    def __init__(self, mod: IRModule):
        self.mod = mod
        self.bb = relax.BlockBuilder(mod)
        self.env: dict[relax.Var, relax.Expr] = {}

    def run(self) -> IRModule:
        """Rewrite ``main`` and return the new module."""
        main = self.mod["main"]
        params = [self.parameter(index, param) for index, param in enumerate(main.params)]
        self.env.update(zip(main.params, params, strict=True))
        self.start(params)
        with self.bb.function("main_rewritten", params, attrs=dict(main.attrs or {})):
            with self.bb.dataflow():
                for binding in bindings_of(main):
                    new = self.rewrite(binding.var, binding.value)
                    if new is None:
                        continue  # the subclass stores the variable itself
                    if not isinstance(new, (relax.Var, GenericConst)):
                        new = self.bb.emit(new, name_hint=identifier(binding.var.name))
                    self.env[binding.var] = new
                result = self.bb.emit_output(self.result(main.body.body))
            self.bb.emit_func_output(result)
        rewritten = self.bb.get()
        function = rewritten["main_rewritten"].with_attr("global_symbol", "main")
        functions = {
            gv: with_identifiers(f)
            for gv, f in rewritten.functions.items()
            if gv.name_hint not in ("main", "main_rewritten")
        }
        functions[relax.GlobalVar("main")] = function
        return IRModule(functions, attrs=rewritten.attrs)

    def parameter(self, index: int, old: relax.Var) -> relax.Var:
        """Return the new parameter of ``main`` for an old one."""
        return relax.Var(f"{identifier(old.name)}_{index}", old.ty)

    def result(self, old: relax.Expr) -> relax.Expr:
        """Return the new result of ``main`` for the old one."""
        return self.substitute(old)

    def start(self, params: list[relax.Var]) -> None:
        """Prepare for the first binding; called once."""

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        """Return the new expression for ``var``; the default changes only its arguments."""
        return self.substitute(value)

    def plain(self, var: relax.Var) -> relax.Expr:
        """Return the new expression of an old variable."""
        return self.env.get(var, var)

    def substitute(self, expr: relax.Expr) -> relax.Expr:
        """Replace every old variable in ``expr``."""
        return tvm_ffi.structural_map(expr, (relax.Var, self.plain))


def identifier(name: str) -> str:
    """Return ``name`` as a C identifier, since names of variables reach the kernels' source.

    ONNX names may contain anything; exporters write ``/features/conv/Conv_output_0`` and ``495``.
    """
    return re.sub(r"^(?=\d|$)|\W", "_", name, flags=re.ASCII)


def with_identifiers(function: relax.Function | tirx.PrimFunc) -> relax.Function | tirx.PrimFunc:
    """Rename parameters of a primary function to identifiers."""
    if not isinstance(function, tirx.PrimFunc):
        return function
    renamed = {
        # With the old layout: TVM's fusion takes a tensor with another layout for another tensor.
        param: tirx.decl_buffer(
            param.shape, param.dtype, name, scope=param.scope(), layout=param.layout
        )
        for param in function.params
        if tirx.is_buffer_var(param) and (name := identifier(param.name)) != param.name
    }
    return with_parameters(function, renamed) if renamed else function


def constant(array: np.ndarray | np.generic) -> relax.Expr:
    """Return an array as a constant of exactly its dtype, which Relax would narrow.

    The array is copied once; `relax.const` copies it twice.
    """
    return relax.const(tvm.runtime.tensor(np.asarray(array, order="C")))


def constant_array(expr: relax.Expr) -> np.ndarray | None:
    """Return the read-only value of a constant; ``None`` for any other expression."""
    if not isinstance(expr, GenericConst):
        return None
    array = np.from_dlpack(expr.value)  # which `numpy()` copies
    array.flags.writeable = False
    return array


def constant_number(expr: relax.Expr) -> float | None:
    """Return the value of a constant of one element; ``None`` for any other expression."""
    array = constant_array(expr)
    return None if array is None or array.size != 1 else float(array.reshape(()))


def narrow_source(
    expr: relax.Expr, definition: Callable[[relax.Expr], relax.Expr]
) -> tuple[relax.Expr, int] | None:
    """Return the 8-bit tensor and zero point of ``astype(x) - zero``; ``None`` otherwise."""
    zero, value = 0, definition(expr)
    if op_name(value) == "relax.subtract":
        point = constant_array(value.args[1])
        if point is None or point.size != 1:
            return None
        zero, value = int(point.reshape(())), definition(value.args[0])
    narrow = op_name(value) == "relax.astype" and str(value.args[0].ty.dtype) in ("int8", "uint8")
    return (value.args[0], zero) if narrow else None


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    """Return the static shape of a tensor expression."""
    return ints(expr.ty.shape)


def elements_of(expr: relax.Expr) -> int:
    """Return the number of elements of a tensor; 0 for anything else."""
    return prod(shape_of(expr)) if isinstance(expr.ty, relax.TensorType) else 0


def ints(values: Iterable[tirx.IntImm]) -> tuple[int, ...]:
    """Convert TVM's integers to Python's."""
    return tuple(int(value) for value in values)


def op_name(expr: relax.Expr) -> str | None:
    """Return the operator that a call has, such as ``relax.nn.conv2d``; else ``None``."""
    return expr.op.name if isinstance(expr, relax.Call) and isinstance(expr.op, Op) else None
