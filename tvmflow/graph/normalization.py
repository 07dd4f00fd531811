"""Fusion of normalisations, written as sums, squares and roots, to one primary function.

Before, as JAX writes it (other exporters take the mean of ``(x - m) * (x - m)``)::

    m = R.divide(R.sum(x, [-1], keepdims=True), R.const(256))
    s = R.divide(R.sum(R.multiply(x, x), [-1], keepdims=True), R.const(256))
    r = R.divide(R.const(1), R.sqrt(R.add(R.subtract(s, R.multiply(m, m)), R.const(1e-5))))
    y = R.add(R.multiply(R.subtract(x, m), R.multiply(r, scale)), bias)

After::

    y = R.add(R.multiply(R.nn.layer_norm(x, ones, zeros, [-1], 1e-5), scale), bias)

This is one kernel instead of four, and its variance does not suffer from cancellation.  The pass
walks forwards and describes each tensor as a product of statistics of another tensor's rows and of
other tensors, so the form, order and shapes of the statistics do not matter.  A normalisation is
found if a product has both the inverse deviation and the tensor that it divides, or in
``x * f + (b - m * f)``, as TensorFlow writes batch normalisation.  Without a mean it is a root mean
square normalisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.relax import op as R

from ..ir.norms import normalized
from ..ir.passes import module_pass
from ..ir.rewriter import (
    Rewriter,
    constant_number,
    identifier,
    ints,
    op_name,
    shape_of,
)
from ..ir.signatures import bindings_of

#: Operators that may change a statistic's shape, but keep one element a row.
_VIEWS = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.broadcast_to")
#: Operators that do not change a variance, as it is not negative.
_WITHOUT_SIGN = ("relax.maximum", "relax.nn.relu", "relax.abs")
#: Depth to which sums are flattened, enough for the forms of exporters.
_DEPTH = 3
#: Tolerance of a factor 1/n in fp32, relative.
_CLOSE = 1e-6


@dataclass(frozen=True)
class _Statistic:
    """A number for each row of a tensor; ``centred`` is the tensor without its rows' means.

    Kinds: ``sum``, ``squares`` (the sum of squares), ``mean``, ``variance``, ``shifted`` (variance
    plus epsilon), ``reciprocal`` (of ``shifted``), ``deviation`` (its root), ``inverse`` (of the
    deviation) and ``centred``.
    """

    kind: str
    #: Index of the tensor in `_Fusion.numbered`, and the axes that form a row.
    x: int
    axes: tuple[int, ...]
    #: Whether the variance subtracts the mean; without it, it is a mean square.
    has_mean: bool = False
    epsilon: float = 0.0


#: Factors of a tensor: statistics, and other tensors by index.
_Product = tuple["_Statistic | int", ...]


class _Fusion(Rewriter):
    """Rewriter of ``main``; it leaves dead code."""

    def __init__(self, mod: IRModule):
        super().__init__(mod)
        self.values = {b.var: b.value for b in bindings_of(mod["main"])}
        self.numbers: dict[object, int] = {}
        self.numbered: list[relax.Expr] = []
        self.products: dict[relax.Var, _Product] = {}
        #: Normalised tensors emitted so far.
        self.normals: dict[_Statistic, relax.Expr] = {}

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        name = op_name(value)
        if name is None or str(getattr(var.ty, "dtype", "")) != "float32":
            return self.substitute(value)
        product = self._product_of(name, value)
        if product is not None and (found := self._normal_product(var, product)) is not None:
            return found
        if name in ("relax.add", "relax.subtract"):
            found = self._normal_sum(var)
            if found is not None:
                return found
        if product is not None:
            self.products[var] = product
        return self.substitute(value)

    # -- description of tensors -----------------------------------------------------------

    def _number(self, expr: relax.Expr) -> int:
        key = expr.value.__hash__() if isinstance(expr, GenericConst) else expr
        if key not in self.numbers:
            self.numbers[key] = len(self.numbered)
            self.numbered.append(expr)
        return self.numbers[key]

    def _product(self, expr: relax.Expr) -> _Product:
        if isinstance(expr, relax.Var) and expr in self.products:
            return self.products[expr]
        return (self._number(expr),)

    def _single(self, expr: relax.Expr, *kinds: str) -> _Statistic | None:
        """Return the statistic that a tensor is, if it is of one of these kinds."""
        product = self._product(expr)
        found = product[0]
        if len(product) == 1 and isinstance(found, _Statistic) and found.kind in kinds:
            return found
        return None

    def _product_of(self, name: str, call: relax.Call) -> _Product | None:
        """Return a call's result as a product; ``None`` if it is not one."""
        if name in ("relax.mean", "relax.sum"):
            found = self._reduced(name, call)
        elif name in _VIEWS:
            return self._viewed(name, call)
        elif name in ("relax.multiply", "relax.divide"):
            found = self._averaged(name, call)
            if found is None:
                return self._multiplied(name, call)
        elif name == "relax.subtract":
            found = self._difference(call)
        elif name == "relax.add":
            found = self._shifted(call)
        elif name in _WITHOUT_SIGN:
            found = self._single(call.args[0], "variance")
            if name == "relax.maximum" and (found is None or constant_number(call.args[1]) != 0):
                found = self._single(call.args[1], "variance")
                found = found if constant_number(call.args[0]) == 0 else None
        else:
            found = self._root(name, call)
        return None if found is None else (found,)

    def _reduced(self, name: str, call: relax.Call) -> _Statistic | None:
        shape = shape_of(call.args[0])
        axes = range(len(shape)) if call.attrs.axis is None else ints(call.attrs.axis)
        axes = tuple(sorted(axis % len(shape) for axis in axes))
        first, *others = self._product(call.args[0])
        if not axes or others not in ([], [first]):
            return None
        is_mean = name == "relax.mean"
        if isinstance(first, int):
            if shape_of(self.numbered[first]) != shape:
                return None
            if not others:
                return _Statistic("mean" if is_mean else "sum", first, axes)
            return _Statistic("variance" if is_mean else "squares", first, axes)
        if others and first.kind == "centred" and first.axes == axes:
            return replace(first, kind="variance" if is_mean else "squares", has_mean=True)
        return None

    def _viewed(self, name: str, call: relax.Call) -> _Product | None:
        source = call.args[0]
        row = self._row(self._product(source))
        if row is None:
            return None
        if name == "relax.broadcast_to":
            fits = self._is_aligned(source, row) and shape_of(call) == self._shape(row)
        else:
            fits = prod(shape_of(source)) == self._rows(row)
        return self._product(source) if fits else None

    def _averaged(self, name: str, call: relax.Call) -> _Statistic | None:
        """Return a mean or variance computed from a sum by a constant factor or divisor."""
        pairs = [call.args, call.args[::-1]] if name == "relax.multiply" else [call.args]
        for total, factor in pairs:
            found, number = self._single(total, "sum", "squares"), constant_number(factor)
            if found is None or not number:
                continue
            length = prod(self._shape(found)[axis] for axis in found.axes)
            share = number * length if name == "relax.multiply" else length / number
            if abs(share - 1) < _CLOSE and prod(shape_of(call)) == self._rows(found):
                return replace(found, kind="mean" if found.kind == "sum" else "variance")
        return None

    def _multiplied(self, name: str, call: relax.Call) -> _Product | None:
        left, right = (self._product(each) for each in call.args)
        if name == "relax.divide":
            divisor = self._single(call.args[1], "deviation", "shifted")
            if divisor is None:
                return None
            is_root = divisor.kind == "deviation"
            right = (replace(divisor, kind="inverse" if is_root else "reciprocal"),)
        rows = [self._row(side) for side in (left, right)]
        same = None not in rows and shape_of(call.args[0]) == shape_of(call.args[1])
        for expr, row in zip(call.args, rows, strict=True):
            if row is not None and not same and not self._is_aligned(expr, row):
                # A scalar constant has no rows to be aligned with.
                others = [other for other in call.args if other is not expr]
                if not all(constant_number(other) is not None for other in others):
                    return None
        return right if constant_number(call.args[0]) == 1 else left + right

    def _difference(self, call: relax.Call) -> _Statistic | None:
        minuend, subtrahend = call.args
        square = self._single(minuend, "variance")
        if square is not None and not square.has_mean and shape_of(minuend) == shape_of(subtrahend):
            mean = _Statistic("mean", square.x, square.axes)
            if self._product(subtrahend) == (mean, mean):
                return replace(square, has_mean=True)
        found = self._single(subtrahend, "mean")
        if found is None or self._product(minuend) != (found.x,):
            return None
        fits = self._is_aligned(subtrahend, found) and shape_of(minuend) == self._shape(found)
        return replace(found, kind="centred", has_mean=True) if fits else None

    def _shifted(self, call: relax.Call) -> _Statistic | None:
        for variance, other in (call.args, call.args[::-1]):
            found, epsilon = self._single(variance, "variance"), constant_number(other)
            whole = prod(shape_of(call)) == prod(shape_of(variance))
            if found is not None and epsilon is not None and epsilon >= 0 and whole:
                return replace(found, kind="shifted", epsilon=epsilon)
        return None

    def _root(self, name: str | None, call: relax.Call) -> _Statistic | None:
        if name == "relax.where":
            # ``Pow`` with an exponent of a half: infinity for minus infinity, else the power.
            of_power = constant_number(call.args[1]) == np.inf and call.args[2] in self.values
            call = self.values[call.args[2]] if of_power else call
            name = op_name(call)
        if name not in ("relax.sqrt", "relax.rsqrt", "relax.power"):
            return None
        found = self._single(call.args[0], "shifted", "variance", "reciprocal")
        inverse = name == "relax.rsqrt" or (
            name == "relax.power" and constant_number(call.args[1]) == -0.5
        )
        if found is None or (name == "relax.power" and not inverse):
            return None
        if found.kind == "reciprocal":
            return None if inverse else replace(found, kind="inverse")
        return replace(found, kind="inverse" if inverse else "deviation")

    # -- rows -----------------------------------------------------------------------------

    def _shape(self, statistic: _Statistic) -> tuple[int, ...]:
        return shape_of(self.numbered[statistic.x])

    def _rows(self, statistic: _Statistic) -> int:
        shape = self._shape(statistic)
        return prod(extent for axis, extent in enumerate(shape) if axis not in statistic.axes)

    def _row(self, product: _Product) -> _Statistic | None:
        """Return a statistic of the rows that all factors belong to; ``None`` if rows differ."""
        rows = [each for each in product if isinstance(each, _Statistic) and each.kind != "centred"]
        same = len({(each.x, each.axes) for each in rows}) == 1
        return rows[0] if same and len(rows) == len(product) else None

    def _is_aligned(self, expr: relax.Expr, row: _Statistic) -> bool:
        """Return whether each statistic broadcasts to the elements of its own row."""
        shape = self._shape(row)
        kept = tuple(1 if axis in row.axes else extent for axis, extent in enumerate(shape))
        return _stripped(shape_of(expr)) in (_stripped(kept), _stripped(shape))

    # -- replacement ----------------------------------------------------------------------

    def _normal(
        self, inverse: _Statistic, var: relax.Var, factors: Counter[_Statistic | int]
    ) -> relax.Expr | None:
        """Return a normalised tensor times factors; ``None`` where TVM cannot legalize it."""
        if inverse not in self.normals:
            x = self.substitute(self.numbered[inverse.x])
            call = normalized(x, inverse.axes, inverse.epsilon, centred=inverse.has_mean)
            if call is None:
                return None
            self.normals[inverse] = self.bb.emit(call, name_hint=identifier(var.name))
        result = self.normals[inverse]
        for number in factors.elements():
            factor = self.substitute(self.numbered[int(number)])  # type: ignore[arg-type]
            result = self.bb.emit(R.multiply(result, factor))
        return result

    def _normal_product(self, var: relax.Var, product: _Product) -> relax.Expr | None:
        """Return the normalisation if a product has a tensor and its inverse deviation."""
        inverses = [i for i in product if isinstance(i, _Statistic) and i.kind == "inverse"]
        if len(inverses) != 1:
            return None
        inverse = inverses[0]
        wanted: _Statistic | int = inverse.x
        if inverse.has_mean:
            wanted = _Statistic("centred", inverse.x, inverse.axes, has_mean=True)
        rest = Counter(product) - Counter((inverse, wanted))
        if wanted not in product or any(isinstance(each, _Statistic) for each in rest):
            return None
        return self._scaled(var, inverse, rest)

    def _scaled(
        self, var: relax.Var, inverse: _Statistic, factors: Counter[_Statistic | int]
    ) -> relax.Expr | None:
        shapes = [shape_of(self.numbered[int(each)]) for each in factors]  # type: ignore[arg-type]
        if np.broadcast_shapes(self._shape(inverse), *shapes) != shape_of(var):
            return None
        return self._normal(inverse, var, factors)

    def _normal_sum(self, var: relax.Var) -> relax.Expr | None:
        """Return the normalisation if a sum is ``x * f + (b - m * f)`` and f has x's deviation."""
        terms = list(self._terms(var, 1, _DEPTH))
        for sign, scaled, _ in terms:
            inverses = [i for i in scaled if isinstance(i, _Statistic) and i.kind == "inverse"]
            if len(inverses) != 1 or not inverses[0].has_mean or inverses[0].x not in scaled:
                continue
            inverse = inverses[0]
            factors = Counter(scaled) - Counter((inverse, inverse.x))
            if any(isinstance(each, _Statistic) for each in factors):
                continue
            mean = _Statistic("mean", inverse.x, inverse.axes)
            shift = factors + Counter((inverse, mean))
            shifts = [t for t in terms if t[0] == -sign and Counter(t[1]) == shift]
            if len(shifts) != 1:
                continue
            rest = [t for t in terms if t[1] is not scaled and t is not shifts[0]]
            stretched = [shape_of(expr) for _, _, expr in rest]
            if len(rest) != len(terms) - 2 or (
                np.broadcast_shapes(self._shape(inverse), *stretched) != shape_of(var)
            ):
                continue
            return self._with_terms(var, inverse, factors, sign, rest)
        return None

    def _with_terms(
        self,
        var: relax.Var,
        inverse: _Statistic,
        factors: Counter[_Statistic | int],
        sign: int,
        rest: Sequence[tuple[int, _Product, relax.Expr]],
    ) -> relax.Expr | None:
        result = self._normal(inverse, var, factors)
        if result is None:
            return None
        if sign < 0:
            result = self.bb.emit(R.negative(result))
        for other, _, expr in rest:
            combine = R.add if other > 0 else R.subtract
            result = self.bb.emit(combine(result, self.substitute(expr)))
        return result

    def _terms(
        self, expr: relax.Expr, sign: int, depth: int
    ) -> list[tuple[int, _Product, relax.Expr]]:
        """Return the terms of a sum, with their signs."""
        value = self.values.get(expr) if depth and expr not in self.products else None
        name = op_name(value)
        if value is None:
            return [(sign, self._product(expr), expr)]
        if name == "relax.negative":
            return self._terms(value.args[0], -sign, depth - 1)
        if name not in ("relax.add", "relax.subtract"):
            return [(sign, self._product(expr), expr)]
        second = sign if name == "relax.add" else -sign
        left, right = value.args
        return [*self._terms(left, sign, depth - 1), *self._terms(right, second, depth - 1)]


def _stripped(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without leading axes of extent 1, which broadcast."""
    shape = tuple(shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


@module_pass("FuseNormalization")
def FuseNormalization(mod: IRModule) -> IRModule:  # noqa: N802
    """Replace normalisations that are written as sums, squares and roots."""
    names = {op_name(binding.value) for binding in bindings_of(mod["main"])}
    reduces = names & {"relax.mean", "relax.sum"}
    roots = names & {"relax.sqrt", "relax.rsqrt", "relax.power"}
    return _Fusion(mod).run() if reduces and roots else mod
