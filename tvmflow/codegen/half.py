"""Numbers of 16 bits: where tensors are stored in them, sums are taken in them, and bfloat16.

*Storage*, ``--dtype fp16``.  fp32 tensors in the scope ``global.half`` have 16 bits in memory.
OpenCL C reads and writes it on every device, also one without ``cl_khr_fp16``: ``vload_half`` and
``vstore_half`` convert (section 6.15.7 of the OpenCL C specification, "Vector Data Load and Store
Functions").  Arithmetic is fp32, but for sums in 16 bits, whose kernels need ``cl_khr_fp16`` and
read such memory as it is.  Before and after :func:`LowerHalfBuffers`::

    y[T.Ramp(i, 1, 4)] = x[T.Ramp(i, 1, 4)] * T.Broadcast(2.0, 4)

    T.call_extern("tvmflow_store_half4", tvmflow_load_half4(i, x) * ..., i, y)

*Products and sums*, ``--accumulate fp16``.  The layout pass computes sums of convolutions, packed
dense layers and average pooling in ``float16``; :func:`may_sum_in_half` says which of them.
Everything else is fp32: maxima have no sums, and softmax, normalisation and means over whole
pictures sum too many numbers of one sign for 11 bits.  Tensors keep the dtype ``float32``, so that
an anchor converts what it multiplies.  Before and after :func:`NarrowLocals`, which follows the
schedule::

    staged: T.Buffer((4,), "float32", scope="local")     staged: T.Buffer((4,), "float16", ...)
    staged[k] = x[i, k]                                  staged[k] = T.Cast("float16", x[i, k])
    acc[k] += T.Cast("float16", staged[k]) * w[k]        acc[k] += staged[k] * w[k]
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx
from tvm.ir import Call, GlobalVar, Op
from tvm.ir.expr import TensorLoad

from ..ir.expressions import nodes_in
from ..ir.passes import map_nodes, node_pass, prim_func_pass
from ..ir.scope import CHANNELS, HALF_BUFFER, is_half
from .textures import LOAD, image_of

#: Beginning of the names of the macros.
PREFIX = "tvmflow_half_"
WIDTHS = (1, 2, 4, 8, 16)
#: Products in the longest sum that is taken in 16 bits: its error is some 2 % (see
#: :func:`tvmflow.verify.tolerance.summed_in_half`), and grows with the root of the length.
MOST_PRODUCTS = 8192
#: Numbers in the largest window that is averaged in 16 bits.  Numbers of one sign add up: 64
#: times 1,000 is near the largest half, 65,504.
LARGEST_WINDOW = 64

_CHOICE = Op.get("prim.if_then_else")
_EXTERN = Op.get("tirx.call_pure_extern")
_LOAD_TEXEL = Op.get(LOAD)
_FLOAT = tvm_ffi.dtype("float16").type_code


# -- which sums ---------------------------------------------------------------------------


def may_sum_in_half(length: int, weight: np.ndarray | None = None) -> bool:
    """True if a sum of ``length`` products with a weight, or numbers, is taken in 16 bits."""
    if weight is None:
        return length <= LARGEST_WINDOW
    # A weight beyond the largest half would be infinite.
    return length <= MOST_PRODUCTS and fits_half(weight)


def fits_half(array: np.ndarray) -> bool:
    """True if no value would be infinite in 16 bits."""
    return bool(np.abs(array).max(initial=0) <= np.finfo("e").max)


def half_sums(mod: IRModule) -> list[int]:
    """Lengths of the sums in 16 bits, one a call of ``main`` that has one, in its order."""
    calls: list[relax.Call] = nodes_in(mod["main"].body, Call)
    names = (call.args[0] for call in calls if call.args and isinstance(call.args[0], GlobalVar))
    functions = (mod[name] for name in names)
    return [n for f in functions if isinstance(f, tirx.PrimFunc) for n in half_lengths(f)]


def half_lengths(function: tirx.PrimFunc) -> list[int]:
    """Lengths of the sums in 16 bits of a primary function without a schedule."""
    lengths = []
    for block in nodes_in(function.body, s_tir.SBlock):
        reduced = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if reduced and str(block.writes[0].source.dtype) == "float16":
            lengths.append(int(np.prod([int(v.dom.extent) for v in reduced])))
    return lengths


# -- registers of 16 bits -----------------------------------------------------------------


@prim_func_pass("NarrowLocals")
def NarrowLocals(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Keep what is staged in 16 bits where every read converts it; runs on loops, no blocks.

    The same numbers, converted once where they are written: fewer registers, and reads of
    memory that is in 16 bits already become reads of halves.
    """
    halves = {
        buffer: tirx.decl_buffer(buffer.shape, "float16", buffer.name, scope=buffer.scope())
        for buffer in _only_read_as_half(function.body)
    }

    def allocate(statement: tirx.AllocBuffer) -> tirx.Stmt:
        half = halves.get(statement.buffer)
        return statement if half is None else tirx.AllocBuffer(half, statement.annotations)

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        half = halves.get(statement.buffer)
        if half is None:
            return statement
        return tirx.BufferStore(half, _converted(statement.value), statement.indices)

    def load(load: TensorLoad) -> tirx.Expr:
        half = halves.get(load.source)
        return load if half is None else tirx.BufferLoad(half, load.indices)

    def cast(cast: tirx.Cast) -> tirx.Expr:
        if cast.value.ty.dtype == cast.ty.dtype:
            return cast.value
        return _converted(cast.value) if str(cast.ty.dtype) == "float16" else cast

    return map_nodes(
        function,
        (tirx.AllocBuffer, allocate), (tirx.BufferStore, store), (TensorLoad, load),
        (tirx.Cast, cast),
    )  # fmt: skip


