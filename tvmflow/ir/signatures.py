"""Signatures of primary functions: the scopes of their parameters, and who calls them."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Op, Var

from .expressions import nodes_in, substitute_vars


def with_scopes(function: tirx.PrimFunc, scopes: list[str | None]) -> tirx.PrimFunc:
    """``function`` with its parameters in these memory scopes."""
    buffers = {
        param: tirx.decl_buffer(param.shape, param.dtype, param.name, scope=scope)
        for param, scope in zip(function.params, scopes, strict=True)
        if scope is not None
    }
    return function.specialize(buffers) if buffers else function


def with_parameters(function: tirx.PrimFunc, buffers: Mapping[Var, Var]) -> tirx.PrimFunc:
    """``function`` with other buffers of the same elements for some of its parameters.

    Their names and alignments may differ, which TVM's ``specialize`` keeps or refuses.
    """
    params = [buffers.get(param, param) for param in function.params]
    body = substitute_vars(function.body, buffers)
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def bindings_of(function: relax.Function) -> list[relax.Binding]:
    """The bindings of a Relax function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def called_function(
    mod: IRModule, value: relax.Expr
) -> tuple[tirx.PrimFunc, list[relax.Expr]] | None:
    """The primary function that ``value`` calls and its tensor arguments, if it does."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, Op)
    if not is_call or value.op.name != "relax.call_tir" or len(value.args) != 2:
        return None
    arguments = value.args[1]
    fields = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
    return mod[value.args[0]], fields


def parameter_scopes(mod: IRModule) -> dict[str, str]:
    """Memory scopes of those parameters of ``main`` that are no plain buffers."""
    params = set(mod["main"].params)
    calls = (called_function(mod, binding.value) for binding in bindings_of(mod["main"]))
    return {
        argument.name: param.scope()
        for function, arguments in filter(None, calls)
        for param, argument in zip(function.params, arguments, strict=False)
        if argument in params and param.scope() not in ("", "global")
    }


def wants_schedule(function: tirx.PrimFunc) -> bool:
    """True if a function is still a plain computation.

    TVM's own sorts and scans come scheduled, or as low-level loops without blocks.
    """
    body, attributes = function.body, function.attrs or {}
    is_root = isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"
    return is_root and "tirx.is_scheduled" not in attributes


def takes_textures(function: tirx.PrimFunc) -> bool:
    """True if a function can read and write textures: a plain computation of whole elements.

    TVM's scattering is to be scheduled, but has loops within its block, element by element.
    """
    if not wants_schedule(function):
        return False
    blocks = [block for block in nodes_in(function.body, s_tir.SBlock) if block.name_hint != "root"]
    return not any(nodes_in(block.body, tirx.For) for block in blocks)
