"""Converters of elementwise arithmetic, comparisons, logic, rounding, casts and selection."""

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

#: Operators with an equivalent in Relax; operands broadcast as in NumPy.
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

#: Operators that TVM simplifies if both inputs are the same, with a wrong result for NaN.
_OF_EQUALS: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Equal": R.equal, "GreaterOrEqual": R.greater_equal, "LessOrEqual": R.less_equal,
    "Sub": R.subtract,
}  # fmt: skip

#: Dtypes of indices and sizes.
_INTEGERS = ("int32", "int64")
#: Largest exponent for which a power is computed as products.
_LARGEST_PRODUCT = 8


@converts(*_SAME)
def same(c: NodeContext) -> relax.Expr:
    """Convert an operator to its equivalent in Relax."""
    return _SAME[c.op_type](*c.inputs())


formulas(
    Mul=lambda c: c.input(0) * c.input(1),
    Reciprocal=lambda c: c.constant(1) / c.input(),
)


@converts("Div")
def divide(c: NodeContext) -> relax.Expr:
    """Return x / y, correctly rounded if x was cast from an integer.

    Exporters divide indices as floats and round the quotient down, so an error of one unit in the
    last place would give the previous index.
    """
    x, y = c.inputs()
    if not c.is_float():
        divisor, sign = _divisor(c)
        return x / divisor if sign is None else x / divisor * sign
    source = c.definition(x)
    was_integer = op_name(source) == "relax.astype" and dtype_of(source.args[0]) in _INTEGERS
    return rounding.quotient(x, y) if was_integer and c.result.dtype == "float32" else x / y


def _divisor(c: NodeContext) -> tuple[relax.Expr, relax.Expr | None]:
    """Return the divisor of integers with 0 and -1 replaced by 1, and the sign for the quotient.

    Processors trap at a division by 0, which ONNX leaves undefined, and of the least number by -1.
    Quotients are multiplied by the second result if there is one; LLVM would turn a select between
    quotients into a division by -1 again.
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
    """Convert differences and comparisons, including those of a value with itself."""
    if not c.is_float() or c.node.input[0] != c.node.input[1]:
        return _OF_EQUALS[c.op_type](c.input(0), c.input(1))
    if c.op_type == "Sub":
        # The result is zero, but NaN for NaN and infinities, which equals the product with zero.
        return c.input() * c.constant(0)
    # TVM assumes that any value equals itself; `x >= -infinity` is false for NaN only.
    return c.input() >= c.constant(-np.inf)


#: Most operands of a Max or Min that are combined in a chain.
_MOST_CHAINED = 4


@converts("Max", "Min", "Sum", "Mean")
def variadic(c: NodeContext) -> relax.Expr:
    """Convert an operator with any number of inputs to a chain from the left.

    A maximum that keeps NaN reads each operand twice, so a chain would double in size with each
    input: many inputs are stacked instead, and reduced along the new axis.
    """
    if c.op_type in ("Max", "Min"):
        parts = list(dict.fromkeys(c.inputs()))
        if len(parts) > _MOST_CHAINED:
            shape = c.result.shape
            rows = [R.reshape(R.broadcast_to(x, shape), (1, *shape)) for x in parts]
            stacked = joined(c, [c.emit(row) for row in rows], 0)
            return (R.max if c.op_type == "Max" else R.min)(stacked, [0], keepdims=False)
    combine = {"Max": R.maximum, "Min": R.minimum}.get(c.op_type, R.add)
    # Each step is bound to a variable: recursive visitors overflow at thousands of nested calls.
    total = reduce(lambda left, right: combine(c.emit(left), right), c.inputs())
    return total * c.constant(1.0 / len(c.inputs())) if c.op_type == "Mean" else total


@converts("Pow")
def power(c: NodeContext) -> relax.Expr:
    """Return x to the power y, in x's type; small constant exponents become products."""
    base, kind = c.input(), c.dtype()
    exponent = c.known(1)
    if exponent is not None and exponent.size == 1:
        fixed = fixed_power(c, base, float(exponent.reshape(())))
        if fixed is not None:  # an exponent of rank > 0 may broadcast the result
            return R.broadcast_to(fixed, c.result.shape) if c.shape() != c.result.shape else fixed
    if c.is_float():
        return R.power(base, c.cast(c.input(1), kind))
    # Integer powers are exact in float64 up to 2^53; rounding removes the error of `pow`.
    result = R.power(c.cast(base, "float64"), c.cast(c.input(1), "float64"))
    return R.astype(result if c.is_float(1) else R.round(result), kind)