def _converted(value: tirx.Expr) -> tirx.Expr:
    """A value as half, converted where it is loaded and not behind a choice."""
    if isinstance(value, Call) and value.op.same_as(_CHOICE):
        condition, *sides = value.args
        return tirx.if_then_else(condition, *map(_converted, sides))
    lanes = value.ty.dtype.lanes
    return tirx.Cast("float16" if lanes == 1 else f"float16x{lanes}", value)


def _only_read_as_half(body: tirx.Stmt) -> list[tirx.Buffer]:
    """Local buffers of fp32 that are only read to be converted to half."""
    loads = Counter(load.source for load in nodes_in(body, TensorLoad))
    conversions = Counter(
        cast.value.source
        for cast in nodes_in(body, tirx.Cast)
        if str(cast.ty.dtype) == "float16" and isinstance(cast.value, TensorLoad)
    )
    allocated = (statement.buffer for statement in nodes_in(body, tirx.AllocBuffer))
    local = [b for b in allocated if b.scope() == "local" and str(b.dtype) == "float32"]
    return [b for b in local if 0 < loads[b] == conversions[b]]


# -- images of 16 bits --------------------------------------------------------------------


def _read_texel(cast: tirx.Cast) -> tirx.Expr:
    call = cast.value
    if not (_is_half(cast.ty) and _is_texel(call) and is_half(image_of(call.args[0]).scope())):
        return cast
    return _texel(call, cast.ty)


def _store_texel(store: tirx.BufferStore) -> tirx.Stmt:
    """A texel for the application's tensor of halves as it is: through fp32, as in `_store`."""
    value = store.value
    if not (_is_typed(store.buffer) and _is_texel(value) and _is_half(value.ty)):
        return store
    wide = tvm.ir.PrimType(tvm_ffi.dtype("float32").with_lanes(value.ty.dtype.lanes))
    texel = tirx.Cast(value.ty.dtype, _texel(value, wide))
    return tirx.BufferStore(store.buffer, texel, store.indices)


def _is_texel(value: tirx.Expr) -> bool:
    return isinstance(value, Call) and value.op.same_as(_LOAD_TEXEL)


def _texel(call: Call, ty: tvm.ir.Type) -> Call:
    """The same texel, read in another type."""
    image, *place, _bits, lane = call.args
    bits = tirx.const(ty.dtype.bits * CHANNELS, "int32")
    return Call(call.op, [image, *place, bits, lane], ret_ty=ty)


def _is_half(ty: tvm.ir.Type) -> bool:
    dtype = tvm_ffi.dtype(ty.dtype)
    return dtype.type_code == _FLOAT and dtype.bits == 16


#: Read what is wanted as half from images of 16 bits as it is, with ``read_imageh``.  Runs on
#: vectors: TVM's vectoriser takes the size of a texel from the tensor's dtype.
ReadHalfTexels = node_pass(
    "ReadHalfTexels", (tirx.Cast, _read_texel), (tirx.BufferStore, _store_texel)
)


# -- buffers of 16 bits -------------------------------------------------------------------


def is_half_buffer(buffer: tirx.Var) -> bool:
    """True for a TIR buffer that is kept in 16 bits."""
    return tirx.is_buffer_var(buffer) and buffer.scope() == HALF_BUFFER


def _load(load: TensorLoad) -> tirx.Expr:
    return _converting_load(load, load.ty) if is_half_buffer(load.source) else load


def _converting_load(load: TensorLoad, ty: tvm.ir.Type) -> tirx.Expr:
    (index,) = load.indices
    kind, place, lanes = _place(index)
    return tirx.call_pure_extern(ty, f"{PREFIX}{kind}{lanes}", *place, load.source.data)


def _read(cast: tirx.Cast) -> tirx.Expr:
    """A load whose result is converted back to half: no conversion at all.

    And one of halves whose result is converted to fp32: no arithmetic of halves.
    """
    value, lanes = cast.value, tvm_ffi.dtype(cast.ty.dtype).lanes
    is_load_of_halves = isinstance(value, TensorLoad) and _is_typed(value.source)
    if is_load_of_halves and str(cast.ty.dtype).startswith("float32"):
        return _converting_load(value, cast.ty)
    arguments = _arguments(value, f"{PREFIX}load{lanes}")
    if not (_is_half(cast.ty) and arguments):
        return cast
    return tirx.call_pure_extern(cast.ty, f"{PREFIX}read{lanes}", *arguments)


