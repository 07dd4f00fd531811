"""Names of tensors through fusion.

Fusion calls its results ``lv``, ``lv1`` and so on; people know the tensors by the names
of the model.  Before::

    c  = R.call_tir(conv2d, (x, w))         y = R.call_tir(relu, (c,))

After fusion, and with the names back::

    lv = fused_conv2d_relu(x, w)            y = fused_conv2d_relu(x, w)

What a fused function computes is compared with what stood there before: the same
operators of the same arguments are the same tensor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GenericConst, GlobalVar

from .passes import module_pass
from .rewriter import identifier, substitute


def inner_names(imported: IRModule) -> set[str]:
    """Identifiers of what nodes of the model compute before their results: ``NODE#1`` and so on."""
    blocks = imported["main"].body.blocks
    names = [binding.var.name for block in blocks for binding in block.bindings]
    return {identifier(name) for name in names if "#" in name}


#: Drivers call files after kernels, and a file's name has 255 bytes on most systems.
LONGEST_FUNCTION = 128


@module_pass("ShortenFunctions")
def ShortenFunctions(mod: IRModule) -> IRModule:  # noqa: N802
    """Cut the names of fused functions that are too long for drivers, and put a digest behind."""
    renamed: dict[str, GlobalVar] = {}
    for var, _ in mod.functions_items():
        name = var.name_hint
        if len(name) > LONGEST_FUNCTION:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            renamed[name] = GlobalVar(f"{name[: LONGEST_FUNCTION - 9]}_{digest}")
            relax.expr._update_type(renamed[name], var.ty)
    if not renamed:
        return mod
    functions = {}
    for var, function in mod.functions_items():
        new = renamed.get(var.name_hint, var)
        if isinstance(function, relax.Function):
            function = tvm_ffi.structural_map(
                function, (GlobalVar, lambda v: renamed.get(v.name_hint, v))
            )
        elif new is not var:
            function = function.with_attr("global_symbol", new.name_hint)
        functions[new] = function
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


