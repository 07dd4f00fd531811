"""Signatures of primary functions: scopes of parameters, and their calls in ``main``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Op, Var

from .expressions import nodes_in, substitute_vars


def with_scopes(function: tirx.PrimFunc, scopes: list[str | None]) -> tirx.PrimFunc:
    """Return ``function`` with its parameters in these memory scopes."""
    buffers = {
        param: tirx.decl_buffer(param.shape, param.dtype, param.name, scope=scope)
        for param, scope in zip(function.params, scopes, strict=True)
        if scope is not None
    }
    return function.specialize(buffers) if buffers else function


def without_scopes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with all its parameters in plain buffers."""
    scopes = [None if p.scope() in ("", "global") else "global" for p in function.params]
    return with_scopes(function, scopes)


def with_parameters(function: tirx.PrimFunc, buffers: Mapping[Var, Var]) -> tirx.PrimFunc:
    """Replace buffers of some parameters with buffers of the same elements.

    Unlike in TVM's ``specialize``, names and alignments may differ.
    """
    params = [buffers.get(param, param) for param in function.params]
    body = substitute_vars(function.body, buffers)
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def bindings_of(function: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a Relax function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def count_readers(function: relax.Function) -> Counter[Var]:
    """Count how often each variable is read in a Relax function, also by its result."""
    readers = Counter(nodes_in(function.body.body, relax.Var))
    for binding in bindings_of(function):
        readers.update(nodes_in(binding.value, relax.Var))
    return readers


def called_function(
    mod: IRModule, value: relax.Expr
) -> tuple[tirx.PrimFunc, list[relax.Expr]] | None:
    """Return the primary function that ``value`` calls and its arguments; ``None`` for no call."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, Op)
    if not is_call or value.op.name != "relax.call_tir" or len(value.args) != 2:
        return None
    arguments = value.args[1]
    fields = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
    return mod[value.args[0]], fields


def parameter_scopes(mod: IRModule) -> dict[str, str]:
    """Return memory scopes of those parameters of ``main`` that are not plain buffers."""
    params = set(mod["main"].params)
    calls = (called_function(mod, binding.value) for binding in bindings_of(mod["main"]))
    return {
        argument.name: param.scope()
        for function, arguments in filter(None, calls)
        for param, argument in zip(function.params, arguments, strict=False)
        if argument in params and param.scope() not in ("", "global")
    }


def wants_schedule(function: tirx.PrimFunc) -> bool:
    """Return whether a function is not scheduled yet.

    TVM's own sorts and scans arrive scheduled, or as low-level loops without blocks.
    """
    body, attributes = function.body, function.attrs or {}
    is_root = isinstance(body, s_tir.SBlockRealize) and body.block.name_hint == "root"
    return is_root and "tirx.is_scheduled" not in attributes


def takes_textures(function: tirx.PrimFunc) -> bool:
    """Return whether a function can read and write textures.

    TVM's scatter functions cannot: they are unscheduled, but loop over elements within a block.
    """
    if not wants_schedule(function):
        return False
    blocks = [block for block in nodes_in(function.body, s_tir.SBlock) if block.name_hint != "root"]
    return not any(nodes_in(block.body, tirx.For) for block in blocks)
