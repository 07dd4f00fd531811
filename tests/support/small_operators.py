"""Operators that tests compile for open extents."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from tvmflow.errors import InputError, ShapeError
from tvmflow.ir.operator import Operand, Operator
from tvmflow.ir.tensors import TensorType

FLOATS = ("float32", "float16", "bfloat16")


def _same(types, attributes):
    x, shift, *_ = types
    if shift is not None and shift.shape != (x.shape[-1],):
        raise ShapeError(f"Shifted is given x {list(x.shape)} and shift {list(shift.shape)}.")
    return (x,)


def _wide(value):
    return value.astype("float32")


def _compute(tensors, attributes):
    x, shift, keep = tensors

    def one(*index):
        value = _wide(x(*index)) * tirx.const(attributes["factor"], "float32")
        if shift is not None:
            value = value + _wide(shift(index[-1]))
        if keep is not None:
            value = tirx.if_then_else(index[0] < keep(), value, tirx.const(0, "float32"))
        return value.astype(x.dtype)

    return [te.compute(x.shape, one, name="shifted")]


def _compute_gradient(tensors, attributes):
    x, grad = tensors

    def one(*index):
        return (_wide(grad(*index)) * tirx.const(attributes["factor"], "float32")).astype(x.dtype)

    rows = te.compute(x.shape, one, name="grad_x")
    return [rows]


def _reference(arrays, attributes):
    x, shift, keep = arrays
    value = x * attributes["factor"] + (0 if shift is None else shift)
    rows = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
    return [value if keep is None else np.where(rows < keep, value, 0)]


def _check(arrays, attributes):
    keep = arrays[2]
    if keep is not None and keep < 0:
        raise InputError(f"Shifted is given keep {int(keep)}, expected 0 or more.")


_GRADIENT = Operator(
    "ShiftedGrad", "Gradient of Shifted.",
    (Operand("x", FLOATS, shapes=("N, 4",)), Operand("grad_y", FLOATS, shapes=("N, 4",))),
    (Operand("grad_x", FLOATS),),
    lambda types, attributes: (types[0],), _compute_gradient,
    lambda arrays, attributes: [arrays[1] * attributes["factor"]], {"factor": 2.0},
)  # fmt: skip

#: ``y = factor * x + shift``, zeros in rows from ``keep`` on; its gradient ignores ``keep``.
SHIFTED = Operator(
    "Shifted", "Rows times a number, plus a row.",
    (
        Operand("x", FLOATS, shapes=("N, 4", "B, N, 4")),
        Operand("shift", FLOATS, optional=True, shapes=("4",)),
        Operand("keep", ("int32",), optional=True, shapes=("",)),
    ),
    (Operand("y", FLOATS),),
    _same, _compute, _reference, {"factor": 2.0}, _GRADIENT, _check,
)  # fmt: skip


def rows_of(shape, dtype="float32", seed=5):
    """Numbers of either sign in a dtype."""
    from tvmflow.ir.tensors import dtype_from_name

    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_from_name(dtype))


def kinds(*arrays):
    """Types of arrays, ``None`` for none."""
    return [None if a is None else TensorType(a.shape, a.dtype.name) for a in arrays]
