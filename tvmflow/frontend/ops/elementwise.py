"""Element by element: arithmetic, comparisons, logic, rounding, casts, selection."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import onnx
from tvm import relax, te, tirx
from tvm.relax import op as R

from ...ir import rounding
from ...ir.rewriter import constant, op_name
from ..converter import NodeContext, Refusal, converts, dtype_of, formulas
from .shaping import joined

#: Operators that Relax has under another name; those of two inputs broadcast like NumPy's.
_SAME: dict[str, Callable[..., relax.Expr]] = {
    "Abs": R.abs, "Acos": R.acos, "Acosh": R.acosh, "Asin": R.asin, "Asinh": R.asinh,
    "Atan": R.atan, "Atanh": R.atanh, "BitwiseNot": R.bitwise_not, "Ceil": R.ceil,
    "Cos": R.cos, "Cosh": R.cosh, "Erf": R.erf, "Exp": R.exp, "Floor": R.floor,
    "IsNaN": R.isnan, "Log": R.log, "Neg": R.negative, "Not": R.logical_not, "Relu": R.nn.relu,
    "Round": R.round, "Sigmoid": R.sigmoid, "Sign": R.sign, "Sin": R.sin, "Sinh": R.sinh,
    "Sqrt": R.sqrt, "Tan": R.tan, "Tanh": R.tanh,
    "Add": R.add, "And": R.logical_and, "Or": R.logical_or, "Xor": R.logical_xor,
    "BitwiseAnd": R.bitwise_and, "BitwiseOr": R.bitwise_or, "BitwiseXor": R.bitwise_xor,
    "Greater": R.greater, "Less": R.less, "Where": R.where,
}  # fmt: skip

#: Operators of which TVM knows the result where both inputs are the same, but not that of NaN.
_OF_EQUALS: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Equal": R.equal, "GreaterOrEqual": R.greater_equal, "LessOrEqual": R.less_equal,
    "Sub": R.subtract,
}  # fmt: skip

#: Dtypes of places and numbers of elements.
_INTEGERS = ("int32", "int64")
#: Up to this exponent a power is a product.
_LARGEST_PRODUCT = 8


@converts(*_SAME)
def same(c: NodeContext) -> relax.Expr:
    """Operators that Relax has, too."""
    return _SAME[c.op_type](*c.inputs())


formulas(
    Mul=lambda c: c.input(0) * c.input(1),
    Reciprocal=lambda c: c.constant(1) / c.input(),
)


@converts("Div")
def divide(c: NodeContext) -> relax.Expr:
    """x / y, correctly rounded where x was an integer: exporters divide places as floats.

    They round the quotient down, so that one a unit too small is the place before.
    """
    x, y = c.inputs()
    if not c.is_float():
        divisor, sign = _divisor(c)
        return x / divisor if sign is None else x / divisor * sign
    source = c.definition(x)
    was_integer = op_name(source) == "relax.astype" and dtype_of(source.args[0]) in _INTEGERS
    return rounding.quotient(x, y) if was_integer and c.result.dtype == "float32" else x / y


def _divisor(c: NodeContext) -> tuple[relax.Expr, relax.Expr | None]:
    """The second of two integers, with 1 for zeros, of which ONNX says nothing, and for -1.

    Processors end the process by 0, and for the least number by -1.  Quotients are multiplied by
    the second result, if there is one: of a choice LLVM makes a division by -1 again.
    """
    y, known = c.input(1), c.known(1)
    one = c.constant(1)
    if known is None or not known.all():
        y = R.where(R.equal(y, c.constant(0)), one, y)
    if np.dtype(c.dtype()).kind == "u" or (known is not None and not (known == -1).any()):
        return y, None
    sign = c.emit(R.where(R.equal(y, c.constant(-1)), c.constant(-1), one))
    return y * sign, sign


@converts(*_OF_EQUALS)
def of_equals(c: NodeContext) -> relax.Expr:
    """Differences and comparisons, also of a value with itself."""
    if not c.is_float() or c.node.input[0] != c.node.input[1]:
        return _OF_EQUALS[c.op_type](c.input(0), c.input(1))
    if c.op_type == "Sub":
        # Zero, but NaN for NaN and infinities, as the product with zero is.
        return c.input() * c.constant(0)
    # TVM takes a number for equal to itself; NaN is not, and what is not less than -infinity is.
    return c.input() >= c.constant(-np.inf)


#: Operands of a Max that are compared one by one.
_MOST_CHAINED = 4


@converts("Max", "Min", "Sum", "Mean")
def variadic(c: NodeContext) -> relax.Expr:
    """Operators of any number of inputs: one by one from the left.

    A maximum that keeps NaN reads each operand twice, so a chain of them would double with each
    input: many are stacked, and reduced along the new axis.
    """
    if c.op_type in ("Max", "Min"):
        parts = list(dict.fromkeys(c.inputs()))
        if len(parts) > _MOST_CHAINED:
            shape = c.result.shape
            rows = [R.reshape(R.broadcast_to(x, shape), (1, *shape)) for x in parts]
            stacked = joined(c, [c.emit(row) for row in rows], 0)
            return (R.max if c.op_type == "Max" else R.min)(stacked, [0], keepdims=False)
    combine = {"Max": R.maximum, "Min": R.minimum}.get(c.op_type, R.add)
    # Bound one by one, as thousands within each other are too deep for what walks them.
    total = reduce(lambda left, right: combine(c.emit(left), right), c.inputs())
    return total * c.constant(1.0 / len(c.inputs())) if c.op_type == "Mean" else total


@converts("Pow")
def power(c: NodeContext) -> relax.Expr:
    """x to the y, in x's type; small constant exponents become products."""
    base, kind = c.input(), c.dtype()
    exponent = c.known(1)
    if exponent is not None and exponent.size == 1:
        fixed = fixed_power(c, base, float(exponent.reshape(())))
        if fixed is not None:  # whose shape an exponent of rank > 0 may widen
            return R.broadcast_to(fixed, c.result.shape) if c.shape() != c.result.shape else fixed
    if c.is_float():
        return R.power(base, c.cast(c.input(1), kind))
    # Whole powers are exact in float64 up to 2^53; rounding removes the last error of pow.
    result = R.power(c.cast(base, "float64"), c.cast(c.input(1), "float64"))
    return R.astype(result if c.is_float(1) else R.round(result), kind)