def _arguments(value: tirx.Expr, name: str) -> list[tirx.Expr]:
    """Arguments of a call of the macro of this name; none if a value is no such call."""
    if not (isinstance(value, Call) and value.op.same_as(_EXTERN) and value.args[0].value == name):
        return []
    return list(value.args[1:])


def _is_typed(buffer: tirx.Var) -> bool:
    """True for a tensor whose type is float16, as the application has it."""
    return (
        tirx.is_buffer_var(buffer)
        and str(buffer.dtype) == "float16"
        and buffer.scope() in ("", "global")
    )


def _store(store: tirx.BufferStore) -> tirx.Stmt:
    value = store.value
    lanes = tvm_ffi.dtype(value.ty.dtype).lanes
    read = _arguments(value, f"{PREFIX}read{lanes}")
    if _is_typed(store.buffer) and read:
        # From one tensor of 16 bits to another: through fp32, which needs no arithmetic of halves.
        wide = tvm_ffi.dtype("float32").with_lanes(lanes)
        value = tirx.call_pure_extern(str(wide), f"{PREFIX}load{lanes}", *read)
    elif _is_typed(store.buffer) and isinstance(value, tirx.Cast):
        value = value.value
        if not str(value.ty.dtype).startswith("float32"):
            return store
    elif not is_half_buffer(store.buffer):
        return store
    (index,) = store.indices
    kind, place, lanes = _place(index)
    kind = {"load": "store", "gather": "scatter", "gather_long": "scatter_long"}[kind]
    name = f"{PREFIX}{kind}{lanes}"
    return tirx.Evaluate(tirx.call_extern("int32", name, value, *place, store.buffer.data))


def _place(index: tirx.Expr) -> tuple[str, list[tirx.Expr], int]:
    """The places of elements: one after another from an offset, or each by its own index."""
    if isinstance(index, tirx.Ramp) and int(index.stride) == 1:
        return "load", [index.base], int(index.lanes)
    dtype = tvm_ffi.dtype(index.ty.dtype)
    if dtype.lanes == 1:
        return "load", [index], 1
    return ("gather_long" if dtype.bits == 64 else "gather"), [index], dtype.lanes


#: Replace accesses to 16-bit buffers by conversions; runs on vectors.
LowerHalfBuffers = node_pass(
    "LowerHalfBuffers",
    (TensorLoad, _load), (tirx.Cast, _read), (tirx.BufferStore, _store),
    targets=("opencl",),
)  # fmt: skip


@cache
def macros() -> str:
    """Definitions of the macros that the pass calls; the same text in every kernel's source."""
    # Once, where sources of several kernels are one program.
    lines = [f"#ifndef {PREFIX}load1"]
    for lanes in WIDTHS:
        suffix = "" if lanes == 1 else str(lanes)
        load = f"vload_half{suffix}(0, (const __global half*)(p) + (i))"
        store = f"vstore_half{suffix}((v), 0, (__global half*)(p) + (i))"
        read = f"vload{lanes}(0, (const __global half*)(p) + (i))"
        if lanes == 1:
            read = "((const __global half*)(p))[i]"
        lines.append(f"#define {PREFIX}load{lanes}(i, p) {load}")
        lines.append(f"#define {PREFIX}read{lanes}(i, p) {read}")
        lines.append(f"#define {PREFIX}store{lanes}(v, i, p) {store}")
        if lanes == 1:
            continue
        # Functions: a macro would have the indices, long texts, once for each lane.
        each = ", ".join(f"{PREFIX}load1(i.s{lane:x}, p)" for lane in range(lanes))
        stores = " ".join(f"{PREFIX}store1(v.s{n:x}, i.s{n:x}, p);" for n in range(lanes))
        for index, name in (("int", ""), ("long", "_long")):
            place = f"{index}{lanes} i, __global void* p"
            result = f"float{lanes}"
            lines += [
                f"inline {result} {PREFIX}gather{name}{lanes}({place}) {{",
                f"  return ({result})({each});",
                "}",
                f"inline void {PREFIX}scatter{name}{lanes}({result} v, {place}) {{",
                f"  {stores}",
                "}",
            ]
    lines.append("#endif")
    return "\n".join(lines) + "\n"


# -- bfloat16 -----------------------------------------------------------------------------


def _widened(cast: tirx.Cast) -> tirx.Expr:
    dtype = tvm_ffi.dtype(cast.value.ty.dtype)
    if not str(dtype).startswith("bfloat16"):
        return cast
    lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    bits = tirx.reinterpret(f"uint16{lanes}", cast.value).astype(f"uint32{lanes}")
    places = tirx.const(16, "uint32")
    if lanes:
        places = tirx.Broadcast(places, dtype.lanes)
    return tirx.reinterpret(f"float32{lanes}", bits << places).astype(cast.ty.dtype)


#: Convert numbers from bfloat16 by their bits, the upper half of a float32's.  Runs before TVM's
#: passes for them, which do not look into values that have a name (`tirx.Let`, `tirx.Bind`): these
#: would be the bits taken as an integer.
WidenBFloat16 = node_pass("WidenBFloat16", (tirx.Cast, _widened))
