"""Loops of the virtual machine: their bodies are compilations of their own, which merge at the end.

A body goes through the stages up to "lower" as the model around it does, with layouts, schedules
and a memory plan; what it takes and returns are plain buffers.  In the program that all become, the
call that stood for the loop (`tvmflow.ir.loops`) is one of a function that repeats the body's.

The virtual machine has no loops, and each call of a function within another takes some 3 KiB of the
thread's stack: 2,500 iterations as recursion were its end.  So functions double the number of
iterations, and their depth is its logarithm::

    def while(going, s, w): return begin0((going, s), w) if going else (going, s)
    def begin0(s, w):       s1 = once(s, w); return begin1(s1, w) if s1[0] else s1
    def begin1(s, w):       s1 = twice1(s, w); return begin2(s1, w) if s1[0] else s1
    def twice2(s, w):       s1 = twice1(s, w); return twice1(s1, w) if s1[0] else s1
    def twice1(s, w):       s1 = once(s, w); return once(s1, w) if s1[0] else s1
    def once(s, w):         return body(s[1], w)

The condition, which the virtual machine copies from the device, is looked at once an iteration, and
log₂ n times at the end.  Nothing but TVM's runtime is needed.  A state lives as long as a function
that was given it: behind iteration n there are at most 2 log₂ n of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GlobalVar

from ..ir.loops import PREFIX
from ..ir.rewriter import with_bindings
from .compilation import Compilation

#: Functions that double the number of iterations: at a million a second 2⁴⁸ take nine years.
LEVELS = 48

#: Adds a function to the program under a name.
Adder = Callable[[str, relax.Function], GlobalVar]


def bodies_of(job: Compilation) -> list[Compilation]:
    """The compilations of the bodies of the loops in a model that was imported."""
    # What is named in options is the model's; a body has no interface to keep.
    options = replace(job.options, keep_layout={}, storage_overrides={}, algorithms={})
    bodies = []
    for number, (node, model) in enumerate(job.model.loops.items()):
        body = Compilation(
            None, options, target=job.target, storage=job.storage, model=model, mod=model.mod,
            times=job.times, entry=f"{job.entry}.loop{number}", loop=node, is_part=True,
        )  # fmt: skip
        body.bodies = bodies_of(body)
        bodies.append(body)
    return bodies


def with_bodies(job: Compilation) -> Iterator[Compilation]:
    """A compilation, and those of the bodies in it and in each other."""
    yield job
    for body in job.bodies:
        yield from with_bodies(body)


def weight_names(job: Compilation) -> list[str]:
    """Names of the weights that a function takes: its own, and those of the loops in it."""
    own = list(job.weight_names.values())
    return own + [name for body in job.bodies for name in weight_names(body)]


def with_loops(mod: IRModule, jobs: Sequence[Compilation]) -> IRModule:
    """The program of all compilations, with functions that repeat bodies.

    Each function takes the weights of the loops in it behind its own.
    """
    functions = dict(mod.functions.items())
    variables = {var.name_hint: var for var in functions}

    def add(name: str, function: relax.Function) -> GlobalVar:
        var = GlobalVar(name)
        relax.expr._update_type(var, function.ty)
        functions[var] = function.with_attr("global_symbol", name)
        return var

    for job in (each for whole in jobs for each in reversed(list(with_bodies(whole)))):
        # Those of inner loops come first: what calls a function has to know its type.
        loops = {}
        var = variables[job.entry]
        function = functions[var]
        weights: list[relax.Var] = []
        for body in job.bodies:
            repeated = _repeated(body, variables[body.entry], functions[variables[body.entry]], add)
            own = [
                relax.Var(f"{body.entry}_{param.name}", param.ty)
                for param in _weights(body, functions[variables[body.entry]])
            ]
            loops[PREFIX + body.loop] = repeated, own
            weights += own
        if loops:
            called = _calling(function, loops)
            params = [*function.params, *weights]
            called = relax.Function(
                params, called.body, called.ret_ty, called.is_pure, called.attrs, called.span
            )
            del functions[var]
            variables[job.entry] = add(job.entry, called)
    by_name = {var.name_hint: var for var in functions}
    for var, function in functions.items():
        if isinstance(function, relax.Function):
            functions[var] = tvm_ffi.structural_map(
                function, (GlobalVar, lambda v: by_name[v.name_hint])
            )
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _weights(body: Compilation, function: relax.Function) -> list[relax.Var]:
    """The parameters of a body that are weights, its own and its loops'."""
    return list(function.params[len(body.model.inputs) :])


