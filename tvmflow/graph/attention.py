"""Attention as one primary function, where a graph has it as products and a softmax.

Before (q, k and v may be views or transpositions of anything)::

    s  : [1, 12, 197, 197] = R.matmul(q, k)              q : [1, 12, 197, 64]  k : [1, 12, 64, 197]
    s1 : [1, 12, 197, 197] = R.multiply(s, R.const(0.125))
    s2 : [1, 12, 197, 197] = R.add(s1, mask)             mask : [1, 1, 1, 197]
    p  : [1, 12, 197, 197] = R.nn.softmax(s2, -1)
    y  : [1, 12, 197, 64]  = R.matmul(p, v)              v : [1, 12, 197, 64]

After::

    k' : [1, 12, 13, 64, 16]  = R.call_tir(pack_columns, (k,))
    v' : [1, 12, 4, 197, 16]  = R.call_tir(pack_columns, (v,))
    y  : [1, 12, 197, 64]     = R.call_tir(attention, (q, k', v', mask))

There are several queries, and no other node may read the scores or the probabilities.  Scores may
be divided by a number, be added to in any order and several times, and be reshaped in between, as
long as their rows and columns stay: the operands are then reshaped instead (Swin adds the masks of
its windows so).  A factor of each matrix goes into q.  :mod:`tvmflow.schedules.attention` has the
function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
from tvm import IRModule, relax, te
from tvm.relax import op as R

from ..ir.expressions import INJECTIVE, nodes_in
from ..ir.rewriter import Rewriter, constant_array, op_name, shape_of
from ..ir.signatures import bindings_of
from ..schedules.attention import NAME, Attention, define
from ..schedules.definitions import or_zero
from ..schedules.dense import pack_columns

#: Products of scores and a factor, and quotients.
_PRODUCTS = ("relax.multiply", "relax.tvmflow.product")
_QUOTIENTS = ("relax.divide", "relax.tvmflow.quotient")
#: Fewer queries take less time than the panels of keys and values that are made for them.
FEW_QUERIES = 4


@dataclass(frozen=True)
class _Operand:
    """A tensor whose leading axes broadcast to a batch."""

    value: relax.Expr
    batch: tuple[int, ...]

    def viewed(self, batch: tuple[int, ...]) -> tuple[int, ...] | None:
        """The tensor's shape in a view of its batch; ``None`` where no reshape makes it."""
        if prod(batch) != prod(self.batch):
            return None
        *lead, rows, columns = (1,) * (2 - len(shape_of(self.value))) + shape_of(self.value)
        own = [1] * (len(self.batch) - len(lead)) + lead
        found: list[int] = []
        for old, new in _groups(self.batch, batch):
            extents = [own[axis] for axis in old]
            if prod(extents) == 1:
                found += [1] * len(new)
            elif extents == [self.batch[axis] for axis in old]:
                found += [batch[axis] for axis in new]
            else:
                return None
        return (*found, rows, columns)


@dataclass(frozen=True)
class _Scores:
    """Scores of attention: ``scale * factors * (q · k) + masks``."""

    q: _Operand
    k: _Operand
    scale: float = 1.0
    factors: tuple[_Operand, ...] = ()
    masks: tuple[_Operand, ...] = ()
    #: The batch of each view of them.
    views: tuple[tuple[int, ...], ...] = ()


