"""Buffers of fp32 tensors that are kept in 16 bits, in the scope ``global.half``.

OpenCL C reads and writes such memory on every device, also one without
``cl_khr_fp16``: ``vload_half`` and ``vstore_half`` convert (section 6.15.7 of the OpenCL
C specification, "Vector Data Load and Store Functions"). All arithmetic is fp32.
Before::

    y[T.Ramp(i, 1, 4)] = x[T.Ramp(i, 1, 4)] * T.Broadcast(2.0, 4)

After, with both in the scope ``global.half``::

    T.call_extern("tvmflow_store_half4", tvmflow_load_half4(i, x) * ..., i, y)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.transform import prim_func_pass

from .scope import HALF_BUFFER

#: What the names of the macros begin with.
PREFIX = "tvmflow_half_"
WIDTHS = (1, 2, 4, 8, 16)


def is_half_buffer(buffer: Any) -> bool:
    """Whether a TIR buffer is kept in 16 bits."""
    return tirx.is_buffer_var(buffer) and buffer.scope() == HALF_BUFFER


@prim_func_pass(opt_level=0, name="tvmflow.LowerHalfBuffers")
def LowerHalfBuffers(function: tirx.PrimFunc, _mod: Any, _context: Any) -> tirx.PrimFunc:  # noqa: N802
    """Replace accesses to 16-bit buffers by conversions; runs on vectors, as the last pass."""
    callbacks = [(TensorLoad, _load), (tirx.BufferStore, _store)]
    return function.with_body(tvm_ffi.structural_map(function.body, callbacks))


def _load(load: TensorLoad) -> Any:
    if not is_half_buffer(load.source):
        return load
    (index,) = load.indices
    kind, place, lanes = _place(index)
    name = f"{PREFIX}{kind}{lanes}"
    return tirx.call_pure_extern(load.ty, name, *place, load.source.data)


def _store(store: tirx.BufferStore) -> Any:
    if not is_half_buffer(store.buffer):
        return store
    (index,) = store.indices
    kind, place, lanes = _place(index)
    name = f"{PREFIX}{'store' if kind == 'load' else 'scatter'}{lanes}"
    call = tirx.call_extern("int32", name, store.value, *place, store.buffer.data)
    return tirx.Evaluate(call)


def _place(index: Any) -> tuple[str, list[Any], int]:
    """How elements are found: one after another from an offset, or each by its own index."""
    if isinstance(index, tirx.Ramp) and int(index.stride) == 1:
        return "load", [index.base], int(index.lanes)
    lanes = tvm_ffi.dtype(index.ty.dtype).lanes
    return ("load" if lanes == 1 else "gather"), [index], lanes


@cache
def macros() -> str:
    """Definitions of what the pass calls; the same text in every kernel's source."""
    lines = []
    for lanes in WIDTHS:
        suffix = "" if lanes == 1 else str(lanes)
        load = f"vload_half{suffix}(0, (const __global half*)(p) + (i))"
        store = f"vstore_half{suffix}((v), 0, (__global half*)(p) + (i))"
        lines.append(f"#define {PREFIX}load{lanes}(i, p) {load}")
        lines.append(f"#define {PREFIX}store{lanes}(v, i, p) {store}")
        if lanes == 1:
            continue
        each = ", ".join(f"{PREFIX}load1((i).s{lane:x}, p)" for lane in range(lanes))
        lines.append(f"#define {PREFIX}gather{lanes}(i, p) ((float{lanes})({each}))")
        each = "; ".join(
            f"{PREFIX}store1((v).s{lane:x}, (i).s{lane:x}, p)" for lane in range(lanes)
        )
        lines.append(f"#define {PREFIX}scatter{lanes}(v, i, p) do {{ {each}; }} while (0)")
    return "\n".join(lines) + "\n"