def fixed_power(c: NodeContext, base: relax.Expr, exponent: float) -> relax.Expr | None:
    """Write a power with a small constant exponent, whole quarters, without ``pow``.

    That is slow on GPUs and, a call for each lane, on CPUs.
    """
    whole, quarters = divmod(4.0 * exponent, 4)
    if not quarters.is_integer() or not 0 < exponent <= _LARGEST_PRODUCT:
        return None
    factors = [whole_power(base, int(whole))] if whole else []
    if not quarters:
        return factors[0]
    if not c.is_float():
        return None
    root = c.emit(R.sqrt(base))
    factors += {1: [R.sqrt(root)], 2: [root], 3: [root, R.sqrt(root)]}[int(quarters)]
    # The root of minus infinity is NaN, its power is not.
    return R.where(base <= c.constant(-np.inf), c.constant(np.inf), reduce(R.multiply, factors))


def constant_power(c: NodeContext, base: relax.Expr, exponent: float) -> relax.Expr:
    """The power of floats with a constant exponent."""
    fixed = fixed_power(c, base, exponent)
    return R.power(base, c.constant(exponent)) if fixed is None else fixed


def whole_power(base: relax.Expr, exponent: int) -> relax.Expr:
    """Write a power with a positive whole exponent as products of squares."""
    factors = []
    while exponent:
        if exponent & 1:
            factors.append(base)
        base, exponent = base * base, exponent >> 1
    return reduce(R.multiply, factors)


