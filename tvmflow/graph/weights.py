"""Constants become parameters of ``main``: weights travel outside the program.

Before::

    def main(x):            lv = R.call_tir(conv2d, (x, R.const([...])))

After::

    def main(x, conv2d_w):  lv = R.call_tir(conv2d, (x, conv2d_w))

A module can then map its weights from the file, and weights larger than memory
never pass through the compiler.
"""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import GenericConst

from ..ir.rewriter import with_bindings, with_body, with_main

#: Constants smaller than this stay in the program, where they need no argument.
INLINE_LIMIT_BYTES = 8


def lift_weights(mod: IRModule) -> tuple[IRModule, dict[str, np.ndarray]]:
    """Lift the constants of ``main`` to trailing parameters; return these by name."""
    arrays: dict[str, np.ndarray] = {}
    params: dict[int, relax.Var] = {}

    def lift(binding: relax.Binding) -> list[relax.Binding]:
        def parameter(constant: GenericConst) -> relax.Expr:
            array = constant.value.numpy()
            if array.nbytes < INLINE_LIMIT_BYTES:
                return constant
            # The same tensor may be read by several calls: one parameter serves all.
            key = constant.value.__hash__()
            if key not in params:
                name = f"w{len(arrays)}_{binding.var.name}"
                arrays[name] = array
                params[key] = relax.Var(name, constant.ty)
            return params[key]

        value = tvm_ffi.structural_map(binding.value, (GenericConst, parameter))
        return [relax.VarBinding(binding.var, value)]

    main = with_bindings(mod["main"], lift)
    main = with_body(main, main.body.blocks, main.body.body, list(params.values()))
    return with_main(mod, main), arrays
