"""Constant folding before layouts.

Before::

    lv  = R.nn.conv2d(x, W)                     lv1 = R.reshape(b, (1, 32, 1, 1))
    lv2 = R.add(lv, lv1)                        lv3 = R.permute_dims(V)

After: ``lv1`` and ``lv3`` are constants.  NumPy folds shape-only operators and the arithmetic
that dequantizes weights; TVM's own folding compiles a function for every constant it evaluates
(some 100 ms each), so it only gets the rest.

Zero constants are hidden from TVM's simplifier, because 0 · NaN is not 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import IRModule, relax
from tvm.relax import op as R
from tvm.relax import transform

from ..ir.passes import module_pass
from ..ir.rewriter import Rewriter, constant, constant_array, ints, op_name, shape_of
from ..ir.signatures import bindings_of

#: NumPy implementations of operators on constants: views or copies of the data, and arithmetic
#: of two tensors that NumPy rounds as every target does.
_ON_ARRAYS: dict[str, Callable[..., np.ndarray]] = {
    **dict.fromkeys(
        ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"),
        lambda call, a: a.reshape(shape_of(call)),
    ),
    "relax.permute_dims": lambda call, a: np.transpose(
        a, None if call.attrs.axes is None else ints(call.attrs.axes)
    ),
    "relax.broadcast_to": lambda call, a: np.broadcast_to(a, shape_of(call)),
    "relax.astype": lambda call, a: a.astype(str(call.ty.dtype)),
    "relax.add": lambda _call, a, b: a + b,
    "relax.subtract": lambda _call, a, b: a - b,
    "relax.multiply": lambda _call, a, b: a * b,
    "relax.tvmflow.product": lambda _call, a, b: a * b,
    "relax.tvmflow.quotient": lambda _call, a, b: a / b,
}


class _FoldConstants(Rewriter):
    """Evaluate shape-only operators and arithmetic on constants."""

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        new = self.substitute(value)
        evaluate = _ON_ARRAYS.get(op_name(new) or "")
        arrays = _constants(new) if evaluate else []
        if not evaluate or not arrays:
            return new
        with np.errstate(all="ignore"):
            # Take the result type from the old call: the new one is not yet normalised.
            found = evaluate(value, *arrays)
        return constant(np.asarray(found, str(value.ty.dtype)))


def _constants(call: relax.Call) -> list[np.ndarray]:
    """Return the tensors that a call reads if all of them are constants, else none."""
    tensors = [a for a in call.args if not isinstance(a, relax.ShapeExpr)]
    arrays = [array for a in tensors if (array := constant_array(a)) is not None]
    return arrays if len(arrays) == len(tensors) else []


@module_pass("FoldArrays")
def FoldArrays(mod: IRModule) -> IRModule:  # noqa: N802
    """Evaluate shape-only operators and arithmetic on constants with NumPy."""
    return _FoldConstants(mod).run()


@module_pass("FoldCalls")
def FoldCalls(mod: IRModule) -> IRModule:  # noqa: N802
    """Let TVM evaluate the remaining calls whose operands are all constants."""
    values = (binding.value for binding in bindings_of(mod["main"]))
    left = any(op_name(value) is not None and _constants(value) for value in values)
    return transform.FoldConstant()(mod) if left else mod


class _KeepZeros(Rewriter):
    """Give an axis to scalar zeros that are factors or divisors."""

    def parameter(self, index: int, old: relax.Var) -> relax.Var:
        return relax.Var(old.name, old.ty)  # a new variable, so that it gets a number

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        new = self.substitute(value)
        apply = _PRODUCTS.get(op_name(new) or "")
        if apply is None:
            return new
        operands = [_with_axis(operand) for operand in new.args]
        shape = shape_of(value)
        return apply(*operands) if shape else R.reshape(self.bb.emit(apply(*operands)), shape)


_PRODUCTS: dict[str, Callable[..., relax.Expr]] = {
    "relax.multiply": R.multiply,
    "relax.divide": R.divide,
}


def _with_axis(operand: relax.Expr) -> relax.Expr:
    """Return a scalar floating-point zero with an axis; return anything else unchanged."""
    array = constant_array(operand)
    if array is None or array.ndim or array.any() or array.dtype.kind != "f":
        return operand
    return constant(array.reshape(1))


@module_pass("KeepZeros")
def KeepZeros(mod: IRModule) -> IRModule:  # noqa: N802
    """Keep TVM from simplifying products with zero and quotients by zero.

    TVM replaces a product with the number zero by zero, whatever the other factor, and refuses to
    divide by it; it does not look into a tensor that has an axis.
    """
    values = [binding.value for binding in bindings_of(mod["main"])]
    products = [value for value in values if op_name(value) in _PRODUCTS]
    zeros = any(_with_axis(a) is not a for product in products for a in product.args)
    return _KeepZeros(mod).run() if zeros else mod
