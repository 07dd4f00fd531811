"""Instructions of tensor cores (``wmma``) for blocks of 16×16×16, as schedules name them.

Each is a description, which a block has to match, and what takes its place.  TVM has the same
and many more, whose import takes seconds: these are made when a schedule first asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

#: Rows, columns and depth of a fragment.
FRAGMENT = 16

LOAD_A, LOAD_B, STORE, ZERO, MULTIPLY = (
    f"tvmflow_fragment_{name}" for name in ("load_a", "load_b", "store", "zero", "multiply")
)


def _at(buffer: Any) -> Any:
    """The number of the fragment that a buffer is, in the array of fragments it lies in."""
    offset, row = buffer.elem_offset, buffer.strides[0]
    across = tirx.floordiv(row, FRAGMENT)
    down = tirx.floordiv(tirx.floordiv(offset, row), FRAGMENT)
    return down * across + tirx.floordiv(tirx.floormod(offset, row), FRAGMENT)


def _buffer(dtype: str, scope: str) -> dict[str, Any]:
    """A buffer of a fragment's size; its place in memory is that of whole fragments."""
    shape = (FRAGMENT, FRAGMENT)
    place = {"align": 64, "offset_factor": FRAGMENT, "scope": scope}
    return {"shape": shape, "dtype": dtype, **place}


@cache
def register() -> None:
    """Make the instructions known to TVM."""
    half_a = ("float16", "shared.dyn"), ("float16", "wmma.matrix_a")
    half_b = ("float16", "shared.dyn"), ("float16", "wmma.matrix_b")
    sums = ("float32", "wmma.accumulator"), ("float32", "shared.dyn")
    TensorIntrin.register(LOAD_A, *_move(*half_a, _load))
    TensorIntrin.register(LOAD_B, *_move(*half_b, _load))
    TensorIntrin.register(STORE, *_move(*sums, _store))
    TensorIntrin.register(ZERO, *_zero())
    TensorIntrin.register(MULTIPLY, *_multiply())


def _load(source: Any, target: Any) -> Any:
    pointer = source.access_ptr("r", ptr_type="float16")
    place, stride = (FRAGMENT,) * 3, source.strides[0]
    return T.tvm_load_matrix_sync(
        target.data, *place, _at(target), pointer, stride, "row_major", dtype="void"
    )


def _store(source: Any, target: Any) -> Any:
    pointer = target.access_ptr("w", ptr_type="float32")
    place, stride = (FRAGMENT,) * 3, target.strides[0]
    return T.tvm_store_matrix_sync(
        source.data, *place, _at(source), pointer, stride, "row_major", dtype="void"
    )


def _move(source: tuple[str, str], target: tuple[str, str], call: Callable[[Any, Any], Any]) -> Any:
    read, written = _buffer(*source), _buffer(*target)

    @T.prim_func(s_tir=True)
    def described(x: T.handle, y: T.handle) -> None:
        source = T.match_buffer(x, **read)
        target = T.match_buffer(y, **written)
        with T.sblock("root"):
            T.reads(source[0:16, 0:16])
            T.writes(target[0:16, 0:16])
            for row, column in T.grid(16, 16):
                with T.sblock("element"):
                    i, j = T.axis.remap("SS", [row, column])
                    target[i, j] = source[i, j]

    @T.prim_func(s_tir=True)
    def done(x: T.handle, y: T.handle) -> None:
        x_row, x_one, y_row, y_one = T.int32(), T.int32(), T.int32(), T.int32()
        source = T.match_buffer(x, **read, strides=[x_row, x_one])
        target = T.match_buffer(y, **written, strides=[y_row, y_one])
        with T.sblock("root"):
            T.reads(source[0:16, 0:16])
            T.writes(target[0:16, 0:16])
            T.evaluate(call(source, target))

    return described, done


def _zero() -> Any:
    written = _buffer("float32", "wmma.accumulator")

    @T.prim_func(s_tir=True)
    def described(y: T.handle) -> None:
        target = T.match_buffer(y, **written)
        with T.sblock("root"):
            T.reads()
            T.writes(target[0:16, 0:16])
            for row, column in T.grid(16, 16):
                with T.sblock("element"):
                    i, j = T.axis.remap("SS", [row, column])
                    target[i, j] = T.float32(0)

    @T.prim_func(s_tir=True)
    def done(y: T.handle) -> None:
        row, one = T.int32(), T.int32()
        target = T.match_buffer(y, **written, strides=[row, one])
        with T.sblock("root"):
            T.reads()
            T.writes(target[0:16, 0:16])
            T.evaluate(
                T.tvm_fill_fragment(
                    target.data, 16, 16, 16, _at(target), T.float32(0), dtype="void"
                )
            )

    return described, done


def _multiply() -> Any:
    left, right = (_buffer("float16", f"wmma.matrix_{side}") for side in "ab")
    written = _buffer("float32", "wmma.accumulator")

    @T.prim_func(s_tir=True)
    def described(x: T.handle, w: T.handle, y: T.handle) -> None:
        rows = T.match_buffer(x, **left)
        columns = T.match_buffer(w, **right)
        sums = T.match_buffer(y, **written)
        with T.sblock("root"):
            T.reads(sums[0:16, 0:16], rows[0:16, 0:16], columns[0:16, 0:16])
            T.writes(sums[0:16, 0:16])
            for row, column, step in T.grid(16, 16, 16):
                with T.sblock("element"):
                    i, j, k = T.axis.remap("SSR", [row, column, step])
                    sums[i, j] = sums[i, j] + T.Cast("float32", rows[i, k]) * T.Cast(
                        "float32", columns[k, j]
                    )

    @T.prim_func(s_tir=True)
    def done(x: T.handle, w: T.handle, y: T.handle) -> None:
        x_row, x_one, w_row, w_one, y_row, y_one = (
            T.int32(), T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
        )  # fmt: skip
        rows = T.match_buffer(x, **left, strides=[x_row, x_one])
        columns = T.match_buffer(w, **right, strides=[w_row, w_one])
        sums = T.match_buffer(y, **written, strides=[y_row, y_one])
        with T.sblock("root"):
            T.reads(sums[0:16, 0:16], rows[0:16, 0:16], columns[0:16, 0:16])
            T.writes(sums[0:16, 0:16])
            T.evaluate(
                T.tvm_mma_sync(
                    sums.data,
                    _at(sums),
                    rows.data,
                    _at(rows),
                    columns.data,
                    _at(columns),
                    sums.data,
                    _at(sums),
                    dtype="void",
                )
            )

    return described, done
