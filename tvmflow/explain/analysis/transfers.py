"""Instructions of CUDA that move memory without loads and stores of TIR.

An asynchronous copy brings up to 16 bytes of an item from global to shared memory.  A warp's 32
items move a tile of tensor cores together: each gives the address of 16 bytes of a row at a time,
as ``ldmatrix`` asks for them, first of one row after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from ...codegen.textures import image_of

_COPY = "tirx.s_tir.cp_async_raw"
_TILE_STORE = "tirx.tvm_store_matrix_sync"
#: Names of the calls.
NAMES = (_COPY, "tirx.tvm_load_matrix_sync", _TILE_STORE)

_WARP = 32
_BYTES = 16


@dataclass(frozen=True)
class Transfer:
    """Elements side by side that an item moves from or to memory."""

    buffer: Any
    index: Any
    is_store: bool
    #: It is left out where these do not hold.
    conditions: tuple[Any, ...] = ()


def transfers(call: Call, launch: Mapping[str, tuple[Any, int]]) -> Iterator[Transfer]:
    """What a call of one of :data:`NAMES` moves.

    Parameters
    ----------
    launch
        Variable and extent of each axis of work-items, by its tag.
    """
    if call.op.name == _COPY:
        return _copy(call)
    return _tile(call, _number(launch))


def _copy(call: Call) -> Iterator[Transfer]:
    to, at, source, place, size, *conditions = call.args
    for pointer, index, is_store in ((source, place, False), (to, at, True)):
        buffer = image_of(pointer)
        # Places are counted in numbers, even where TVM has made vectors of them.
        lanes = tvm_ffi.dtype(buffer.dtype).lanes
        count = int(size) // _number_bytes(buffer) // lanes
        # Zeros are written where nothing is read.
        where = () if is_store else tuple(conditions)
        yield Transfer(buffer, _side_by_side(index // lanes, count), is_store, where)


def _tile(call: Call, item: Any) -> Iterator[Transfer]:
    _, rows, columns, _, _, pointer, stride, order = call.args
    buffer = image_of(pointer.args[1])
    size = int(rows), int(columns)
    long, short = size if str(order.value) == "row_major" else reversed(size)
    count = _BYTES // _number_bytes(buffer)
    for first in range(0, long * short // count, _WARP):
        number = item % _WARP + first
        place = pointer.args[2] + number % long * stride + number // long * count
        yield Transfer(buffer, _side_by_side(place, count), call.op.name == _TILE_STORE)


def _number(launch: Mapping[str, tuple[Any, int]]) -> Any:
    """Number of an item in its group."""
    number: Any = 0
    for axis in "zyx":
        if f"threadIdx.{axis}" in launch:
            var, extent = launch[f"threadIdx.{axis}"]
            number = number * extent + var
    return number


def _number_bytes(buffer: Any) -> int:
    return int(tvm_ffi.dtype(buffer.dtype).bits) // 8


def _side_by_side(index: Any, count: int) -> Any:
    return tirx.Ramp(index, 1, count) if count > 1 else index
