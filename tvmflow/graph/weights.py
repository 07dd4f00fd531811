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
from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

#: Constants smaller than this stay in the program, where they need no argument.
INLINE_LIMIT_BYTES = 8


@mutator
class _Lift(PyExprMutator):
    def __init__(self, mod: IRModule):
        super().__init__(mod)
        self.arrays: dict[str, np.ndarray] = {}
        self.params: list[relax.Var] = []
        self.seen: dict[int, relax.Var] = {}
        self.hint = "weight"

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.hint = binding.var.name
        super().visit_var_binding_(binding)

    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        array = op.value.numpy()
        if array.nbytes < INLINE_LIMIT_BYTES:
            return op
        # The same tensor may be read by several calls: one parameter serves all.
        key = op.value.__hash__()
        if key not in self.seen:
            name = f"w{len(self.arrays)}_{self.hint}"
            self.arrays[name] = array
            self.seen[key] = relax.Var(name, op.ty)
            self.params.append(self.seen[key])
        return self.seen[key]


def lift_weights(mod: IRModule) -> tuple[IRModule, dict[str, np.ndarray]]:
    """Lift the constants of ``main`` to trailing parameters.

    Returns
    -------
    mod, weights
        The new module, and the arrays by parameter name, in parameter order.
    """
    main = mod["main"]
    lift = _Lift(mod)
    body = lift.visit_expr(main.body)
    function = relax.Function(
        [*main.params, *lift.params], body, main.ret_ty, main.is_pure, main.attrs, main.span
    )
    mod = IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    mod["main"] = function
    return mod, lift.arrays
