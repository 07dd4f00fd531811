"""Kernels that are good and bad at one property each, and the same otherwise.

`benchmarks/analysis.py` measures them, `tests/analysis` counts in small ones.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

#: Work-items of a group.
GROUP = 64
#: Images of texels with four components in fp32.
TEXTURE = "global.texture:0.1"


def row_major(count: int) -> tirx.PrimFunc:
    """Return a kernel in which neighbours read neighbours."""
    return strided(count, 1)


def strided(count: int, step: int) -> tirx.PrimFunc:
    """Return a kernel in which neighbours read elements that are ``step`` apart."""

    @T.prim_func(s_tir=True)
    def apart(a: T.Buffer((count * step,), "float32"), b: T.Buffer((count,), "float32")):
        for group in T.thread_binding(count // GROUP, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                b[group * GROUP + item] = a[(group * GROUP + item) * step] * 2.0

    return apart


def column_major(rows: int, columns: int) -> tirx.PrimFunc:
    """Return a kernel in which neighbours read a column of a matrix, to its end.

    Groups have one axis: drivers may choose any order of two.
    """
    groups = rows // GROUP

    @T.prim_func(s_tir=True)
    def down(a: T.Buffer((rows * columns,), "float32"), b: T.Buffer((rows * columns,), "float32")):
        for group in T.thread_binding(groups * columns, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                b[group * GROUP + item] = (
                    a[(group % groups * GROUP + item) * columns + group // groups] * 2.0
                )

    return down


def gathered(count: int) -> tirx.PrimFunc:
    """Return a kernel whose items read at places that numbers in memory give."""

    @T.prim_func(s_tir=True)
    def gather(
        at: T.Buffer((count,), "int32"),
        a: T.Buffer((count,), "float32"),
        b: T.Buffer((count,), "float32"),
    ):
        for group in T.thread_binding(count // GROUP, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                b[group * GROUP + item] = a[at[group * GROUP + item]] * 2.0

    return gather


def branching(count: int, ways: int, steps: int, *, by_group: bool) -> tirx.PrimFunc:
    """Return a kernel of up to four computations, chosen by group or by item."""

    def way(group: Any, item: Any) -> Any:
        return (group if by_group else item) % ways

    @T.prim_func(s_tir=True)
    def branch(a: T.Buffer((count,), "float32"), b: T.Buffer((count,), "float32")):
        for group in T.thread_binding(count // GROUP, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                x = T.alloc_buffer((1,), scope="local")
                x[0] = a[group * GROUP + item]
                # Unlike each other, so that no compiler makes one of them.
                if way(group, item) < 2:
                    if way(group, item) == 0:
                        for _ in T.unroll(steps):
                            x[0] = x[0] * T.float32(0.5) + T.float32(1)
                    else:
                        for _ in T.unroll(steps):
                            x[0] = x[0] * x[0] - T.float32(0.5)
                else:
                    if way(group, item) == 2:
                        for _ in T.unroll(steps):
                            x[0] = T.float32(0.5) - x[0] * T.float32(0.25)
                    else:
                        for _ in T.unroll(steps):
                            x[0] = T.float32(0.75) - x[0] * x[0]
                b[group * GROUP + item] = x[0]

    return branch


def tile_columns(groups: int, width: int) -> tirx.PrimFunc:
    """Return a kernel whose items read rows of ``width`` words of local memory."""

    @T.prim_func(s_tir=True)
    def tile_sums(
        a: T.Buffer((groups * 1024,), "float32"), b: T.Buffer((groups * 256,), "float32")
    ):
        for group in T.thread_binding(groups, thread="blockIdx.x"):
            tile = T.alloc_buffer((32 * width,), scope="shared")
            for y in T.thread_binding(8, thread="threadIdx.y"):
                for x in T.thread_binding(32, thread="threadIdx.x"):
                    total = T.alloc_buffer((1,), scope="local")
                    for row in T.serial(4):
                        tile[(row * 8 + y) * width + x] = a[group * 1024 + (row * 8 + y) * 32 + x]
                    T.tvm_storage_sync("shared")
                    total[0] = 0.0
                    for k in T.serial(32):
                        # Each row of items begins elsewhere: none has another one's sums.
                        total[0] = total[0] * T.float32(0.5) + tile[x * width + (k + y) % 32]
                    b[group * 256 + y * 32 + x] = total[0]

    return tile_sums


def squares(side: int, height: int, width: int, apart: int = 1) -> tirx.PrimFunc:
    """Return a kernel whose groups of ``height`` x ``width`` read every ``apart``-th texel.

    An item's place in the result follows from its number: its writes are side by side.
    """
    across = side // width

    @T.prim_func(s_tir=True)
    def texels(
        a: T.Buffer((side * apart, side * apart, 4), "float32", scope=TEXTURE),
        b: T.Buffer((side * side, 4), "float32"),
    ):
        for by in T.thread_binding(side // height, thread="blockIdx.y"):
            for bx in T.thread_binding(across, thread="blockIdx.x"):
                for y in T.thread_binding(height, thread="threadIdx.y"):
                    for x in T.thread_binding(width, thread="threadIdx.x"):
                        for lane in T.vectorized(4):
                            b[((by * across + bx) * height + y) * width + x, lane] = a[
                                (by * height + y) * apart, (bx * width + x) * apart, lane
                            ]

    return texels


def texel_columns(side: int) -> tirx.PrimFunc:
    """Return a kernel in which neighbours read a column of texels, to its end."""
    groups = side // GROUP

    @T.prim_func(s_tir=True)
    def texel_column(
        a: T.Buffer((side, side, 4), "float32", scope=TEXTURE),
        b: T.Buffer((side * side, 4), "float32"),
    ):
        for group in T.thread_binding(groups * side, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    b[group * GROUP + item, lane] = a[
                        group % groups * GROUP + item, group // groups, lane
                    ]

    return texel_column


def copied(count: int, width: int, loop: Any) -> tirx.PrimFunc:
    """Return a kernel whose items copy ``width`` neighbours, in ``T.serial`` or another loop."""

    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((count,), "float32"), b: T.Buffer((count,), "float32")):
        for group in T.thread_binding(count // GROUP // width, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                for k in loop(width):
                    b[(group * GROUP + item) * width + k] = a[(group * GROUP + item) * width + k]

    return copy


def chains(items: int, count: int, steps: int) -> tirx.PrimFunc:
    """Return a kernel whose items compute ``count`` numbers step by step, and keep them all."""

    @T.prim_func(s_tir=True)
    def chain(a: T.Buffer((items * count,), "float32"), b: T.Buffer((items * count,), "float32")):
        for group in T.thread_binding(items // GROUP, thread="blockIdx.x"):
            for item in T.thread_binding(GROUP, thread="threadIdx.x"):
                x = T.alloc_buffer((count,), scope="local")
                for k in T.unroll(count):
                    x[k] = a[(group * GROUP + item) * count + k]
                for _ in T.serial(steps):
                    for k in T.unroll(count):
                        x[k] = x[k] * T.float32(0.5) + T.float32(1)
                for k in T.unroll(count):
                    b[(group * GROUP + item) * count + k] = x[k]

    return chain
