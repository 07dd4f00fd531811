"""Numbers of 16 bits: storage of tensors, sums in 16 bits, and bfloat16.

*Storage*, ``--dtype fp16``.  fp32 tensors in the scope ``global.half`` have 16 bits in memory.
OpenCL C reads and writes it on every device, also without ``cl_khr_fp16``: ``vload_half`` and
``vstore_half`` convert (section 6.15.7 of the OpenCL C specification, "Vector Data Load and Store
Functions").  Arithmetic is fp32, except for sums in 16 bits, whose kernels need ``cl_khr_fp16`` and
read such memory without conversion.  Before and after :func:`LowerHalfBuffers`::

    y[T.Ramp(i, 1, 4)] = x[T.Ramp(i, 1, 4)] * T.Broadcast(2.0, 4)

    T.call_extern("tvmflow_store_half4", tvmflow_load_half4(i, x) * ..., i, y)

*Products and sums*, ``--accumulate fp16``.  The layout pass computes some sums in ``float16``
(:mod:`..ir.half_sums`).  Tensors keep the dtype ``float32``, so the reduction converts its factors.
Before and after :func:`NarrowLocals`, which runs after the schedule::

    staged: T.Buffer((4,), "float32", scope="local")     staged: T.Buffer((4,), "float16", ...)
    staged[k] = x[i, k]                                  staged[k] = T.Cast("float16", x[i, k])
    acc[k] += T.Cast("float16", staged[k]) * w[k]        acc[k] += staged[k] * w[k]
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from ..ir.expressions import CHOICE, nodes_in
from ..ir.passes import map_nodes, node_pass, prim_func_pass, target_kind
from ..ir.rewriter import op_name
from ..ir.scope import CHANNELS, is_half, is_half_buffer
from .textures import LOAD, image_of

if TYPE_CHECKING:
    from tvm.ir import Node


#: Prefix of the macros' names.
PREFIX = "tvmflow_half_"
_HALF, _SINGLE = tvm_ffi.dtype("float16"), tvm_ffi.dtype("float32")


# -- registers of 16 bits -----------------------------------------------------------------


@prim_func_pass()
def NarrowLocals(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep local buffers in 16 bits if every read converts them; runs after blocks are lowered.

    Elements are converted once, when they are written, with the same result.  That takes fewer
    registers, and reads of 16-bit memory no longer convert to fp32.  On OpenCL, buffers whose only
    use is to be stored to float16 tensors stay in fp32: ``vstore_half`` converts them also on
    devices without ``cl_khr_fp16``.
    """
    converting = target_kind(function) == "opencl"
    halves = {
        buffer: tirx.decl_buffer(buffer.shape, "float16", buffer.name, scope=buffer.scope())
        for buffer in _only_read_as_half(function.body, converting)
    }

    def narrow(node: tirx.AllocBuffer | tirx.BufferStore | TensorLoad) -> Node:
        half = halves.get(node.source if isinstance(node, TensorLoad) else node.buffer)
        if half is None:
            return node
        if isinstance(node, TensorLoad):
            return tirx.BufferLoad(half, node.indices)
        if isinstance(node, tirx.AllocBuffer):
            return tirx.AllocBuffer(half, node.annotations)
        return tirx.BufferStore(half, _converted(node.value), node.indices)

    def cast(cast: tirx.Cast) -> tirx.Expr:
        if cast.value.ty.dtype == cast.ty.dtype:
            return cast.value
        return _converted(cast.value) if cast.ty.dtype == "float16" else cast

    kinds = (tirx.AllocBuffer, tirx.BufferStore, TensorLoad)
    return map_nodes(function, (kinds, narrow), (tirx.Cast, cast))


def _converted(value: tirx.Expr) -> tirx.Expr:
    """Return a value as half; the sides of an ``if_then_else`` are converted, not its result."""
    if op_name(value) == CHOICE:
        condition, *sides = value.args
        return tirx.if_then_else(condition, *map(_converted, sides))
    return tirx.Cast(_HALF.with_lanes(value.ty.dtype.lanes), value)