def _calling(
    function: relax.Function, loops: dict[str, tuple[GlobalVar, list[relax.Var]]]
) -> relax.Function:
    """A function with calls of the loops' functions."""

    def call(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
            loop = loops.get(str(value.op.global_symbol))
            if loop is not None:
                callee, weights = loop
                value = relax.Call(callee, [*value.args, *weights])
        return [relax.VarBinding(binding.var, value)]

    return with_bindings(function, call)


def _repeated(
    body: Compilation, called: GlobalVar, function: relax.Function, add: Adder
) -> GlobalVar:
    """The function that repeats a body, with what it needs; see the module's docstring."""
    results = [relax.TensorType(i.shape, i.dtype) for i in body.model.outputs]
    state = relax.TupleType(results)
    fixed = relax.TupleType([param.ty for param in function.params[len(results) - 1 :]])

    def defined(
        name: str, params: list[relax.Var], bindings: list[relax.Binding], result: relax.Expr
    ) -> GlobalVar:
        sequence = relax.SeqExpr([relax.BindingBlock(bindings)], result)
        return add(name, relax.Function(params, sequence, state, False))

    def given() -> list[relax.Var]:
        return [relax.Var("state", state), relax.Var("fixed", fixed)]

    def bound(name: str, value: relax.Expr, ty: relax.Type) -> relax.VarBinding:
        return relax.VarBinding(relax.Var(name, ty), value)

    def both(name: str, one: GlobalVar, other: GlobalVar) -> GlobalVar:
        """A function that calls one, and where the loop goes on then another."""
        params = given()
        first = bound("first", relax.Call(one, params), state)
        going = bound("going", relax.TupleGetItem(first.var, 0), results[0])
        more = bound("more", relax.Call(other, [first.var, params[1]]), state)
        chosen = bound("chosen", _either(going.var, [more], more.var, first.var), state)
        return defined(name, params, [first, going, chosen], chosen.var)

    params = given()
    fields = [
        *((params[0], index) for index in range(1, len(results))),
        *((params[1], index) for index in range(len(fixed.fields))),
    ]
    unpacked = [
        bound(f"v{number}", relax.TupleGetItem(whole, index), whole.ty.fields[index])
        for number, (whole, index) in enumerate(fields)
    ]
    once = bound("next", relax.Call(called, [each.var for each in unpacked]), state)
    powers = [defined(f"{body.entry}.once", params, [*unpacked, once], once.var)]
    for level in range(1, LEVELS):
        powers.append(both(f"{body.entry}.twice{level}", powers[-1], powers[-1]))
    begin = powers.pop()
    for level, power in reversed(list(enumerate(powers))):
        begin = both(f"{body.entry}.begin{level}", power, begin)
    names = [relax.Var(f"p{n}", ty) for n, ty in enumerate((*state.fields, *fixed.fields))]
    before = bound("before", relax.Tuple(names[: len(results)]), state)
    constant = bound("fixed", relax.Tuple(names[len(results) :]), fixed)
    after = bound("after", relax.Call(begin, [before.var, constant.var]), state)
    chosen = bound("chosen", _either(names[0], [after], after.var, before.var), state)
    return defined(f"{body.entry}.while", names, [before, constant, chosen], chosen.var)


def _either(
    condition: relax.Var, bindings: list[relax.Binding], then: relax.Var, otherwise: relax.Var
) -> relax.If:
    """What bindings make where a condition holds, else another value."""
    first = relax.SeqExpr([relax.BindingBlock(bindings)], then)
    return relax.If(condition, first, relax.SeqExpr([], otherwise))
