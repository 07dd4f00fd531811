"""Analysis of the tensors that must not be stored in 16 bits, by ranges and sums.

Sixteen bits hold numbers up to 65504 with eleven binary digits.  Sums of many numbers exceed that,
and a variance computed as E[x²] - E[x²] loses all its digits.  Such statistics are small next to
their tensors, and stay in 32 bits, like all tensors that are computed from them elementwise::

    m = R.mean(x, [1])    s = R.sum(R.multiply(x, x), [1])    v = R.subtract(s, R.multiply(m, m))

A mean that only products of layers read is not among them: it is as exact as the tensor that it is
a mean of.  Large tensors stay in 32 bits if they are squares or exponentials that are summed and
may exceed 65504, or results of a constant beyond 65504, such as the -1e9 of a mask.

A warning names other large tensors whose values may exceed 65504.  Operators such as sigmoid or
clip limit the interval of values; otherwise inputs are assumed to be up to 255, like pictures, and
results of layers up to 64, as in trained networks.  A measurement (`tvmflow.verify.halves`) is
better than these assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np
from tvm import IRModule, relax

from ..ir.expressions import nodes_in
from ..ir.limits import LARGEST_HALF
from ..ir.rewriter import (
    constant_array,
    constant_number,
    elements_of,
    identifier,
    op_name,
    shape_of,
)
from ..ir.signatures import bindings_of

#: Assumed magnitudes of layers' results and of inputs.
ORDINARY, INPUT = 64.0, 255.0

Interval = tuple[float, float]
_ORDINARY: Interval = (-ORDINARY, ORDINARY)

#: Operators that copy elements without changing them.
_VIEWS = frozenset(
    f"relax.{name}"
    for name in (
        "reshape", "squeeze", "expand_dims", "flatten", "permute_dims", "broadcast_to", "concat",
        "split", "strided_slice", "take", "gather_elements", "gather_nd", "flip", "tile", "repeat",
        "stack", "scatter_elements", "scatter_nd", "nn.pad", "image.resize2d",
    )
)  # fmt: skip
#: Elementwise operators that roughly keep the magnitude of values.
_SIMILAR = frozenset(
    f"relax.{name}"
    for name in (
        "abs", "negative", "round", "floor", "ceil", "trunc", "sign", "nn.relu", "nn.leakyrelu",
        "nn.prelu", "nn.gelu", "nn.silu", "nn.relu6", "maximum", "minimum", "clip", "where", "add",
        "subtract", "multiply", "divide", "power", "sqrt", "rsqrt", "exp", "log", "square",
        "tvmflow.product", "tvmflow.quotient", "tvmflow.multiply_add", "astype",
    )
)  # fmt: skip
#: Intervals of operators with limited results.
_LIMITED: dict[str, Interval] = {
    **dict.fromkeys((f"relax.{n}" for n in ("sigmoid", "nn.softmax")), (0.0, 1.0)),
    **dict.fromkeys((f"relax.{n}" for n in ("tanh", "erf", "sin", "cos", "sign")), (-1.0, 1.0)),
    **dict.fromkeys((f"relax.{n}" for n in ("atan", "asin", "acos")), (-math.pi, math.pi)),
}
#: Readers for which minus infinity is equivalent to a large negative number.
_TO_SHARES = ("relax.nn.softmax", "relax.exp", "relax.sigmoid", "relax.tanh")


@dataclass
class Precision:
    """Tensors by their identifiers, with the reasons to keep or suspect them."""

    #: Tensors that stay in 32 bits.
    wide: dict[str, str] = field(default_factory=dict)
    #: Tensors whose values may exceed 16 bits if they are stored so.
    risky: dict[str, str] = field(default_factory=dict)


class _Analysis:
    """A forward walk over ``main``, with the readers of each tensor known in advance."""

    def __init__(self, mod: IRModule):
        self.bindings = bindings_of(mod["main"])
        self.values = {b.var: b.value for b in self.bindings}
        self.readers: dict[relax.Expr, list[relax.Var]] = {}
        for binding in self.bindings:
            for read in nodes_in(binding.value, relax.Var):
                self.readers.setdefault(read, []).append(binding.var)
        self.ranges: dict[relax.Expr, Interval] = dict.fromkeys(mod["main"].params, (-INPUT, INPUT))
        #: Statistics and tensors computed from them, with the reason.
        self.small: dict[relax.Expr, str] = {}
        self.found = Precision()

    def run(self) -> Precision:
        for binding in self.bindings:
            var, value = binding.var, binding.value
            self.ranges[var] = self._range(value)
            if not isinstance(var.ty, relax.TensorType) or str(var.ty.dtype) != "float32":
                continue
            name = identifier(var.name)
            if (reason := self._as_small(var, value)) is not None:
                self.small[var] = reason
            reason = reason or self._as_large(var, value)
            if reason is not None:
                self.found.wide[name] = reason
            elif self._magnitude(var) > LARGEST_HALF and not self._is_share(var):
                self.found.risky[name] = self._why(value)
                # Clamp the range, so that only the first tensor is reported.
                low, high = self.ranges[var]
                self.ranges[var] = (max(low, -LARGEST_HALF), min(high, LARGEST_HALF))
        return self.found

    # -- ranges ---------------------------------------------------------------------------

    def _of(self, expr: relax.Expr) -> Interval:
        """Return the interval of an expression."""
        if isinstance(expr, relax.Tuple):
            return _union([self._of(each) for each in expr.fields])
        if isinstance(expr, relax.Var):
            return self.ranges.get(expr, _ORDINARY)
        array = constant_array(expr)
        if array is None or array.dtype.kind not in "fiub" or not array.size:
            return _ORDINARY
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)

    def _magnitude(self, expr: relax.Expr) -> float:
        return max(map(abs, self._of(expr)))

    def _range(self, value: relax.Expr) -> Interval:
        name = op_name(value)
        if isinstance(value, relax.Var | relax.Tuple):
            return self._of(value)
        if isinstance(value, relax.TupleGetItem):
            return self._of(value.tuple_value)
        if name is None:
            return _ORDINARY
        if name in _LIMITED:
            return _LIMITED[name]
        if name in _VIEWS:
            padded = [(0.0, 0.0)] if name == "relax.nn.pad" else []
            return _union([self._of(value.args[0]), *padded])
        rule = _RULES.get(name)
        if rule is not None:
            sides = [self._of(a) for a in value.args if not isinstance(a, relax.ShapeExpr)]
            with np.errstate(all="ignore"):
                return _ordered(rule(self, value, sides))
        if name in _SIMILAR or name.startswith(("relax.nn.max_pool", "relax.nn.avg_pool")):
            return self._of(value.args[0])
        if name in ("relax.matmul", "relax.linear") or name.startswith("relax.nn.conv"):
            # Scale the assumed magnitude of results by how far the operands exceed pictures.
            tensors = [a for a in value.args if constant_array(a) is None]
            factor = prod(max(1.0, self._magnitude(a) / INPUT) for a in tensors)
            return (-ORDINARY * factor, ORDINARY * factor)
        return _ORDINARY

    def _is_maximum_of(self, maximum: relax.Expr, x: relax.Expr) -> bool:
        """Return whether a tensor has the row maxima of another one, in any view."""
        value = self.values.get(maximum)
        while value is not None and op_name(value) in _VIEWS:
            value = self.values.get(value.args[0])
        return value is not None and op_name(value) == "relax.max" and value.args[0].same_as(x)

    # -- tensors that stay in 32 bits -------------------------------------------------------

    def _as_small(self, var: relax.Var, value: relax.Expr) -> str | None:
        """Return the reason if a tensor is a statistic, or is computed from statistics."""
        name = op_name(value)
        if name in ("relax.sum", "relax.mean", "relax.prod"):
            length = elements_of(value.args[0]) // max(1, elements_of(var))
            if length < 2 or (name == "relax.mean" and not self._is_computed_with(var)):
                return None
            return f"a {name.removeprefix('relax.')} of {length} numbers"
        if name not in _VIEWS and name not in _SIMILAR:
            return None
        operands = list(value.args[0].fields) if name == "relax.concat" else list(value.args)
        small = [each for each in operands if each in self.small]
        if not small or elements_of(var) > sum(map(elements_of, small)):
            return None
        return "computed from " + self.small[small[0]].removeprefix("computed from ")

    def _is_computed_with(self, var: relax.Var) -> bool:
        """Return whether a mean, in any view, is an operand of arithmetic."""
        for reader in self.readers.get(var, ()):
            name = op_name(self.values[reader])
            if name in _SIMILAR or (name in _VIEWS and self._is_computed_with(reader)):
                return True
        return False

    def _as_large(self, var: relax.Var, value: relax.Expr) -> str | None:
        """Return the reason why a tensor of any size stays in 32 bits."""
        name = op_name(value)
        is_square = name == "relax.multiply" and value.args[0].same_as(value.args[1])
        if is_square and self._is_summed(var):
            return "squares that are summed"
        if name == "relax.exp" and self._magnitude(var) > LARGEST_HALF and self._is_summed(var):
            return "exponentials that are summed"
        if name in _SIMILAR and not self._is_share(var):
            constants = (a for a in value.args if constant_array(a) is not None)
            if self._magnitude(var) > LARGEST_HALF and any(
                self._magnitude(a) > LARGEST_HALF for a in constants
            ):
                return "made of a constant beyond 65504"
        return None

    def _is_summed(self, var: relax.Var) -> bool:
        names = {op_name(self.values[reader]) for reader in self.readers.get(var, ())}
        return bool(names & {"relax.sum", "relax.mean"})

    def _is_share(self, var: relax.Var) -> bool:
        """Return whether only negative values are too large, and all readers saturate there."""
        readers = [self.values[reader] for reader in self.readers.get(var, ())]
        below = self._of(var)[1] <= LARGEST_HALF
        return below and bool(readers) and all(op_name(each) in _TO_SHARES for each in readers)

    def _why(self, value: relax.Expr) -> str:
        name = (op_name(value) or "").removeprefix("relax.").removeprefix("nn.")
        kinds = {"exp": "an exponential", "multiply": "a product", "power": "a power"}
        return kinds.get(name, f"computed by {name}" if name else "computed by several operators")


Rule = Callable[[_Analysis, relax.Call, Sequence[Interval]], Interval]


def _union(intervals: Sequence[Interval]) -> Interval:
    return min(a for a, _ in intervals), max(b for _, b in intervals)


def _ordered(interval: Interval) -> Interval:
    """Return an interval whose ends are numbers or infinities."""
    low, high = (float(end) for end in interval)
    return (-inf if math.isnan(low) else low), (inf if math.isnan(high) else high)


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y if x and y else 0.0 for x in a for y in b]
    return min(corners), max(corners)


def _multiply(_: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    for index, factor in enumerate(sides):
        if min(map(abs, factor)) > LARGEST_HALF and constant_array(call.args[index]) is not None:
            # The other factor is a mask of zeros and ones.
            return _product(factor, (0.0, 1.0))
    low, high = _product(*sides)
    return (0.0, high) if call.args[0].same_as(call.args[1]) else (low, high)


def _subtract(analysis: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    (low, high), (least, most) = sides
    if analysis._is_maximum_of(call.args[1], call.args[0]):
        return low - most, 0.0
    return low - most, high - least


def _divide(analysis: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    numerator, (least, most) = sides
    is_known = constant_array(call.args[1]) is not None
    if is_known and (least > 0 or most < 0):
        return _product(numerator, (1 / most, 1 / least))
    # Assume that divisors are not close to zero.
    return max(numerator[0], -ORDINARY), min(numerator[1], ORDINARY)


def _power(analysis: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    exponent = constant_number(call.args[1])
    if exponent is None or exponent <= 0:
        return _ORDINARY
    largest = float(np.power(max(map(abs, sides[0])), exponent))
    return (-largest if exponent % 2 == 1 else 0.0), largest


def _sum(_: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    length = elements_of(call.args[0]) // max(1, prod(shape_of(call)))
    return _product(sides[0], (1.0, float(length)))


def _cumsum(_: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    shape = shape_of(call.args[0])
    length = prod(shape) if call.attrs.axis is None else shape[int(call.attrs.axis)]
    return _product(sides[0], (1.0, float(length)))


def _clip(_: _Analysis, call: relax.Call, sides: Sequence[Interval]) -> Interval:
    low, high = sides[0]
    least, most = (float(a.value) for a in call.args[1:3])
    return max(low, least), min(high, most)


_RULES: dict[str, Rule] = {
    "relax.add": lambda _, __, s: (s[0][0] + s[1][0], s[0][1] + s[1][1]),
    "relax.subtract": _subtract,
    **dict.fromkeys(("relax.multiply", "relax.tvmflow.product"), _multiply),
    **dict.fromkeys(("relax.divide", "relax.tvmflow.quotient"), _divide),
    "relax.power": _power,
    "relax.maximum": lambda _, __, s: (max(s[0][0], s[1][0]), max(s[0][1], s[1][1])),
    "relax.minimum": lambda _, __, s: (min(s[0][0], s[1][0]), min(s[0][1], s[1][1])),
    "relax.where": lambda _, __, s: _union(s[1:]),
    "relax.clip": _clip,
    "relax.sum": _sum,
    "relax.cumsum": _cumsum,
    "relax.exp": lambda _, __, s: (float(np.exp(s[0][0])), float(np.exp(s[0][1]))),
    "relax.log": lambda _, __, s: (-ORDINARY, float(np.log(max(s[0][1], 1.0)))),
    "relax.sqrt": lambda _, __, s: (0.0, float(np.sqrt(max(s[0][1], 0.0)))),
    "relax.rsqrt": lambda *_: (0.0, ORDINARY),
    "relax.negative": lambda _, __, s: (-s[0][1], -s[0][0]),
    "relax.abs": lambda _, __, s: (0.0, max(map(abs, s[0]))),
    "relax.nn.relu": lambda _, __, s: (max(s[0][0], 0.0), max(s[0][1], 0.0)),
    "relax.nn.relu6": lambda *_: (0.0, 6.0),
}


def analyse(mod: IRModule) -> Precision:
    """Return the tensors of ``main`` that stay in 32 bits, and those that may exceed 16 bits."""
    return _Analysis(mod).run()
