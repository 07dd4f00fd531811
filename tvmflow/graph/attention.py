"""Fusion of attention, written as matrix products and a softmax, to one primary function.

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

There must be several queries, and no other node may read the scores or the probabilities.  Between
the product and the softmax, scores may be added to, multiplied, divided, capped (``tanh``) and
replaced by a number under a mask (``where``), in any order and several times.  They may also be
reshaped if their rows and columns stay (Swin adds the masks of its windows this way): the operands
are then reshaped instead.  :mod:`tvmflow.schedules.attention` defines the function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
from tvm import IRModule, relax, te
from tvm.relax import op as R

from ..devices.target import Device
from ..ir.expressions import INJECTIVE
from ..ir.rewriter import Rewriter, constant, constant_array, constant_number, op_name, shape_of
from ..ir.signatures import bindings_of, count_readers
from ..schedules.attention import NAME, Attention, Step, define
from ..schedules.attention_groups import LANES, is_faster
from ..schedules.definitions import or_zero
from ..schedules.dense import pack_columns

#: Steps by binary operator, and the steps whose operands commute.
_STEPS = {
    "relax.add": "add",
    **dict.fromkeys(("relax.multiply", "relax.tvmflow.product"), "multiply"),
    **dict.fromkeys(("relax.divide", "relax.tvmflow.quotient"), "divide"),
}
_COMMUTATIVE = ("add", "multiply")
#: With fewer queries than this, packing keys and values takes longer than fusion saves.
FEW_QUERIES = 4


@dataclass(frozen=True)
class _Operand:
    """A tensor whose leading axes broadcast to a batch."""

    value: relax.Expr
    batch: tuple[int, ...]

    def viewed(self, batch: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the tensor's shape in a view of its batch; ``None`` if no reshape gives it."""
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
    """Scores of attention: the product, and the steps applied to it."""

    q: _Operand
    k: _Operand
    steps: tuple[Step, ...] = ()
    #: Operands of the steps that have one.
    operands: tuple[_Operand, ...] = ()
    #: Batch axes of each view of the scores.
    views: tuple[tuple[int, ...], ...] = ()

    def then(self, step: Step, operand: _Operand | None = None) -> _Scores:
        """Return the scores with another step."""
        operands = self.operands if operand is None else (*self.operands, operand)
        return replace(self, steps=(*self.steps, step), operands=operands)


