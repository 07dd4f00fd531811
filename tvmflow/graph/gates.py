"""Gates: small computed tensors that stretch over large ones, as in squeeze-and-excite.

    gate = call_tir(conv2d, (means, w))       [1, C', 1, 1, c]
    y    = call_tir(multiply, (x, gate))      [1, C', H, W, c]

TVM fuses a convolution with whatever element-wise function reads its result, also with one that
reads each of its numbers H · W times.  A work-item that has a pixel then computes the gate of that
pixel: the whole convolution, H · W times.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from tvm import IRModule, relax, tirx

from ..ir.expressions import BROADCAST, INJECTIVE, nodes_in
from ..ir.passes import module_pass
from ..ir.rewriter import shape_of
from ..ir.signatures import bindings_of, called_function


@module_pass("KeepGatesApart")
def KeepGatesApart(mod: IRModule) -> IRModule:  # noqa: N802
    """Have TVM fuse no convolution into what stretches its result.

    To it, such a function is one that moves elements.  One stays what it is that is all that reads
    a large tensor: with the function that makes this it is fused as before.
    """
    main = mod["main"]
    bindings = bindings_of(main)
    readers = Counter(nodes_in(main.body.body, relax.Var))
    for binding in bindings:
        readers.update(nodes_in(binding.value, relax.Var))
    computed = set(main.params[: int(main.attrs["num_input"])])
    result = mod.clone()
    for binding in bindings:
        operands = set(nodes_in(binding.value, relax.Var)) & computed
        if not operands:
            continue
        computed.add(binding.var)
        called = called_function(mod, binding.value)
        if called is None or int(called[0].attrs.get("op_pattern", INJECTIVE)) > BROADCAST:
            continue
        size = _elements(binding.var)
        large = [x for x in operands if _elements(x) == size]
        is_stretched = any(_elements(x) < size for x in operands)
        if is_stretched and not any(readers[x] == 1 for x in large):
            name = binding.value.args[0]
            result[name] = called[0].with_attr("op_pattern", INJECTIVE)
    return result


def _elements(var: relax.Var) -> int:
    return prod(shape_of(var)) if isinstance(var.ty, relax.TensorType) else 0
