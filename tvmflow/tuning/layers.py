"""Single convolutions of a network as networks of their own, to measure them by each algorithm.

A convolution is taken with the elementwise operators behind it that are fused with it, so that
its primary functions are those of the network.  Before::

    c = R.nn.conv2d(x, W)     s = R.add(c, b)     t = R.add(s, shortcut)     y = R.nn.relu(t)

Its own network::

    def main(x, shortcut):    c = R.nn.conv2d(x, W)  …  return y
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tvm import IRModule, relax

from ..graph.layout.algorithms import Choice, Convolution, convolutions
from ..graph.layout.rules import elementwise
from ..ir.rewriter import identifier, op_name, shape_of, substitute


def distinct(choices: Sequence[Choice]) -> list[list[Choice]]:
    """Equal convolutions that several algorithms can compute, and of which nobody asked for one."""
    groups: dict[tuple[Convolution, bool, tuple[str, ...]], list[Choice]] = defaultdict(list)
    for choice in choices:
        if len(choice.possible) > 1 and not choice.asked:
            groups[choice.layer, choice.half, choice.possible].append(choice)
    return list(groups.values())


def network_of(mod: IRModule, name: str) -> IRModule:
    """The network of one convolution.

    Parameters
    ----------
    mod
        The whole network, before layouts are chosen.
    name
        That of the convolution's node.
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    readers: dict[relax.Var, list[relax.Binding]] = defaultdict(list)
    for binding in bindings:
        for var in relax.analysis.free_vars(binding.value):
            readers[var].append(binding)
    start = next(var for var, node in convolutions(mod).items() if node == name)
    chain = [next(binding for binding in bindings if binding.var.same_as(start))]
    while (reader := _fused_with(chain[-1].var, readers)) is not None:
        chain.append(reader)
    return IRModule({"main": _function(chain)})


def _fused_with(
    var: relax.Var, readers: dict[relax.Var, list[relax.Binding]]
) -> relax.Binding | None:
    """The elementwise operator that is all that reads a tensor."""
    if len(readers[var]) != 1:
        return None
    (reader,) = readers[var]
    fits = op_name(reader.value) in elementwise.RULES and shape_of(reader.var) == shape_of(var)
    return reader if fits else None


def _function(chain: Sequence[relax.Binding]) -> relax.Function:
    """A function of these bindings, whose parameters are what they read of others."""
    inside = {binding.var for binding in chain}
    outside = [v for binding in chain for v in relax.analysis.free_vars(binding.value)]
    params = {
        var: relax.Var(identifier(var.name), var.ty)
        for var in dict.fromkeys(outside)
        if var not in inside
    }
    replaced: dict[relax.Var, relax.Var] = dict(params)
    bindings = []
    for binding in chain:
        kind = relax.Var if binding is chain[-1] else relax.DataflowVar
        replaced[binding.var] = kind(binding.var.name, binding.var.ty)
        value = substitute(binding.value, replaced)
        bindings.append(relax.VarBinding(replaced[binding.var], value))
    result = replaced[chain[-1].var]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    attrs = {"global_symbol": "main", "num_input": len(params)}
    return relax.Function(list(params.values()), body, result.ty, True).with_attrs(attrs)
