"""Simplification before layouts: decomposition, constant folding, dead code.

Before::

    lv  = R.nn.conv2d(x, W)                     lv1 = R.reshape(b, (1, 32, 1, 1))
    lv2 = R.add(lv, lv1)                        lv3 = R.permute_dims(V)

After: ``lv1`` and ``lv3`` are constants.  Shape-only operators are folded with
NumPy; TVM's own folding compiles a function for every constant it evaluates
(some 10 ms each) and is only asked for what is left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import IRModule, relax
from tvm.relax import transform

from .rewriter import Rewriter, constant_array, op_name, shape_of

#: Operators whose result on constants is a view or a copy of the data.
_SHAPE_OPERATORS: dict[str, Callable[[np.ndarray, relax.Call], np.ndarray]] = {
    "relax.reshape": lambda a, call: a.reshape(shape_of(call)),
    "relax.squeeze": lambda a, call: a.reshape(shape_of(call)),
    "relax.expand_dims": lambda a, call: a.reshape(shape_of(call)),
    "relax.flatten": lambda a, call: a.reshape(shape_of(call)),
    "relax.permute_dims": lambda a, call: np.transpose(
        a, [int(x) for x in call.attrs.axes] if call.attrs.axes is not None else None
    ),
    "relax.broadcast_to": lambda a, call: np.broadcast_to(a, shape_of(call)),
    "relax.astype": lambda a, call: a.astype(str(call.ty.dtype)),
}


class _FoldShapes(Rewriter):
    """Evaluate shape-only operators on constants."""

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        new = self.substitute(value)
        fold = _SHAPE_OPERATORS.get(op_name(new) or "")
        if fold is None:
            return new
        array = constant_array(new.args[0])
        if array is None:
            return new
        # The result type stands at the old call: the new one is not yet normalised.
        return relax.const(np.ascontiguousarray(fold(array, value)), str(value.ty.dtype))


def simplify(mod: IRModule) -> IRModule:
    """Decompose training operators, fold constants and drop what nobody reads."""
    mod = transform.DecomposeOpsForInference("main")(mod)
    mod = transform.CanonicalizeBindings()(mod)
    mod = _FoldShapes(mod).run()
    if _has_constant_call(mod):
        mod = transform.FoldConstant()(mod)
    return transform.DeadCodeElimination(["main"])(mod)


def _has_constant_call(mod: IRModule) -> bool:
    """Whether some operator still reads nothing but constants."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if op_name(value) is None or not value.args:
                continue
            tensors = [a for a in value.args if not isinstance(a, relax.ShapeExpr)]
            if tensors and all(constant_array(a) is not None for a in tensors):
                return True
    return False