class _Fusion(Rewriter):
    """Rewriter of ``main``; it leaves dead code."""

    def __init__(self, mod: IRModule, device: Device, half: bool):
        super().__init__(mod)
        self.device, self.half, self.panels = device, half, device.is_cpu
        self.lanes = device.channel_block if self.panels else LANES
        self.values = {binding.var: binding.value for binding in bindings_of(mod["main"])}
        self.readers = count_readers(mod["main"])

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        scores = self._attended(value)
        fused = None if scores is None else self._fused(scores, value)
        return self.substitute(value) if fused is None else fused

    # -- recognition ----------------------------------------------------------------------

    def _attended(self, value: relax.Expr) -> _Scores | None:
        """Return the scores if a product multiplies their softmax with values."""
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
        """Return the definition of an fp32 tensor with a single reader."""
        plain = expr in self.values and self.readers[expr] == 1
        return self.values[expr] if plain and str(expr.ty.dtype) == "float32" else None

    def _scores(self, expr: relax.Expr) -> _Scores | None:
        """Return a tensor as scores, if it is derived from a matrix product."""
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
        if name == "relax.tanh":
            found = self._scores(value.args[0])
            return found and found.then(Step("tanh"))
        if name == "relax.where":
            return self._chosen(value, shape)
        if name not in _STEPS:
            return None
        step, ordered = _STEPS[name], [value.args, value.args[::-1]]
        for inner, other in ordered if step in _COMMUTATIVE else ordered[:1]:
            if shape_of(inner) != shape or (found := self._scores(inner)) is None:
                continue
            if (number := constant_number(other)) is not None:
                # TVM would fold a product with zero to zero, even for NaN, and reject a division
                # by zero.
                return found.then(_with_number(step, number)) if number or step == "add" else None
            return found.then(Step(step, has_operand=True), _Operand(other, batch))
        return None

    def _chosen(self, choice: relax.Call, shape: tuple[int, ...]) -> _Scores | None:
        """Return scores that a mask replaces partly by a number."""
        mask, a, b = choice.args
        for step, inner, other in (("keep", a, b), ("replace", b, a)):
            number = constant_number(other)
            if number is None or shape_of(inner) != shape:
                continue
            if found := self._scores(inner):
                return found.then(Step(step, number, has_operand=True), _Operand(mask, shape[:-2]))
        return None

    # -- replacement ----------------------------------------------------------------------

    def _fused(self, scores: _Scores, value: relax.Call) -> relax.Expr | None:
        """Return a call of the fused function; ``None`` if it would compute something else."""
        result = shape_of(value)
        if 0 in result:
            return None
        # All views have equally many matrices; the one with the most axes has every axis along
        # which a mask may broadcast.
        batch = max((*scores.views, result[:-2]), key=len)
        values = _Operand(value.args[1], result[:-2])
        operands = [scores.q, scores.k, values, *scores.operands]
        shapes = [shape for each in operands if (shape := each.viewed(batch)) is not None]
        if len(shapes) < len(operands) or len(shape_of(values.value)) < 2:
            return None
        q, k = shapes[:2]
        # Scores that are multiplied with several values should be computed once, not for each of
        # them.
        if 0 in (*q, *k) or q[-2] < FEW_QUERIES or batch != np.broadcast_shapes(q[:-2], k[:-2]):
            return None
        arguments = [
            self._reshaped(self.substitute(operand.value), shape)
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        if self.panels:
            arguments[1:3] = map(self._packed, arguments[1:3])
        else:
            arguments[:3] = map(self._in_vectors, arguments[:3])
        arguments[3:] = map(self._padded, arguments[3:])
        q, k, v, *rest = map(shape_of, arguments)
        attention = Attention(q, k, v, tuple(rest), result[-1], scores.steps, self.panels)
        if not self.panels and not is_faster(attention, self.device, half=self.half):
            return None
        function = self.bb.add_func(define(attention), NAME)
        call = relax.call_tir(function, arguments, relax.TensorType(attention.result, "float32"))
        return call if attention.result == result else R.reshape(self.bb.emit(call), result)

    def _packed(self, matrices: relax.Expr) -> relax.Expr:
        """Pack matrices into panels of columns; their producers are fused into this function."""
        return self.bb.emit_te(
            pack_columns, matrices, self.lanes,
            primfunc_name_hint="pack_columns", primfunc_attrs={"op_pattern": INJECTIVE},
        )  # fmt: skip

    def _in_vectors(self, matrices: relax.Expr) -> relax.Expr:
        """Return matrices whose rows consist of vectors."""
        *lead, columns = shape_of(whole := self._padded(matrices, broadcast=False))
        return self._reshaped(whole, (*lead, columns // self.lanes, self.lanes))

    def _padded(self, operand: relax.Expr, *, broadcast: bool = True) -> relax.Expr:
        """Return an operand in fp32, with rows of more than one element padded to whole vectors."""
        *lead, keys = shape_of(operand)
        missing = -keys % self.lanes if keys > 1 or not broadcast else 0
        if not missing and str(operand.ty.dtype) == "float32":
            return operand
        if (array := constant_array(operand)) is not None:
            padded = np.pad(array.astype("float32"), [(0, 0)] * len(lead) + [(0, missing)])
            return constant(padded)

        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(
                (*lead, keys + missing),
                lambda *i: or_zero([i[-1] < keys] if missing else [], x(*i).astype("float32")),
                name="pad_keys",
            )

        return self.bb.emit_te(
            compute, operand,
            primfunc_name_hint="pad_keys", primfunc_attrs={"op_pattern": INJECTIVE},
        )  # fmt: skip

    def _reshaped(self, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        return value if shape_of(value) == shape else self.bb.emit(R.reshape(value, shape))


def _with_number(step: str, number: float) -> Step:
    """Return a step with a number; a quotient becomes a product if the inverse is normal."""
    if step == "divide" and isfinite(number) and number:
        with np.errstate(over="ignore"):
            inverse = float(np.float32(1 / number))
        if isfinite(inverse) and abs(inverse) >= np.finfo("float32").tiny:
            return Step("multiply", inverse)
    return Step(step, number)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Yield the smallest groups of axes of both shapes with equal numbers of elements."""
    at, to = 0, 0
    while at < len(old) or to < len(new):
        begin, first = at, to
        at, to = min(at + 1, len(old)), min(to + 1, len(new))
        while (have := prod(old[begin:at])) != (want := prod(new[first:to])):
            at, to = (at + 1, to) if have < want else (at, to + 1)
        yield range(begin, at), range(first, to)


def fuse_attention(mod: IRModule, device: Device, *, half: bool = False) -> IRModule:
    """Replace products, masks and softmax of attention by one primary function.

    ``half`` says that tensors will be stored in 16 bits.
    """
    found = any(op_name(each.value) == "relax.nn.softmax" for each in bindings_of(mod["main"]))
    return _Fusion(mod, device, half).run() if found else mod