class _Values:
    """Values known by how they are computed, and the variables that held them."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.names: dict[Hashable, list[str]] = {}

    def of(self, expr: Any, env: dict[relax.Var, Hashable]) -> Hashable:
        """What ``expr`` is worth, where ``env`` says that of its variables."""
        if isinstance(expr, relax.Var):
            return env.get(expr, expr.name)
        if isinstance(expr, GenericConst):
            return ("constant", expr.value.__hash__())
        if isinstance(expr, relax.Tuple):
            return tuple(self.of(field, env) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            fields = self.of(expr.tuple_value, env)
            return fields[expr.index] if isinstance(fields, tuple) else (fields, expr.index)
        if not isinstance(expr, relax.Call):
            return str(expr)
        arguments = tuple(self.of(argument, env) for argument in expr.args)
        return self.number((str(expr.op), arguments, str(expr.attrs), str(expr.ty)))

    def number(self, key: Hashable) -> Hashable:
        """A number in place of a key, which would hold all that led to it."""
        return ("value", self.numbers.setdefault(key, len(self.numbers)))


def restore_names(
    before: IRModule,
    fused: IRModule,
    model_names: Collection[str] = (),
    members: dict[str, list[str]] | None = None,
) -> IRModule:
    """Give the variables of ``main`` the names that their tensors had before fusion.

    Parameters
    ----------
    before, fused
        The module before and after fusion.
    model_names
        Names of the model's tensors, as identifiers: a variable that got a number behind
        one of them, because a function is called so, loses it.
    members
        Gets the names of the tensors that one call computes, by the name of its result.
    """
    values = _Values()
    env: dict[relax.Var, Hashable] = {}
    for parameter in before["main"].params:
        env[parameter] = ("parameter", parameter.name)
    for binding in _bindings(before["main"]):
        env[binding.var] = values.of(binding.value, env)
        values.names.setdefault(env[binding.var], []).append(
            _model_name(binding.var.name, model_names)
        )

    main = fused["main"]
    env = {parameter: ("parameter", parameter.name) for parameter in main.params}
    taken = {parameter.name for parameter in main.params}
    renamed: dict[relax.Var, relax.Var] = {}
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            var, value = binding.var, binding.value
            inner: list[Hashable] = []
            env[var] = _call(values, fused, value, env, inner)
            known = [values.names[v][0] for v in (*inner, env[var]) if values.names.get(v)]
            names = values.names.get(env[var], [])
            # Equal tensors that were computed twice have the names in their order.
            name = unique(names.pop(0) if names else var.name, taken)
            if members is not None:
                # Another name of a tensor, such as that of a result, has what the tensor has.
                other = renamed.get(value) if isinstance(value, relax.Var) else None
                same = members.get(other.name) if other is not None else None
                members[name] = same or list(dict.fromkeys(known or [name]))
            renamed[var] = type(var)(name, var.ty)
            bindings.append(relax.VarBinding(renamed[var], substitute(value, renamed)))
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, substitute(main.body.body, renamed))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)
    functions = {gv: function if gv.name_hint == "main" else f for gv, f in fused.functions.items()}
    return IRModule(functions, attrs=fused.attrs)


def _call(
    values: _Values,
    mod: IRModule,
    value: relax.Expr,
    env: dict[relax.Var, Hashable],
    found: list[Hashable],
) -> Hashable:
    """What a binding of the fused ``main`` is worth; calls of fused functions are looked into.

    ``found`` gets what such a function's own bindings are worth.
    """
    if not (isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar)):
        return values.of(value, env)
    function = mod[value.op]
    inner = {
        parameter: values.of(argument, env)
        for parameter, argument in zip(function.params, value.args, strict=True)
    }
    for binding in _bindings(function):
        inner[binding.var] = values.of(binding.value, inner)
        found.append(inner[binding.var])
    return values.of(function.body.body, inner)


def nodes_of(members: Mapping[str, list[str]], bindings: Collection[str]) -> dict[str, list[str]]:
    """ONNX nodes in place of the tensors that one call computes.

    Parameters
    ----------
    members
        As from `restore_names`.
    bindings
        Names that the front end gives to the nodes' results: ``NODE``, and ``NODE:1`` and so on
        for further ones.  What a node needs in between is ``NODE#1``.
    """
    nodes = {identifier(name): name for name in bindings}
    for name in bindings:
        node, colon, number = name.rpartition(":")
        if colon and number.isdigit() and node in nodes.values():
            nodes[identifier(name)] = node

    def node_of(name: str) -> str | None:
        # Convolutions of several steps name those before the last.
        step = re.sub(r"_(tiles|products)\d*$", "", name)
        # A number is that of a tensor in between, or of a name that was taken.
        tries = (name, step, step.rstrip("0123456789"), re.sub(r"_\d+$", "", step))
        return next((nodes[known] for known in tries if known in nodes), None)

    return {
        result: list(dict.fromkeys(found for name in names if (found := node_of(name)) is not None))
        for result, names in members.items()
    }


def nodes_of_functions(mod: IRModule, nodes: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """ONNX nodes of each primary function.

    Parameters
    ----------
    mod
        Primary functions, and ``main`` with their calls.
    nodes
        As from `nodes_of`.
    """
    found: dict[str, list[str]] = {}
    for binding in _bindings(mod["main"]):
        value = binding.value
        called = isinstance(value, relax.Call) and value.args
        if called and isinstance(value.args[0], relax.GlobalVar):
            known = found.setdefault(value.args[0].name_hint, [])
            known += [n for n in nodes.get(binding.var.name, []) if n not in known]
    return found


def _model_name(name: str, model_names: Collection[str]) -> str:
    base = name.rstrip("0123456789")
    return base if name not in model_names and base in model_names else name


def _bindings(function: relax.Function) -> Iterable[relax.Binding]:
    return (binding for block in function.body.blocks for binding in block.bindings)


def unique(name: str, taken: set[str], form: Callable[[str], str] = str) -> str:
    """``name``, with a number behind it if its form is taken; that is then taken."""
    candidate, number = name, 0
    while form(candidate) in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(form(candidate))
    return candidate
