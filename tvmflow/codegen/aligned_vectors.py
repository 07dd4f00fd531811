"""Vectors that begin at multiples of their size, accessed as whole vectors.

``vload4`` and ``vstore4`` assume memory to be aligned for one element only (OpenCL C, section
6.15.7), and compilers for GPUs make up to four accesses of each.  A pointer to vectors allows one
access for a whole vector, and faults on some processors if it is not aligned: in rows of 101
elements, only every fourth row begins at a multiple of four.  :func:`AlignVectors` uses such a
pointer if the index is proven to be a multiple::

    x[T.Ramp(i * 8 + 4, 1, 4)]        T.call_extern("tvmflow_at_float4", x, i * 2 + 1)
    y[T.Ramp(i * 8 + 4, 1, 4)] = v    T.call_extern("tvmflow_put_float4", y, i * 2 + 1, v)

Buffers begin at multiples of the largest vector: drivers allocate them this way, and tensors
with an offset into a buffer have a variable for it in their index.

Private memory is aligned for one element.  TVM writes ``vload4`` for such an index, but four reads
if a part of it has been bound to a name: computed indices get their ``vload4`` here.
"""

from __future__ import annotations

import re

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..ir.annotations import CONSTANT_SUFFIX
from ..ir.expressions import nodes_in
from ..ir.passes import map_nodes, prim_func_pass

_AT, _PUT = "tvmflow_at_", "tvmflow_put_"
#: OpenCL C's names of element types.  Vectors of bytes have their own macros.
_ELEMENTS = {
    "float16": "half", "float32": "float", "float64": "double",
    "int16": "short", "uint16": "ushort", "int32": "int", "uint32": "uint",
    "int64": "long", "uint64": "ulong",
}  # fmt: skip
#: Names of the macros, for :func:`definition`.
NAME = re.compile(rf"\b(?:{_AT}|{_PUT})([a-z]+(?:2|4|8|16))\b")


def vector_place(index: tirx.Expr) -> tirx.Expr | None:
    """Return the index of a vector in units of its size, if it begins at a multiple of it.

    ``index`` has the consecutive indices of the elements.
    """
    if not isinstance(index, tirx.Ramp) or int(index.stride) != 1:
        return None
    lanes = tirx.const(int(index.lanes), index.base.ty.dtype)
    analyzer = Analyzer()
    if int(lanes) not in (2, 4, 8, 16) or not analyzer.can_prove(
        tirx.EQ(tirx.floormod(index.base, lanes), tirx.const(0, lanes.ty.dtype))
    ):
        return None
    place = analyzer.simplify(tirx.floordiv(index.base, lanes))
    if nodes_in(place, tirx.FloorDiv, tirx.FloorMod):
        # This runs after divisions were lowered; a shift rounds down, too.
        place = index.base >> (int(lanes).bit_length() - 1)
    return place


@prim_func_pass("opencl")
def AlignVectors(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Access aligned vectors of buffers by macros; runs late, on kernels."""

    def load(found: TensorLoad) -> tirx.Expr:
        place = _place(found.source, *found.indices)
        if place is None:
            return found
        if found.source.scope() == "local":
            if isinstance(place, tirx.IntImm):
                return found
            lanes, pointer = found.ty.dtype.lanes, found.source.data
            return tirx.call_extern(found.ty, f"vload{lanes}", place, pointer)
        kind = _kind(found.source, found)
        # The function is not pure: its memory may be written between two reads.
        return tirx.call_extern(found.ty, _AT + kind, found.source.data, place)

    def store(found: tirx.BufferStore) -> tirx.Stmt:
        place = _place(found.buffer, *found.indices)
        if place is None or found.buffer.scope() == "local":
            return found
        name = _PUT + _kind(found.buffer, found.value)
        call = tirx.call_extern("int32", name, found.buffer.data, place, found.value)
        return tirx.Evaluate(call)

    return map_nodes(function, (TensorLoad, load), (tirx.BufferStore, store))


def _place(buffer: tirx.Var, *indices: tirx.Expr) -> tirx.Expr | None:
    # Most accesses are scalar, so test for that first to save compilation time.
    if len(indices) != 1 or not isinstance(indices[0], tirx.Ramp):
        return None
    is_memory = buffer.scope() in ("", "global", "local") and CONSTANT_SUFFIX not in buffer.name
    return vector_place(*indices) if is_memory and str(buffer.dtype) in _ELEMENTS else None


def _kind(buffer: tirx.Var, value: tirx.Expr) -> str:
    return f"{_ELEMENTS[str(buffer.dtype)]}{value.ty.dtype.lanes}"


def definition(match: re.Match[str]) -> str:
    """Return the definition of a macro that a kernel calls."""
    vector = f"((__global {match[1]}*)(p))[i]"
    if match.group().startswith(_AT):
        return f"#define {match.group()}(p, i) ({vector})\n"
    return f"#define {match.group()}(p, i, v) ({vector} = (v))\n"
