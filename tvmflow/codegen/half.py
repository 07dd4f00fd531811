"""Buffers of fp32 tensors that are kept in 16 bits, in the scope ``global.half``.

OpenCL C reads and writes such memory on every device, also one without
``cl_khr_fp16``: ``vload_half`` and ``vstore_half`` convert (section 6.15.7 of the OpenCL
C specification, "Vector Data Load and Store Functions"). Arithmetic is fp32, but for sums
in 16 bits (:mod:`.narrow`), whose kernels need ``cl_khr_fp16`` and read such memory as it is.
Before::

    y[T.Ramp(i, 1, 4)] = x[T.Ramp(i, 1, 4)] * T.Broadcast(2.0, 4)

After, with both in the scope ``global.half``::

    T.call_extern("tvmflow_store_half4", tvmflow_load_half4(i, x) * ..., i, y)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad

from ..ir.passes import prim_func_pass
from ..ir.scope import CHANNELS, HALF_BUFFER, is_half
from .textures import LOAD, image_of, target_kind

#: What the names of the macros begin with.
PREFIX = "tvmflow_half_"
WIDTHS = (1, 2, 4, 8, 16)
_EXTERN = Op.get("tirx.call_pure_extern")
_LOAD_TEXEL = Op.get(LOAD)
_FLOAT = tvm_ffi.dtype("float16").type_code


def is_half_buffer(buffer: Any) -> bool:
    """Whether a TIR buffer is kept in 16 bits."""
    return tirx.is_buffer_var(buffer) and buffer.scope() == HALF_BUFFER


@prim_func_pass("LowerHalfBuffers")
def LowerHalfBuffers(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Replace accesses to 16-bit buffers by conversions; runs on vectors, as the last pass."""
    if target_kind(function) != "opencl":
        return function
    callbacks = [(TensorLoad, _load), (tirx.Cast, _read), (tirx.BufferStore, _store)]
    return function.with_body(tvm_ffi.structural_map(function.body, callbacks))


@prim_func_pass("ReadHalfTexels")
def ReadHalfTexels(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Read what is wanted as half from images of 16 bits as it is, with ``read_imageh``.

    Runs on vectors: TVM's vectoriser takes the size of a texel from the tensor's dtype.
    """
    callbacks = [(tirx.Cast, _read_texel), (tirx.BufferStore, _store_texel)]
    return function.with_body(tvm_ffi.structural_map(function.body, callbacks))


def _read_texel(cast: tirx.Cast) -> Any:
    call = cast.value
    if not (_is_half(cast.ty) and _is_texel(call) and is_half(image_of(call.args[0]).scope())):
        return cast
    return _texel(call, cast.ty)


def _store_texel(store: tirx.BufferStore) -> Any:
    """What goes to the application's tensor of halves as it is: through fp32, as in `_store`."""
    value = store.value
    if not (_is_typed(store.buffer) and _is_texel(value) and _is_half(value.ty)):
        return store
    wide = tvm.ir.PrimType(tvm_ffi.dtype("float32").with_lanes(value.ty.dtype.lanes))
    texel = tirx.Cast(value.ty.dtype, _texel(value, wide))
    return tirx.BufferStore(store.buffer, texel, store.indices)


def _is_texel(value: Any) -> bool:
    return isinstance(value, Call) and value.op.same_as(_LOAD_TEXEL)


def _texel(call: Call, ty: Any) -> Call:
    """The same texel, read in another type."""
    image, *place, _bits, lane = call.args
    bits = tirx.const(ty.dtype.bits * CHANNELS, "int32")
    return Call(call.op, [image, *place, bits, lane], ret_ty=ty)


def _is_half(ty: Any) -> bool:
    dtype = tvm_ffi.dtype(ty.dtype)
    return dtype.type_code == _FLOAT and dtype.bits == 16


def _load(load: TensorLoad) -> Any:
    if not is_half_buffer(load.source):
        return load
    (index,) = load.indices
    kind, place, lanes = _place(index)
    name = f"{PREFIX}{kind}{lanes}"
    return tirx.call_pure_extern(load.ty, name, *place, load.source.data)


def _read(cast: tirx.Cast) -> Any:
    """A load whose result is converted back to half: no conversion at all.

    And one of halves whose result is converted to fp32: no arithmetic of halves.
    """
    value, lanes = cast.value, tvm_ffi.dtype(cast.ty.dtype).lanes
    if _is_of_halves(value) and str(cast.ty.dtype).startswith("float32"):
        (index,) = value.indices
        kind, place, lanes = _place(index)
        return tirx.call_pure_extern(cast.ty, f"{PREFIX}{kind}{lanes}", *place, value.source.data)
    arguments = _arguments(value, f"{PREFIX}load{lanes}")
    if not (_is_half(cast.ty) and arguments):
        return cast
    return tirx.call_pure_extern(cast.ty, f"{PREFIX}read{lanes}", *arguments)


def _arguments(value: Any, name: str) -> list[Any]:
    """What a macro of this name is given; nothing if a value is no call of it."""
    if not (isinstance(value, Call) and value.op.same_as(_EXTERN) and value.args[0].value == name):
        return []
    return list(value.args[1:])


def _is_of_halves(value: Any) -> bool:
    """Whether a value is read from a tensor whose type is float16, as the application has it."""
    return isinstance(value, TensorLoad) and _is_typed(value.source)


def _is_typed(buffer: Any) -> bool:
    return (
        tirx.is_buffer_var(buffer)
        and str(buffer.dtype) == "float16"
        and buffer.scope() in ("", "global")
    )


def _store(store: tirx.BufferStore) -> Any:
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
    call = tirx.call_extern("int32", name, value, *place, store.buffer.data)
    return tirx.Evaluate(call)


def _place(index: Any) -> tuple[str, list[Any], int]:
    """How elements are found: one after another from an offset, or each by its own index."""
    if isinstance(index, tirx.Ramp) and int(index.stride) == 1:
        return "load", [index.base], int(index.lanes)
    dtype = tvm_ffi.dtype(index.ty.dtype)
    if dtype.lanes == 1:
        return "load", [index], 1
    return ("gather_long" if dtype.bits == 64 else "gather"), [index], dtype.lanes


@cache
def macros() -> str:
    """Definitions of what the pass calls; the same text in every kernel's source."""
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