class _Fusion(Rewriter):
    """Rewrites ``main``; what is left over is dead code."""

    def __init__(self, mod: IRModule, lanes: int):
        super().__init__(mod)
        self.lanes = lanes
        bindings = list(bindings_of(mod["main"]))
        self.values = {binding.var: binding.value for binding in bindings}
        self.readers = Counter(
            var for binding in bindings for var in nodes_in(binding.value, relax.Var)
        )
        self.readers.update(nodes_in(mod["main"].body.body, relax.Var))

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        scores = self._attended(value)
        fused = None if scores is None else self._fused(scores, value)
        return self.substitute(value) if fused is None else fused

    # -- what there is --------------------------------------------------------------------

    def _attended(self, value: relax.Expr) -> _Scores | None:
        """The scores whose softmax a product multiplies with values."""
        if op_name(value) != "relax.matmul" or len(shape_of(value)) < 2:
            return None
        inner, views = value.args[0], []
        while (found := self._own(inner)) is not None and op_name(found) == "relax.reshape":
            if shape_of(found)[-2:] != shape_of(found.args[0])[-2:]:
                return None
            views.append(shape_of(found)[:-2])
            inner = found.args[0]
        if found is None or op_name(found) != "relax.nn.softmax":
            return None
        if int(found.attrs.axis) not in (-1, len(shape_of(found)) - 1):
            return None
        scores = self._scores(found.args[0])
        return scores and replace(scores, views=(*scores.views, *reversed(views)))

    def _own(self, expr: relax.Expr) -> relax.Expr | None:
        """The definition of a tensor of fp32 that nothing else reads."""
        plain = expr in self.values and self.readers[expr] == 1
        return self.values[expr] if plain and str(expr.ty.dtype) == "float32" else None

    def _scores(self, expr: relax.Expr) -> _Scores | None:
        """What a tensor is as scores."""
        value = self._own(expr)
        name, shape = op_name(value), () if value is None else shape_of(expr)
        if value is None or len(shape) < 2:
            return None
        batch = shape[:-2]
        if name == "relax.matmul":
            if min(len(shape_of(arg)) for arg in value.args) < 2:
                return None
            q, k = (_Operand(arg, batch) for arg in value.args)
            return _Scores(q, k, views=(batch,))
        if name == "relax.reshape":
            found = self._scores(value.args[0])
            kept = shape_of(value.args[0])[-2:] == shape[-2:]
            return replace(found, views=(*found.views, batch)) if found and kept else None
        if name not in (*_PRODUCTS, *_QUOTIENTS, "relax.add"):
            return None
        ordered = [value.args, value.args[::-1]]
        for inner, other in ordered[:1] if name in _QUOTIENTS else ordered:
            if shape_of(inner) != shape or (found := self._scores(inner)) is None:
                continue
            if name == "relax.add":
                return replace(found, masks=(*found.masks, _Operand(other, batch)))
            return _multiplied(found, name, _Operand(other, batch))
        return None

    # -- what it becomes ------------------------------------------------------------------

    def _fused(self, scores: _Scores, value: relax.Call) -> relax.Expr | None:
        """A call of the function; ``None`` where it would compute something else."""
        result = shape_of(value)
        if 0 in result:
            return None
        # All views are of one batch: that of the most axes has what each mask wants.
        batch = max((*scores.views, result[:-2]), key=len)
        values = _Operand(value.args[1], result[:-2])
        operands = [scores.q, scores.k, values, *scores.masks, *scores.factors]
        shapes = [shape for each in operands if (shape := each.viewed(batch)) is not None]
        if len(shapes) < len(operands) or len(shape_of(values.value)) < 2:
            return None
        (q, k, _), rest = shapes[:3], shapes[3:]
        masks, factors = rest[: len(scores.masks)], rest[len(scores.masks) :]
        q = np.broadcast_shapes(q, *factors)
        # Scores that meet several values are computed once, not for each of them.
        if 0 in (*q, *k) or q[-2] < FEW_QUERIES or batch != np.broadcast_shapes(q[:-2], k[:-2]):
            return None
        arguments = [
            self._reshaped(self.substitute(operand.value), shape)
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        while len(arguments) > 3 + len(masks):
            arguments[0] = self.bb.emit(R.multiply(arguments[0], arguments.pop()))
        arguments[1:3] = map(self._packed, arguments[1:3])
        arguments[3:] = map(self._padded, arguments[3:])
        k, v, *masks = map(shape_of, arguments[1:])
        attention = Attention(q, k, v, tuple(masks), result[-1], scores.scale)
        function = self.bb.add_func(define(attention), NAME)
        call = relax.call_tir(function, arguments, relax.TensorType(attention.result, "float32"))
        return call if attention.result == result else R.reshape(self.bb.emit(call), result)

    def _packed(self, matrices: relax.Expr) -> relax.Expr:
        """Matrices in panels of columns, which what comes before them is fused into."""
        return self.bb.emit_te(
            pack_columns, matrices, self.lanes,
            primfunc_name_hint="pack_columns", primfunc_attrs={"op_pattern": INJECTIVE},
        )  # fmt: skip

    def _padded(self, mask: relax.Expr) -> relax.Expr:
        """A mask whose rows, if they have more than one element, are in whole vectors."""
        *lead, keys = shape_of(mask)
        missing = -keys % self.lanes
        if keys == 1 or not missing:
            return mask
        if (array := constant_array(mask)) is not None:
            return relax.const(np.pad(array, [(0, 0)] * len(lead) + [(0, missing)]))

        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(
                (*lead, keys + missing), lambda *i: or_zero([i[-1] < keys], x(*i)), name="pad_keys"
            )

        return self.bb.emit_te(
            compute, mask, primfunc_name_hint="pad_keys", primfunc_attrs={"op_pattern": INJECTIVE}
        )

    def _reshaped(self, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        return value if shape_of(value) == shape else self.bb.emit(R.reshape(value, shape))


def _multiplied(scores: _Scores, name: str, factor: _Operand) -> _Scores | None:
    """Scores times a factor, or by a number; ``None`` where it is not one of whole matrices.

    Nor are products with zero or infinity, of which NaN may come.
    """
    array, extents = constant_array(factor.value), shape_of(factor.value)
    if scores.masks:
        return None
    if array is not None and array.size == 1:
        number = float(array.reshape(()))
        if name in _QUOTIENTS:
            number = 1 / number if number else 0.0
        with np.errstate(all="ignore"):
            scale = float(np.float32(scores.scale * number))
        return replace(scores, scale=scale) if scale and isfinite(scale) else None
    if name in _QUOTIENTS or prod(extents[-2:]) != 1:
        return None
    return replace(scores, factors=(*scores.factors, factor))


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Axes that a reshape joins or parts: the fewest of both sides with as many elements."""
    at, to = 0, 0
    while at < len(old) or to < len(new):
        begin, first = at, to
        at, to = min(at + 1, len(old)), min(to + 1, len(new))
        while (have := prod(old[begin:at])) != (want := prod(new[first:to])):
            at, to = (at + 1, to) if have < want else (at, to + 1)
        yield range(begin, at), range(first, to)


def fuse_attention(mod: IRModule, lanes: int) -> IRModule:
    """Replace products, masks and softmax of attention, for vectors of so many lanes."""
    found = any(op_name(each.value) == "relax.nn.softmax" for each in bindings_of(mod["main"]))
    return _Fusion(mod, lanes).run() if found else mod
