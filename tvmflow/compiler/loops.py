"""VM loops: their bodies are separate compilations, which are merged with the model's at the end.

A body goes through the stages up to "lower" like the model, with layouts, schedules and a memory
plan; its inputs and outputs are plain buffers.  In the merged program, the placeholder call for the
loop (`tvmflow.ir.loops`) becomes a call of a function that repeats the body's.

TVM's virtual machine has no loops, and each nested call takes about 3 KiB of the thread's stack:
recursion with 2,500 iterations would overflow it.  Therefore functions double the number of
iterations, and the depth of calls is its logarithm::

    def while(going, s, w): return begin0((going, s), w) if going else (going, s)
    def begin0(s, w):       s1 = once(s, w); return begin1(s1, w) if s1[0] else s1
    def begin1(s, w):       s1 = twice1(s, w); return begin2(s1, w) if s1[0] else s1
    def twice2(s, w):       s1 = twice1(s, w); return twice1(s1, w) if s1[0] else s1
    def twice1(s, w):       s1 = once(s, w); return once(s1, w) if s1[0] else s1
    def once(s, w):         return body(s[1], w)

The condition, which the virtual machine copies from the device, is read once per iteration, and
log₂ n times at the end.  TVM's runtime suffices.  A state lives as long as the functions that got
it as an argument: after iteration n there are at most 2 log₂ n states.
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

#: Number of doubling functions: at a million iterations a second, 2⁴⁸ take nine years.
LEVELS = 48

#: Function that adds a function to the program under a name.
Adder = Callable[[str, relax.Function], GlobalVar]


def bodies_of(job: Compilation) -> list[Compilation]:
    """Return compilations of the loops' bodies in an imported model."""
    # Names in these options refer to the model, and a body has no public inputs and outputs.
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
    """Yield a compilation, then those of its loops' bodies, recursively."""
    yield job
    for body in job.bodies:
        yield from with_bodies(body)


def weight_names(job: Compilation) -> list[str]:
    """Return the names of a function's weights, followed by those of its loops' bodies."""
    own = list(job.weight_names.values())
    return own + [name for body in job.bodies for name in weight_names(body)]


def with_loops(mod: IRModule, jobs: Sequence[Compilation]) -> IRModule:
    """Return the merged program with loops: calls of functions that repeat the bodies.

    Each function takes the weights of its loops after its own.
    """
    functions = dict(mod.functions.items())
    variables = {var.name_hint: var for var in functions}

    def add(name: str, function: relax.Function) -> GlobalVar:
        var = GlobalVar(name)
        relax.expr._update_type(var, function.ty)
        functions[var] = function.with_attr("global_symbol", name)
        return var

    for job in (each for whole in jobs for each in reversed(list(with_bodies(whole)))):
        # Inner loops come first, because a caller needs the type of the function that it calls.
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
    """Return the parameters of a body that are weights, including its loops' weights."""
    return list(function.params[len(body.model.inputs) :])


def _calling(
    function: relax.Function, loops: dict[str, tuple[GlobalVar, list[relax.Var]]]
) -> relax.Function:
    """Replace the placeholder calls in a function by calls of the loops' functions."""

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
    """Add the functions that repeat a body (see the module's docstring); return the outermost."""
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
        """Add a function that calls ``one`` and, if the loop continues, then ``other``."""
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
    """Return an `If`: ``then``, computed by the bindings, or ``otherwise``."""
    first = relax.SeqExpr([relax.BindingBlock(bindings)], then)
    return relax.If(condition, first, relax.SeqExpr([], otherwise))
