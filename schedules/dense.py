"""Fully connected layers: a matrix product with constant weights.

Two forms, chosen by who owns the weights:

*packed* (weights that may be rearranged at compile time), ``c`` lanes a block::

    x[M, K]   w[N', K, c]      y[m, n] = sum_k x[m, k] * w[n // c, k, n % c]

*rows* (weights too large to rearrange, in the order ``[N, K]`` of ONNX Gemm)::

    x[M, K]   w[N, K]          y[m, n] = sum_k x[m, k] * w[n, k]

where the sum over K is taken in ``v`` lanes that are added up at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, te, tirx

from .common import FAMILY, ROLE, Workload, largest_divisor, tile_of

PACKED = "dense_packed"
ROWS = "dense_rows"


# -- what it computes ---------------------------------------------------------------------


def compute_packed(x: te.Tensor, w: te.Tensor, units: int) -> te.Tensor:
    """``x[M, K] @ w`` with packed weights ``[ceil(N / c), K, c]``, giving ``[M, N]``."""
    blocks, depth, block = (int(d) for d in w.shape)
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (x.shape[0], blocks, block),
        lambda m, nn, n: te.sum(x[m, k] * w[nn, k, n], axis=k),
        name="dense",
        attrs={FAMILY: PACKED},
    )
    return te.compute(
        (x.shape[0], units),
        lambda m, n: product[m, tirx.floordiv(n, block), tirx.floormod(n, block)],
        name="unpack",
    )


def compute_rows(x: te.Tensor, w: te.Tensor, lanes: int) -> te.Tensor:
    """``x[M, K] @ w[N, K].T``, summed in as many of ``lanes`` as divide K."""
    units, depth = (int(d) for d in w.shape)
    lanes = largest_divisor(depth, lanes)
    k = te.reduce_axis((0, depth // lanes), name="k")
    partial = te.compute(
        (x.shape[0], units, lanes),
        lambda m, n, v: te.sum(x[m, k * lanes + v] * w[n, k * lanes + v], axis=k),
        name="partial",
        attrs={FAMILY: ROWS},
    )
    v = te.reduce_axis((0, lanes), name="v")
    return te.compute(
        (x.shape[0], units),
        lambda m, n: te.sum(partial[m, n, v], axis=v),
        name="dense",
        attrs={ROLE: "combine"},
    )


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    """The register tile of a work-item."""

    #: Rows of the left matrix.
    tile_m: int
    #: Blocks of columns (packed) or rows of weights (rows).
    tile_n: int


def heuristic(workload: Workload, rows: int, columns: int) -> Knobs:
    """As many accumulators as the device has, rows of ``x`` before columns."""
    budget = workload.target.device.accumulators
    tile_m = tile_of(rows, min(8, budget))
    tile_n = 1 if not workload.is_cpu else largest_divisor(columns, min(4, budget // tile_m))
    return Knobs(tile_m, tile_n)


# -- how it is scheduled ------------------------------------------------------------------


def schedule(workload: Workload) -> s_tir.Schedule | None:
    """Schedule a function whose anchor is one of the two forms, else decline."""
    packed, rows = workload.anchor(PACKED), workload.anchor(ROWS)
    if packed is not None:
        m, blocks, _ = workload.extents(packed)[:3]
        return apply_packed(workload, packed, heuristic(workload, m, blocks))
    if rows is not None:
        m, n, _ = workload.extents(rows)[:3]
        return apply_rows(workload, rows, heuristic(workload, m, n))
    return None


def apply_packed(
    workload: Workload, anchor: s_tir.schedule.SBlockRV, knobs: Knobs
) -> s_tir.Schedule:
    """Schedule the packed form: a vector of columns for each weight read."""
    sch = workload.sch
    block = workload.extents(anchor)[2]
    output = workload.merge_epilogue(anchor)
    m, n = sch.get_loops(output)
    m, mi = sch.split(m, [None, knobs.tile_m])
    n, ni = sch.split(n, [None, knobs.tile_n * block])
    sch.reorder(m, n, mi, ni)
    item = workload.bind_outer([m, n])
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    *tile, k = workload.loops_below(anchor, item)
    k, k_inner = sch.split(k, [None, largest_divisor(int(sch.get(k).extent), 4)])
    sch.reorder(k, k_inner, *tile)
    workload.unroll_all([k_inner])
    workload.vectorize_last(tile)
    init = sch.decompose_reduction(anchor, k)
    workload.vectorize_last(workload.loops_below(init, item))
    return sch


def apply_rows(
    workload: Workload, anchor: s_tir.schedule.SBlockRV, knobs: Knobs
) -> s_tir.Schedule:
    """Schedule the rows form: every weight is read once, in order, in whole vectors."""
    sch = workload.sch
    after = workload.after(anchor)
    combine = next(b for b in after if workload.annotation(b, ROLE) == "combine")
    sch.set_scope(anchor, 0, "local")
    output = workload.merge_epilogue(combine)
    m, n = sch.get_loops(output)
    m, mi = sch.split(m, [None, knobs.tile_m])
    n, ni = sch.split(n, [None, knobs.tile_n])
    sch.reorder(m, n, mi, ni)
    item = workload.bind_outer([m, n])
    sch.compute_at(combine, item, preserve_unit_loops=True)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    *tile, k = workload.loops_below(anchor, item)
    sch.reorder(k, *tile)
    workload.vectorize_last(tile)
    init = sch.decompose_reduction(anchor, k)
    workload.vectorize_last(workload.loops_below(init, item))
    return sch