def fixed_power(c: NodeContext, base: relax.Expr, exponent: float) -> relax.Expr | None:
    """Return a power with a small constant exponent, a multiple of 1/4, without ``pow``.

    ``pow`` is slow on GPUs, and on CPUs it is called for each lane.
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
    # A root of minus infinity is NaN, but its power is infinity.
    return R.where(base <= c.constant(-np.inf), c.constant(np.inf), reduce(R.multiply, factors))


def constant_power(c: NodeContext, base: relax.Expr, exponent: float) -> relax.Expr:
    """Return the power of floats with a constant exponent."""
    fixed = fixed_power(c, base, exponent)
    return R.power(base, c.constant(exponent)) if fixed is None else fixed


def whole_power(base: relax.Expr, exponent: int) -> relax.Expr:
    """Return a power with a positive integer exponent, as products of squares."""
    factors = []
    while exponent:
        if exponent & 1:
            factors.append(base)
        base, exponent = base * base, exponent >> 1
    return reduce(R.multiply, factors)


@converts("Mod")
def modulo(c: NodeContext) -> relax.Expr:
    """Return the remainder with the divisor's sign, or for ``fmod`` with the dividend's."""
    if c.attribute("fmod", 0):
        return R.mod(c.input(), c.input(1) if c.is_float() else _divisor(c)[0])
    if c.is_float():
        # This is the remainder of fmod, plus the divisor if the signs differ; computing it from
        # the quotient would lose digits.
        divisor, zero = c.input(1), c.constant(0)
        rest = c.emit(R.mod(c.input(), divisor))
        apart = R.logical_or(
            R.logical_and(rest < zero, divisor > zero), R.logical_and(rest > zero, divisor < zero)
        )
        return R.where(apart, rest + divisor, rest)
    if np.dtype(c.dtype()).itemsize < 4:
        # OpenCL C promotes the sum of two small integers, for which `select` has no overload.
        wide = (c.cast(x, "int32") for x in (c.input(), _divisor(c)[0]))
        return R.astype(R.floor_mod(*wide), c.dtype())
    return R.floor_mod(c.input(), _divisor(c)[0])


@converts("BitShift")
def bit_shift(c: NodeContext) -> relax.Expr:
    """Shift left or right; right shifts of signed numbers keep the sign.

    A shift by a negative amount, or by the width or more, leaves only the sign: 0 or -1.
    """
    kind, left = np.dtype(c.dtype()), c.required("direction") == "LEFT"
    shift = R.left_shift if left else R.right_shift
    bits, amount = 8 * kind.itemsize, c.known(1)
    if amount is not None and (amount >= 0).all() and (amount < bits).all():
        return shift(c.input(0), c.input(1))
    # Hardware uses the amount modulo the width.
    most = c.constant(bits - 1)
    within = R.minimum(c.input(1), most)
    valid = R.less_equal(c.input(1), most)
    if kind.kind == "i":
        is_negative = R.less(c.input(1), c.constant(0))
        within = R.where(is_negative, most, within)
        valid = R.logical_and(valid, R.logical_not(is_negative))
        if not left:  # a shift by width - 1 fills all bits with the sign
            return shift(c.input(0), within)
    return R.where(valid, shift(c.input(0), within), c.constant(0))


@converts("BitCast")
def bit_cast(c: NodeContext) -> relax.Expr:
    """Reinterpret the bits of numbers as another type of the same width."""
    source, target = c.dtype(), c.result.dtype
    if source == target:
        return c.input()
    if "float16" in (source, target) or c.graph.is_widened:
        raise Refusal("bits of float16 are not there: it is computed in float32")
    if "bool" in (source, target):
        # A bool is stored as a byte of 0 or 1.
        return R.not_equal(c.input(), c.constant(0)) if target == "bool" else R.astype(
            c.input(), target
        )  # fmt: skip
    return c.builder.call_te(
        lambda x: te.compute(x.shape, lambda *i: tirx.reinterpret(target, x(*i)), "bit_cast"),
        c.input(), primfunc_name_hint="bit_cast",
    )  # fmt: skip


@converts("IsInf")
def is_inf(c: NodeContext) -> relax.Expr:
    """Return whether values are infinite, for the signs that the attributes select."""
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
        # Casts go through 32 bits, as in ONNX Runtime: OpenCL C clamps vectors to the type, and
        # leaves the result for other numbers out of range open.
        return R.astype(R.astype(c.input(), "int32"), target)
    return c.input() if source == target else R.astype(c.input(), target)


def _as_half(c: NodeContext) -> relax.Expr:
    """Return a cast to float16 in fp32: infinite for numbers out of range, else unchanged."""
    x = c.cast(c.input(), "float32")
    # 65520 is midway between the largest half and 2^16, and rounds up.
    over = R.abs(x) >= constant(np.float32(65520))
    return R.where(over, x * constant(np.float32(np.inf)), x)