def _only_read_as_half(body: tirx.Stmt, converting: bool) -> list[tirx.Buffer]:
    """Return local fp32 buffers whose reads are all converted to half.

    ``converting`` leaves out buffers whose only reads are stores to float16 tensors.
    """
    loads = Counter(load.source for load in nodes_in(body, TensorLoad))
    stores = Counter(
        store.value.value.source
        for store in nodes_in(body, tirx.BufferStore)
        if converting
        and _is_typed(store.buffer)
        and isinstance(store.value, tirx.Cast)
        and isinstance(store.value.value, TensorLoad)
    )
    conversions = Counter(
        cast.value.source
        for cast in nodes_in(body, tirx.Cast)
        if str(cast.ty.dtype) == "float16" and isinstance(cast.value, TensorLoad)
    )
    allocated = (statement.buffer for statement in nodes_in(body, tirx.AllocBuffer))
    local = [b for b in allocated if b.scope() == "local" and str(b.dtype) == "float32"]
    return [b for b in local if stores[b] < loads[b] == conversions[b]]


# -- images of 16 bits --------------------------------------------------------------------


@prim_func_pass()
def ReadHalfTexels(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Read 16-bit images with ``read_imageh`` if the result is wanted as half.

    Runs on vectors: TVM's vectoriser takes the size of a texel from the tensor's dtype.
    """
    return map_nodes(function, (tirx.Cast, _read_texel), (tirx.BufferStore, _store_texel))


def _read_texel(cast: tirx.Cast) -> tirx.Expr:
    call = cast.value
    is_texel = op_name(call) == LOAD and is_half(image_of(call.args[0]).scope())
    return _texel(call, cast.ty) if is_texel and _is_half(cast) else cast


def _store_texel(store: tirx.BufferStore) -> tirx.Stmt:
    """Store a texel to an application's float16 tensor through fp32, as `_store` does."""
    value = store.value
    if not (_is_typed(store.buffer) and op_name(value) == LOAD and _is_half(value)):
        return store
    wide = tvm.ir.PrimType(_SINGLE.with_lanes(value.ty.dtype.lanes))
    texel = tirx.Cast(value.ty.dtype, _texel(value, wide))
    return tirx.BufferStore(store.buffer, texel, store.indices)


def _texel(call: Call, ty: tvm.ir.Type) -> Call:
    """Return the read of the same texel in another type."""
    image, *place, _bits, lane = call.args
    bits = tirx.const(ty.dtype.bits * CHANNELS, "int32")
    return Call(call.op, [image, *place, bits, lane], ret_ty=ty)


def _is_half(value: tirx.Expr) -> bool:
    return value.ty.dtype.with_lanes(1) == _HALF


# -- buffers of 16 bits -------------------------------------------------------------------


@prim_func_pass("opencl")
def LowerHalfBuffers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace accesses to 16-bit buffers by conversions; runs on vectors."""
    return map_nodes(function, (TensorLoad, _load), (tirx.Cast, _read), (tirx.BufferStore, _store))


def _load(load: TensorLoad) -> tirx.Expr:
    return _converting_load(load, load.ty) if is_half_buffer(load.source) else load


def _converting_load(load: TensorLoad, ty: tvm.ir.Type) -> tirx.Expr:
    kind, place, lanes = _place(*load.indices)
    return tirx.call_pure_extern(ty, f"{PREFIX}{kind}{lanes}", place, load.source.data)


def _read(cast: tirx.Cast) -> tirx.Expr:
    """Remove pairs of conversions around a load.

    A load from 16-bit memory that is converted back to half becomes a read of halves.  A load
    from a float16 tensor that is converted to fp32 becomes a ``vload_half``.
    """
    value, dtype = cast.value, cast.ty.dtype
    is_load_of_halves = isinstance(value, TensorLoad) and _is_typed(value.source)
    if is_load_of_halves and dtype.with_lanes(1) == _SINGLE:
        return _converting_load(value, cast.ty)
    arguments = _arguments(value, f"{PREFIX}load{dtype.lanes}")
    if not (_is_half(cast) and arguments):
        return cast
    return tirx.call_pure_extern(cast.ty, f"{PREFIX}read{dtype.lanes}", *arguments)


def _arguments(value: tirx.Expr, name: str) -> list[tirx.Expr]:
    """Return the arguments of a call of the macro ``name``; none for any other value."""
    is_call = op_name(value) == "tirx.call_pure_extern" and value.args[0].value == name
    return list(value.args[1:]) if is_call else []


def _is_typed(buffer: tirx.Var) -> bool:
    """Return whether a buffer is a float16 tensor of the application, not fp32 in 16 bits."""
    is_global = tirx.is_buffer_var(buffer) and buffer.scope() in ("", "global")
    return is_global and buffer.dtype == _HALF


def _store(store: tirx.BufferStore) -> tirx.Stmt:
    value = store.value
    lanes = value.ty.dtype.lanes
    read = _arguments(value, f"{PREFIX}read{lanes}")
    if _is_typed(store.buffer) and read:
        # Copy between 16-bit tensors through fp32, which needs no arithmetic of halves.
        value = tirx.call_pure_extern(_SINGLE.with_lanes(lanes), f"{PREFIX}load{lanes}", *read)
    elif _is_typed(store.buffer) and isinstance(value, tirx.Cast):
        value = value.value
        if value.ty.dtype.with_lanes(1) != _SINGLE:
            return store
    elif not is_half_buffer(store.buffer):
        return store
    kind, place, lanes = _place(*store.indices)
    kind = kind.replace("load", "store").replace("gather", "scatter")
    name = f"{PREFIX}{kind}{lanes}"
    return tirx.Evaluate(tirx.call_extern("int32", name, value, place, store.buffer.data))


def _place(index: tirx.Expr) -> tuple[str, tirx.Expr, int]:
    """Return the kind of access, the first index or all indices, and the number of lanes."""
    if isinstance(index, tirx.Ramp) and int(index.stride) == 1:
        return "load", index.base, int(index.lanes)
    dtype = index.ty.dtype
    if dtype.lanes == 1:
        return "load", index, 1
    return ("gather_long" if dtype.bits == 64 else "gather"), index, dtype.lanes


_MACROS = """\
#define tvmflow_half_load{n}(i, p) vload_half{w}(0, (const __global half*)(p) + (i))
#define tvmflow_half_read{n}(i, p) {read}
#define tvmflow_half_store{n}(v, i, p) vstore_half{w}((v), 0, (__global half*)(p) + (i))
"""
# Functions, because macros would repeat the indices, long texts, once for each lane.
_FUNCTIONS = """\
static inline float{n} tvmflow_half_gather{k}{n}({index}{n} i, __global void* p) {{
  return (float{n})({loads});
}}
static inline void tvmflow_half_scatter{k}{n}(float{n} v, {index}{n} i, __global void* p) {{
  {stores}
}}
"""


@cache
def macros() -> str:
    """Return definitions of the macros that the pass calls; the same for every kernel."""
    texts = [_MACROS.format(n=1, w="", read="((const __global half*)(p))[i]")]
    for n in (2, 4, 8, 16):
        read = f"vload{n}(0, (const __global half*)(p) + (i))"
        texts.append(_MACROS.format(n=n, w=n, read=read))
        loads = ", ".join(f"{PREFIX}load1(i.s{lane:x}, p)" for lane in range(n))
        stores = " ".join(f"{PREFIX}store1(v.s{lane:x}, i.s{lane:x}, p);" for lane in range(n))
        texts += [
            _FUNCTIONS.format(n=n, k=k, index=index, loads=loads, stores=stores)
            for index, k in (("int", ""), ("long", "_long"))
        ]
    # With a guard, as the sources of several kernels may form one program.
    return f"#ifndef {PREFIX}load1\n{''.join(texts)}#endif\n"


# -- bfloat16 -----------------------------------------------------------------------------


@node_pass(tirx.Cast)
def WidenBFloat16(cast: tirx.Cast) -> tirx.Expr:
    """Convert numbers from bfloat16 by their bits, the upper half of a float32's.

    Runs before TVM's passes for bfloat16, which ignore values that have a name (`tirx.Let`,
    `tirx.Bind`) and would take their bits as an integer.
    """
    dtype = cast.value.ty.dtype
    if dtype.with_lanes(1) != "bfloat16":
        return cast
    short, word, single = (
        tvm_ffi.dtype(kind).with_lanes(dtype.lanes) for kind in ("uint16", "uint32", "float32")
    )
    bits = tirx.reinterpret(short, cast.value).astype(word) << tirx.const(16, word)
    return tirx.reinterpret(single, bits).astype(cast.ty.dtype)
