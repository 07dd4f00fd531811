"""Products and sums in 16 bits, ``--accumulate fp16``: which, and in which registers.

The layout pass computes sums of convolutions, packed dense layers and average pooling in
``float16``; :func:`may_narrow` says which of them.  Everything else is fp32: maxima have no
sums, and softmax, normalisation and means over whole pictures sum too many numbers of one
sign for 11 bits.  Tensors keep the dtype ``float32``, so that an anchor converts what it
multiplies.  Before and after :func:`NarrowLocals`, which follows the schedule::

    staged: T.Buffer((4,), "float32", scope="local")     staged: T.Buffer((4,), "float16", ...)
    staged[k] = x[i, k]                                  staged[k] = T.Cast("float16", x[i, k])
    acc[k] += T.Cast("float16", staged[k]) * w[k]        acc[k] += staged[k] * w[k]
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Call, GlobalVar, Op
from tvm.ir.expr import TensorLoad

from ..ir.passes import prim_func_pass

#: Products in the longest sum that is taken in 16 bits: its error is some 2 % (see
#: :func:`tvmflow.verify.tolerance.summed_in_half`), and grows with the root of the length.
MOST_PRODUCTS = 8192
#: Numbers in the largest window that is averaged in 16 bits.  Numbers of one sign add up: 64
#: times 1,000 is near the largest half, 65,504.
LARGEST_WINDOW = 64

_CHOICE = Op.get("prim.if_then_else")


def may_narrow(length: int, weight: np.ndarray | None = None) -> bool:
    """Whether a sum of ``length`` products with a weight, or numbers, is taken in 16 bits."""
    if weight is None:
        return length <= LARGEST_WINDOW
    # A weight beyond the largest half would be infinite.
    return length <= MOST_PRODUCTS and fits_half(weight)


def fits_half(array: np.ndarray) -> bool:
    """Whether no value would be infinite in 16 bits."""
    return bool(np.abs(array).max(initial=0) <= np.finfo("e").max)


def half_sums(mod: IRModule) -> list[int]:
    """Lengths of the sums in 16 bits, one a call of ``main`` that has one, in its order."""
    lengths: list[int] = []

    def visit(call: relax.Call) -> None:
        if call.args and isinstance(call.args[0], GlobalVar):
            function = mod[call.args[0]]
            if isinstance(function, tirx.PrimFunc):
                lengths.extend(half_lengths(function))

    tvm_ffi.structural_walk(mod["main"].body, (Call, visit))
    return lengths


def half_lengths(function: tirx.PrimFunc) -> list[int]:
    """Lengths of the sums in 16 bits of a primary function without a schedule."""
    found: list[int] = []

    def visit(block: s_tir.SBlock) -> None:
        reduced = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if reduced and str(block.writes[0].source.dtype) == "float16":
            found.append(int(np.prod([int(v.dom.extent) for v in reduced])))

    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, visit))
    return found


@prim_func_pass("NarrowLocals")
def NarrowLocals(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Keep what is staged in 16 bits where every read converts it; runs on loops, no blocks.

    The same numbers, converted once where they are written: fewer registers, and reads of
    memory that is in 16 bits already become reads of halves.
    """
    halves = {
        buffer: tirx.decl_buffer(buffer.shape, "float16", buffer.name, scope=buffer.scope())
        for buffer in _staged(function.body)
    }

    def allocate(statement: tirx.AllocBuffer) -> tirx.Stmt:
        half = halves.get(statement.buffer)
        return statement if half is None else tirx.AllocBuffer(half, statement.annotations)

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        half = halves.get(statement.buffer)
        if half is None:
            return statement
        return tirx.BufferStore(half, _converted(statement.value), statement.indices)

    def load(load: TensorLoad) -> Any:
        half = halves.get(load.source)
        return load if half is None else tirx.BufferLoad(half, load.indices)

    def cast(cast: tirx.Cast) -> Any:
        if cast.value.ty.dtype == cast.ty.dtype:
            return cast.value
        return _converted(cast.value) if str(cast.ty.dtype) == "float16" else cast

    callbacks = [
        (tirx.AllocBuffer, allocate), (tirx.BufferStore, store), (TensorLoad, load),
        (tirx.Cast, cast),
    ]  # fmt: skip
    return function.with_body(tvm_ffi.structural_map(function.body, callbacks))


def _converted(value: Any) -> Any:
    """A value as half, converted where it is loaded and not behind a choice."""
    if isinstance(value, Call) and value.op.same_as(_CHOICE):
        condition, *sides = value.args
        return tirx.if_then_else(condition, *map(_converted, sides))
    lanes = value.ty.dtype.lanes
    return tirx.Cast("float16" if lanes == 1 else f"float16x{lanes}", value)


def _staged(body: tirx.Stmt) -> list[Any]:
    """Local buffers of fp32 that are only read to be converted to half."""
    allocated: list[Any] = []
    loads: Counter[Any] = Counter()
    conversions: Counter[Any] = Counter()

    def allocate(statement: tirx.AllocBuffer) -> None:
        buffer = statement.buffer
        if buffer.scope() == "local" and str(buffer.dtype) == "float32":
            allocated.append(buffer)

    def cast(cast: tirx.Cast) -> None:
        if str(cast.ty.dtype) == "float16" and isinstance(cast.value, TensorLoad):
            conversions[cast.value.source] += 1

    tvm_ffi.structural_walk(
        body,
        [
            (tirx.AllocBuffer, allocate),
            (tirx.Cast, cast),
            (TensorLoad, lambda load: loads.update([load.source])),
        ],
    )
    return [b for b in allocated if 0 < loads[b] == conversions[b]]
