"""Tensor names that survive fusion.

Fusion names its results ``lv``, ``lv1`` and so on; users know tensors by the names of the
model.  Before::

    c  = R.call_tir(conv2d, (x, w))         y = R.call_tir(relu, (c,))

After fusion, and with the names restored::

    lv = fused_conv2d_relu(x, w)            y = fused_conv2d_relu(x, w)

Tensors before and after fusion are matched by value numbering: the same operators of the
same arguments are the same tensor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import chain, count
from typing import TypeVar

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GenericConst, GlobalVar

from ..errors import CompileError, nearest
from .expressions import substitute_vars
from .passes import module_pass
from .rewriter import identifier, with_bindings, with_body, with_main
from .signatures import bindings_of

T = TypeVar("T")


def inner_names(imported: IRModule) -> dict[str, str]:
    """Return the tensors inside nodes of the model, ``NODE#1`` and so on, with a reason.

    The reason says why they stay in 32 bits: the square in a norm may be infinite in 16 bits where
    the norm is not.
    """
    names = [binding.var.name for binding in bindings_of(imported["main"])]
    return {identifier(name): "inside a node" for name in names if "#" in name}


def found_in(names: Mapping[str, T], tensor: str, model_names: Collection[str]) -> T | None:
    """Look up a tensor between primary functions in a table of names before layout and fusion.

    The layout pass appends suffixes to a tensor's name, and numbers make names unique; the model's
    own names, ``model_names`` as identifiers, are never shortened.
    """
    name = tensor.removesuffix("_blocked").removesuffix("_plain")
    while name not in names and name not in model_names and name[-1:].isdigit():
        name = name[:-1]
    return names.get(name)


#: Drivers name files after kernels, and file names have at most 255 bytes on most systems.
LONGEST_FUNCTION = 128


@module_pass("ShortenFunctions")
def ShortenFunctions(mod: IRModule) -> IRModule:  # noqa: N802
    """Cut names of fused functions that are too long for drivers, and append a digest."""
    renamed = {}
    for var, _ in mod.functions_items():
        name = var.name_hint
        if len(name) > LONGEST_FUNCTION:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            renamed[name] = f"{name[: LONGEST_FUNCTION - 9]}_{digest}"
    return with_renamed_functions(mod, renamed)


def with_renamed_functions(mod: IRModule, names: Mapping[str, str]) -> IRModule:
    """Rename primary functions of a module; equal functions may get one name."""
    if not names:
        return mod
    renamed: dict[GlobalVar, GlobalVar] = {}
    known = {var.name_hint: var for var, _ in mod.functions_items() if var.name_hint not in names}
    for var, _ in mod.functions_items():
        if (name := names.get(var.name_hint)) is not None:
            if name not in known:
                known[name] = GlobalVar(name)
                relax.expr._update_type(known[name], var.ty)
            renamed[var] = known[name]
    functions = {}
    for var, function in mod.functions_items():
        new = renamed.get(var, var)
        if isinstance(function, relax.Function):
            function = tvm_ffi.structural_map(function, (GlobalVar, lambda v: renamed.get(v, v)))
        elif new is not var:
            function = function.with_attr("global_symbol", new.name_hint)
        functions[new] = function
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


class _Fields(tuple[Hashable, ...]):
    """Values of a tuple's fields, as a type of its own, since other values are tuples, too."""

    __slots__ = ()


