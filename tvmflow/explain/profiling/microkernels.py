"""Kernels that do one thing only: copy, read texels, multiply and add, or nothing.

Each is as good as its device allows: wide vectors, as many independent sums as hide an
instruction's latency, and enough work-items for all of its units.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from ...codegen.dot_products import dot
from ...devices.target import TargetSpec
from ...ir.scope import CHANNELS, PREFIX
from ...ir.signatures import with_scopes

#: Elements of a copied buffer: 64 MiB in fp32, more than caches hold.
COPIED = 1 << 24
#: The scope of that image.
TEXTURE = f"{PREFIX}:1.2"
#: Vectors that a work-item computes in turn: enough for four cycles of two units.
CHAINS = 12


def copy(target: TargetSpec) -> tirx.PrimFunc:
    """A buffer of :data:`COPIED` elements to another one."""
    lanes = target.device.channel_block
    items = target.device.group_size
    chunk = 64 if items == 1 else 4
    shape = (COPIED // (items * chunk * lanes), chunk, items, lanes)
    source = te.placeholder(shape, "float32", "source")
    result = te.compute(shape, lambda *index: source[index], "result")
    sch = s_tir.Schedule(te.create_prim_func([source, result]))
    group, step, item, lane = sch.get_loops(sch.get_sblock("result"))
    sch.reorder(group, item, step, lane)
    sch.vectorize(lane)
    _spread(sch, target, group, item)
    return sch.mod["main"]


def texels(target: TargetSpec) -> tirx.PrimFunc:
    """Every texel of an image array, summed up over its layers.

    64 MiB; a tenth of it on CPUs, which read images texel by texel, from the cache or not.
    """
    layers, rows, columns = 16, 48 if target.device.is_cpu else 512, 512
    source = te.placeholder((layers, rows, columns, CHANNELS), "float32", "image")
    layer = te.reduce_axis((0, layers), "layer")
    result = te.compute(
        (rows, columns, CHANNELS),
        lambda y, x, c: te.sum(source[layer, y, x, c], axis=layer),
        "result",
    )
    function = with_scopes(te.create_prim_func([source, result]), [TEXTURE, None])
    sch = s_tir.Schedule(function)
    block = sch.get_sblock("result")
    sums = sch.cache_write(block, 0, "local")
    y, x, c, step = sch.get_loops(block)
    sch.reorder(y, x, step, c)
    columns_outer, item = sch.split(x, [None, max(8, target.device.group_size)])
    group = sch.fuse(y, columns_outer)
    sch.reverse_compute_at(sums, item)
    sch.vectorize(c)
    sch.vectorize(sch.get_loops(sums)[-1])
    _spread(sch, target, group, item)
    sch.decompose_reduction(block, step)
    return sch.mod["main"]


def arithmetic(target: TargetSpec, dtype: str, items: int, steps: int) -> tirx.PrimFunc:
    """Products and sums, each with the result of the one before it.

    Parameters
    ----------
    target
        What it is for.
    dtype
        ``float32``, ``float16``, or ``int32`` for dot products of 8-bit integers.
    items
        Work-items.
    steps
        Instructions of each sum, of which a work-item has :data:`CHAINS`.
    """
    lanes = target.device.channel_block

    def next_of(value: Any, x: Any, y: Any) -> Any:
        # The bytes of a sum are factors, too: nothing can be computed before the loop.
        return dot(value, value, x) if dtype == "int32" else value * x + y

    chains = CHAINS

    @T.prim_func(s_tir=True)
    def function(
        factors: T.Buffer((2, lanes), dtype),  # type: ignore[valid-type]
        sums: T.Buffer((items, chains, lanes), dtype),  # type: ignore[valid-type]
    ) -> None:
        for item, step, chain, lane in T.grid(items, steps, chains, lanes):
            with T.sblock("sums"):
                i, _step, c, v = T.axis.remap("SRSS", [item, step, chain, lane])
                with T.init():
                    sums[i, c, v] = factors[1, v]
                sums[i, c, v] = next_of(sums[i, c, v], factors[0, v], factors[1, v])

    sch = s_tir.Schedule(function)
    block = sch.get_sblock("sums")
    result = sch.cache_write(block, 0, "local")
    item, step, chain, lane = sch.get_loops(block)
    group, inner = sch.split(item, [None, target.device.group_size])
    sch.reverse_compute_at(result, inner)
    for loop in (chain, sch.get_loops(result)[-2]):
        sch.unroll(loop)
    for loop in (lane, sch.get_loops(result)[-1]):
        sch.vectorize(loop)
    _spread(sch, target, group, inner)
    sch.decompose_reduction(block, step)
    return sch.mod["main"]


def nothing(target: TargetSpec) -> tirx.PrimFunc:
    """A kernel of one work-item that writes one element."""
    result = te.compute((1, 1), lambda *_: tirx.const(1.0, "float32"), "result")
    sch = s_tir.Schedule(te.create_prim_func([result]))
    _spread(sch, target, *sch.get_loops(sch.get_sblock("result")))
    return sch.mod["main"]


def _spread(sch: s_tir.Schedule, target: TargetSpec, group: Any, item: Any) -> None:
    """Groups and work-items, or the threads of a CPU."""
    if not target.is_gpu_kernel:
        sch.parallel(group)
        return
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