@converts("Mod")
def modulo(c: NodeContext) -> relax.Expr:
    """Remainder: with the divisor's sign, or with the dividend's for ``fmod``."""
    if c.attribute("fmod", 0):
        return R.mod(c.input(), c.input(1) if c.is_float() else _divisor(c)[0])
    if c.is_float():
        # The remainder of fmod, and the divisor where their signs differ; a quotient that is
        # rounded down would lose digits.
        divisor, zero = c.input(1), c.constant(0)
        rest = c.emit(R.mod(c.input(), divisor))
        apart = R.logical_or(
            R.logical_and(rest < zero, divisor > zero), R.logical_and(rest > zero, divisor < zero)
        )
        return R.where(apart, rest + divisor, rest)
    if np.dtype(c.dtype()).itemsize < 4:
        # OpenCL C widens the sum of two small integers, and then has no `select` for it.
        wide = (c.cast(x, "int32") for x in (c.input(), _divisor(c)[0]))
        return R.astype(R.floor_mod(*wide), c.dtype())
    return R.floor_mod(c.input(), _divisor(c)[0])


@converts("BitShift")
def bit_shift(c: NodeContext) -> relax.Expr:
    """Shift left or right, of signed numbers with their sign.

    By a negative amount, or as many bits as there are or more, only signs are left: 0, or -1.
    """
    kind, left = np.dtype(c.dtype()), c.required("direction") == "LEFT"
    shift = R.left_shift if left else R.right_shift
    bits, amount = 8 * kind.itemsize, c.known(1)
    if amount is not None and (amount >= 0).all() and (amount < bits).all():
        return shift(c.input(0), c.input(1))
    # Hardware takes the amount modulo the width.
    most = c.constant(bits - 1)
    within = R.minimum(c.input(1), most)
    valid = R.less_equal(c.input(1), most)
    if kind.kind == "i":
        is_negative = R.less(c.input(1), c.constant(0))
        within = R.where(is_negative, most, within)
        valid = R.logical_and(valid, R.logical_not(is_negative))
        if not left:  # by one less than there are, a sign is in all bits
            return shift(c.input(0), within)
    return R.where(valid, shift(c.input(0), within), c.constant(0))


@converts("BitCast")
def bit_cast(c: NodeContext) -> relax.Expr:
    """Take the bits of numbers for another type of as many."""
    source, target = c.dtype(), c.result.dtype
    if source == target:
        return c.input()
    if "float16" in (source, target) or c.graph.is_widened:
        raise Refusal("bits of float16 are not there: it is computed in float32")
    if "bool" in (source, target):
        # A byte that is 0 or 1.
        return R.not_equal(c.input(), c.constant(0)) if target == "bool" else R.astype(
            c.input(), target
        )  # fmt: skip
    return c.builder.call_te(
        lambda x: te.compute(x.shape, lambda *i: tirx.reinterpret(target, x(*i)), "bit_cast"),
        c.input(), primfunc_name_hint="bit_cast",
    )  # fmt: skip


@converts("IsInf")
def is_inf(c: NodeContext) -> relax.Expr:
    """True where a value is infinite, of the signs asked for."""
    signs = (("detect_positive", np.inf), ("detect_negative", -np.inf))
    tests = [R.equal(c.input(), c.constant(sign)) for name, sign in signs if c.attribute(name, 1)]
    return reduce(R.logical_or, tests) if tests else constant(np.zeros(c.shape(), bool))


@converts("Cast", "CastLike")
def cast(c: NodeContext) -> relax.Expr:
    """Convert to the result's dtype: floats to integers towards zero, to bool as ``!= 0``."""
    source, target = c.dtype(), c.result.dtype
    if target == "bool" and source != "bool":
        return R.not_equal(c.input(), c.constant(0))
    if c.attribute("to") == onnx.TensorProto.FLOAT16 and target == "float32":
        return _as_half(c)
    if c.is_float() and target in ("int8", "uint8", "int16", "uint16"):
        # By way of 32 bits, as in ONNX Runtime: OpenCL C limits vectors to the type, and leaves
        # open what numbers beyond it become.
        return R.astype(R.astype(c.input(), "int32"), target)
    return c.input() if source == target else R.astype(c.input(), target)


def _as_half(c: NodeContext) -> relax.Expr:
    """Return what float16 would be in fp32: infinite where that is too large, else as it is."""
    x = c.cast(c.input(), "float32")
    # What is nearer to 2^16 than to the largest half, or between.
    over = R.abs(x) >= constant(np.float32(65520))
    return R.where(over, x * constant(np.float32(np.inf)), x)