class _Values:
    """Value numbering of the tensors of a program, with their names.

    Calls of functions of ``mod`` are entered, and ``inner`` collects the values of their
    bindings.
    """

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.inner: list[Hashable] = []
        self.numbers: dict[Hashable, int] = {}
        self.names: dict[Hashable, list[str]] = {}

    def of(self, expr: relax.Expr, env: dict[relax.Var, Hashable]) -> Hashable:
        """Return the value of ``expr``, given those of its variables in ``env``."""
        if isinstance(expr, relax.Var):
            return env.get(expr, expr.name)
        if isinstance(expr, GenericConst):
            return ("constant", expr.value.__hash__())
        if isinstance(expr, relax.Tuple):
            return _Fields(self.of(field, env) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            fields = self.of(expr.tuple_value, env)
            if isinstance(fields, _Fields):
                return fields[expr.index]
            return ("field", fields, expr.index)
        if not isinstance(expr, relax.Call):
            return str(expr)
        arguments = tuple(self.of(argument, env) for argument in expr.args)
        if isinstance(expr.op, GlobalVar):
            function = self.mod[expr.op]
            within: dict[relax.Var, Hashable] = dict(zip(function.params, arguments, strict=True))
            for binding in bindings_of(function):
                within[binding.var] = self.of(binding.value, within)
                self.inner.append(within[binding.var])
            return self.of(function.body.body, within)
        key = (str(expr.op), arguments, str(expr.attrs), str(expr.ty))
        # A number in place of the key, which would grow with the depth of the expression.
        return ("value", self.numbers.setdefault(key, len(self.numbers)))


def restore_names(
    before: IRModule, fused: IRModule, model_names: Collection[str], members: dict[str, list[str]]
) -> IRModule:
    """Give the variables of ``main`` the names that their tensors had before fusion.

    ``model_names`` are the names of the model's tensors, as identifiers: a number that was appended
    to one of them, because a function has that name, is removed.  ``members`` receives the names of
    the tensors that each call computes, by the name of its result.
    """
    values = _Values(fused)
    env: dict[relax.Var, Hashable] = {p: ("parameter", p.name) for p in before["main"].params}
    for binding in bindings_of(before["main"]):
        env[binding.var] = values.of(binding.value, env)
        name = binding.var.name
        if name not in model_names and (base := name.rstrip("0123456789")) in model_names:
            name = base
        values.names.setdefault(env[binding.var], []).append(name)

    main = fused["main"]
    env = {parameter: ("parameter", parameter.name) for parameter in main.params}
    taken = {parameter.name for parameter in main.params}
    renamed: dict[relax.Var, relax.Var] = {}

    def rename(binding: relax.Binding) -> list[relax.Binding]:
        var, value = binding.var, binding.value
        values.inner.clear()
        env[var] = values.of(value, env)
        known = [values.names[v][0] for v in (*values.inner, env[var]) if values.names.get(v)]
        names = values.names.get(env[var], [])
        # Equal tensors that were computed twice take the names in order.
        name = unique(names.pop(0) if names else var.name, taken)
        # An alias of a tensor, such as an output, has the same members.
        other = renamed.get(value) if isinstance(value, relax.Var) else None
        same = members.get(other.name) if other is not None else None
        members[name] = same or list(dict.fromkeys(known or [name]))
        renamed[var] = type(var)(name, var.ty)
        return [relax.VarBinding(renamed[var], substitute_vars(value, renamed))]

    main = with_bindings(main, rename)
    return with_main(
        fused, with_body(main, main.body.blocks, substitute_vars(main.body.body, renamed))
    )


def nodes_of(members: Mapping[str, list[str]], bindings: Collection[str]) -> dict[str, list[str]]:
    """Return the ONNX nodes of each call, from the tensors that it computes (`restore_names`).

    ``bindings`` are the names that the front end gives to results of nodes: ``NODE``, ``NODE:1``
    and so on; intermediate tensors of a node are ``NODE#1`` and so on.
    """
    nodes = {identifier(name): name for name in bindings}
    for name in bindings:
        node, colon, number = name.rpartition(":")
        if colon and number.isdigit() and node in nodes.values():
            nodes[identifier(name)] = node

    def node_of(name: str) -> str | None:
        # Convolutions of several steps append a suffix to the steps before the last.
        step = re.sub(r"_(tiles|products)\d*$", "", name)
        # A number marks an intermediate tensor, or a name that was taken.
        tries = (name, step, step.rstrip("0123456789"), re.sub(r"_\d+$", "", step))
        return next((nodes[known] for known in tries if known in nodes), None)

    return {
        result: list(dict.fromkeys(found for name in names if (found := node_of(name)) is not None))
        for result, names in members.items()
    }


def nodes_of_functions(mod: IRModule, nodes: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the ONNX nodes of each primary function that ``main`` calls (see `nodes_of`)."""
    found: dict[str, list[str]] = {}
    for binding in bindings_of(mod["main"]):
        value = binding.value
        called = isinstance(value, relax.Call) and value.args
        if called and isinstance(value.args[0], relax.GlobalVar):
            known = found.setdefault(value.args[0].name_hint, [])
            known += [n for n in nodes.get(binding.var.name, []) if n not in known]
    return found


def unique(name: str, taken: set[str], form: Callable[[str], str] = str) -> str:
    """Return ``name``, with a number appended if its form is taken, and take the result."""
    candidates = chain([name], (f"{name}_{number}" for number in count(1)))
    found = next(candidate for candidate in candidates if form(candidate) not in taken)
    taken.add(form(found))
    return found


def resolve_names(
    given: Mapping[str, str],
    known: Collection[str],
    aliases: Mapping[str, str],
    *,
    table: str,
    kind: str,
    unknown: str,
    suffix: str = "",
    remark: str = "",
) -> dict[str, str]:
    """Resolve the names in a user's table, such as ``{"conv1": "winograd4"}``.

    ``aliases`` maps other names, such as ONNX's, to known ones, to which ``suffix`` may have been
    appended.  ``table``, ``kind`` and ``unknown`` are for errors: "The algorithms", "convolution"
    and a sentence about a name ``{!r}``, followed by ``remark`` if the name is an alias.

    Raises ``CompileError`` if a name is unknown (it lists the nearest), or two names disagree.
    """
    result: dict[str, str] = {}
    for name, value in given.items():
        alias = aliases.get(name, name)
        candidates = (name, identifier(name), alias, f"{alias}{suffix}")
        found = next((candidate for candidate in candidates if candidate in known), None)
        if found is None:
            near = nearest(name, list(known), aliases)
            raise CompileError(
                f"{unknown.format(name)}{near}.{remark if name in aliases else ''}",
                remedy=f"Compile with -v, which prints the name of every {kind}.",
            )
        if result.setdefault(found, value) != value:
            raise CompileError(
                f"{table} ask for both {result[found]} and {value} for the {kind} {found}, which "
                f"{name!r} is another name of.",
                remedy=f"Name each {kind} once.",
            )
    return result
