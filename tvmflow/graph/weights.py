"""Conversion of constants to parameters of ``main``: weights are stored outside the program.

Before::

    def main(x):            lv = R.call_tir(conv2d, (x, R.const([...])))

After::

    def main(x, conv2d_w):  lv = R.call_tir(conv2d, (x, conv2d_w))

This lets a module map its weights from the file, and weights larger than memory never pass
through the compiler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import prod

import numpy as np
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GenericConst

from ..ir.expressions import nodes_in
from ..ir.rewriter import constant_array, shape_of, with_bindings, with_body, with_main
from ..ir.signatures import bindings_of

#: Constants smaller than this stay in the program, so that they need no argument.
INLINE_LIMIT_BYTES = 8


def lift_weights(mod: IRModule) -> tuple[IRModule, dict[str, np.ndarray]]:
    """Lift the constants of ``main`` to trailing parameters; return these by name."""
    arrays: dict[str, np.ndarray] = {}
    params: dict[int, relax.Var] = {}

    def lifted(value: relax.Expr, name: str) -> relax.Expr:
        def parameter(constant: GenericConst) -> relax.Expr:
            array = constant_array(constant)
            assert array is not None
            # TVM writes an array without elements, but cannot read it again.
            if 0 < array.nbytes < INLINE_LIMIT_BYTES:
                return constant
            # Calls that read the same tensor share one parameter.
            key = constant.value.__hash__()
            if key not in params:
                own = f"w{len(arrays)}_{name}"
                arrays[own] = array
                params[key] = relax.Var(own, constant.ty)
            return params[key]

        return tvm_ffi.structural_map(value, (GenericConst, parameter))

    def lift(binding: relax.Binding) -> list[relax.Binding]:
        return [relax.VarBinding(binding.var, lifted(binding.value, binding.var.name))]

    main = with_bindings(mod["main"], lift)
    result = lifted(main.body.body, "result")
    main = with_body(main, main.body.blocks, result, list(params.values()))
    return with_main(mod, main), arrays


def initializers_of(
    mod: IRModule,
    weights: Collection[str],
    nodes: Mapping[str, Sequence[str]],
    initializers: Mapping[str, Sequence[tuple[int, tuple[str, ...]]]],
) -> dict[str, tuple[str, ...]]:
    """Return the names of the model's initializers that each weight was computed from.

    A call's weights are in the order in which its nodes read their initializers::

        conv = fused_conv2d_add_relu(x, w0_conv, w1_conv)    of Conv(x, "c.weight", "c.bias"), Relu
        {"w0_conv": ("c.weight",), "w1_conv": ("c.bias",)}

    If numbers or sizes do not match, as a weight was folded or generated, each weight gets all
    names of the call.

    Parameters
    ----------
    mod, weights
        The module that `lift_weights` returned, and the names of all weights among the parameters
        of ``main``.
    nodes, initializers
        Nodes by the name of the call's result, and their entries in `ImportedModel.initializers`.
    """
    found: dict[str, tuple[str, ...]] = {}
    lifted = {param for param in mod["main"].params if param.name in weights}
    for binding in bindings_of(mod["main"]):
        own = [var for var in nodes_in(binding.value, relax.Var) if var in lifted]
        known = (initializers.get(node, ()) for node in nodes.get(binding.var.name, ()))
        read = list(chain.from_iterable(known))
        read = [(size, names) for size, names in read if size > 1]
        fits = len(read) == len(own) and all(
            prod(shape_of(weight)) >= size for weight, (size, _) in zip(own, read, strict=True)
        )
        every = tuple(dict.fromkeys(chain.from_iterable(names for _, names in read)))
        for index, weight in enumerate(own):
            found.setdefault(weight.name, read[index][1] if fits else every)
    return found
