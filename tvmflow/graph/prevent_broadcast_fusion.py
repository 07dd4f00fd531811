"""Prevention of fusing computed gates, as in squeeze-and-excite, into their broadcasts.

    gate = call_tir(conv2d, (means, w))       [1, C', 1, 1, c]
    y    = call_tir(multiply, (x, gate))      [1, C', H, W, c]

TVM fuses a convolution (or a mean) with any elementwise function that reads its result, even if
that one reads each number H · W times.  Each work-item then computes the gate of its own pixel: the
whole convolution, H · W times.
"""

from __future__ import annotations

from tvm import IRModule, relax

from ..ir.expressions import BROADCAST, INJECTIVE, OPAQUE, PRODUCT
from ..ir.passes import module_pass
from ..ir.rewriter import elements_of
from ..ir.signatures import bindings_of, called_function, count_readers


@module_pass("PreventBroadcastFusion")
def PreventBroadcastFusion(mod: IRModule) -> IRModule:  # noqa: N802
    """Do not fuse a reduction into a consumer that broadcasts its result.

    The consumer is marked as injective, which TVM does not fuse into reductions.  A consumer that
    is the only reader of a large tensor keeps its pattern, and fuses with that tensor's producer.
    """
    readers = count_readers(mod["main"])
    # Results of sums of products, and of elementwise functions on them.
    products: set[relax.Var] = set()
    result = mod.clone()
    for binding in bindings_of(mod["main"]):
        if (called := called_function(mod, binding.value)) is None:
            continue
        function, operands = called
        pattern = int(function.attrs.get("op_pattern", OPAQUE))
        if pattern == PRODUCT:
            products.add(binding.var)
        made = products.intersection(operands)
        if pattern > BROADCAST or not made:
            continue
        products.add(binding.var)
        size = elements_of(binding.var)
        alone = any(elements_of(x) == size and readers[x] == 1 for x in operands)
        if not alone and any(elements_of(x) < size for x in made):
            result[binding.value.args[0]] = function.with_attr("op_pattern", INJECTIVE)
    return result
