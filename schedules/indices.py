"""Functions of networks with indices of 32 bits, for families that write loops themselves.

Relax counts in 64 bits. Before::

    x: T.Buffer((T.int64(8),), "float32")           for i in range(T.int64(8)): y[i] = x[i]

After::

    x: T.Buffer((8,), "float32")                    for i in range(8): y[i] = x[i]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir.expr import TensorLoad, TensorRegion

Buffer = Any
Expr = Any


def in_32_bits(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with extents and indices of 32 bits, and arithmetic on what it reads of 64.

    Where it writes one of these, it stays as it is.
    """
    wide = [index for index, p in enumerate(function.params) if str(p.dtype) == "int64"]
    if any(_writes(function, function.params[index]) for index in wide):
        return function
    # TVM's pass refuses these, although their elements are no indices: unsigned, it passes them.
    hidden = _with_dtype(function, wide, "uint64", lambda load: load.astype("int64"))
    narrowed = tirx.transform.ForceNarrowIndexToInt32()(IRModule({"main": hidden}))["main"]
    return _with_dtype(narrowed, wide, "int64", _saturated)


def _saturated(value: Expr) -> Expr:
    """The nearest number of 32 bits: a count that is far too large does not become a small one."""
    lowest, highest = (tirx.const(end, "int64") for end in (-(2**31), 2**31 - 1))
    return tirx.Max(tirx.Min(value, highest), lowest)


def _writes(function: tirx.PrimFunc, buffer: Buffer) -> bool:
    found: list[Buffer] = []
    tvm_ffi.structural_walk(
        function.body, (tirx.BufferStore, lambda store: found.append(store.buffer))
    )
    return any(written.same_as(buffer) for written in found)


def _with_dtype(
    function: tirx.PrimFunc, indices: list[int], dtype: str, read: Callable[[Expr], Expr]
) -> tirx.PrimFunc:
    """The function with parameters of another dtype; ``read`` makes of a load what stood there."""
    if not indices:
        return function
    old = [function.params[index] for index in indices]
    buffers: Mapping[Buffer, Buffer] = {
        p: tirx.decl_buffer(p.shape, dtype, p.name, scope=p.scope()) for p in old
    }

    def load(load: TensorLoad) -> Expr:
        found = buffers.get(load.source)
        return load if found is None else read(tirx.BufferLoad(found, load.indices))

    def region(region: TensorRegion) -> TensorRegion:
        found = buffers.get(region.source)
        return region if found is None else tirx.BufferRegion(found, region.region)

    body = tvm_ffi.structural_map(function.body, [(TensorLoad, load), (TensorRegion, region)])
    params = [buffers.get(param, param) for param in function.params]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)
