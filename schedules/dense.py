"""Fully connected layers: a matrix product with constant weights.

Three forms, chosen by how the weights are stored:

*packed* (weights that may be rearranged at compile time), ``c`` lanes a block::

    x[M, K]   w[N', K, c]      y[m, n] = sum_k x[m, k] * w[n // c, k, n % c]

(with any leading axes; products of two computed matrices on a CPU use it, too, with the right
one packed first)

*columns* (weights too large to rearrange, as in ONNX MatMul)::

    x[M, K]   w[K, N]          y[m, n] = sum_k x[m, k] * w[k, n]

*rows* (the same, as in ONNX Gemm with transB)::

    x[M, K]   w[N, K]          y[m, n] = sum_k x[m, k] * w[n, k]

In the last form the sum over K is kept in lanes that are added up at the end.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import gcd

from tvm import s_tir, te, tirx

from ..devices.target import Device
from ..ir.expressions import uses
from .common import FAMILY, ROLE, Block, Loop, Workload, is_vector
from .definitions import Multiply, Sums, batch_index, batch_shape, or_zero, term, widened
from .family import GROUP_FITS, Value, knob
from .sizes import divisors, group_sizes, largest_divisor

NAME = "dense"
ORDER = 410

PACKED = "dense_packed"
COLUMNS = "dense_columns"
ROWS = "dense_rows"

#: Most rows of a register tile: 6 rows of 4 vectors, with the 4 vectors that are read, take 28 of
#: the 32 registers of AVX-512.
ROW_TILE = 6


# -- what it computes ---------------------------------------------------------------------


def compute_packed(
    x: te.Tensor,
    w: te.Tensor,
    units: int,
    *,
    sums: Sums = None,
    multiply: Multiply = operator.mul,
) -> te.Tensor:
    """Return ``x[.., M, K] @ w`` for packed weights ``[.., ceil(N / c), K, c]``, ``[.., M, N]``."""
    lead, rows = batch_shape(x, w, 3), int(x.shape[-2])
    blocks, depth, block = (int(d) for d in w.shape[-3:])
    whole = whole_tiles(rows)
    k = te.reduce_axis((0, depth), name="k")

    def body(*index):  # type: ignore[no-untyped-def]
        *batch, m, nn, n = index
        row = m if whole == rows else tirx.min(m, rows - 1)
        left, right = x(*batch_index(x, 2, batch), row, k), w(*batch_index(w, 3, batch), nn, k, n)
        return te.sum(term(left, right, sums, multiply), axis=k)

    shape = (*lead, whole, blocks, block)
    product = te.compute(shape, body, name="dense", attrs={FAMILY: PACKED})
    product = widened(product, x.dtype)

    def unpack(*index):  # type: ignore[no-untyped-def]
        *rest, n = index
        return product(*rest, tirx.floordiv(n, block), tirx.floormod(n, block))

    return te.compute((*lead, rows, units), unpack, name="unpack")


def whole_tiles(rows: int) -> int:
    """Return how many rows are multiplied: a last, partly empty tile repeats the last row.

    The hot loop therefore has no test for rows.  Of two tiles the wider one reads less: each of
    its products with four vectors takes ``1 / 4 + 1 / tile`` reads.
    """
    tiles = range(1, min(rows, ROW_TILE) + 1)
    return min((-(-rows // t) * t * (1.25 + 1 / t), -(-rows // t) * t) for t in tiles)[1]


def whole_panels(units: int, lanes: int) -> int:
    """Return the vectors of columns, with a few empty ones if a register tile would be narrow."""
    blocks = -(-units // lanes)
    multiple = 4 if blocks >= 16 else 2 if blocks >= 8 else 1
    return -(-blocks // multiple) * multiple


def pack_columns(w: te.Tensor, lanes: int) -> te.Tensor:
    """Return ``w[.., K, N]`` as panels ``[.., N', K, lanes]``, padded with zeros."""
    *lead, depth, units = (int(d) for d in w.shape)
    panels = whole_panels(units, lanes)

    def body(*index):  # type: ignore[no-untyped-def]
        *batch, nn, k, n = index
        column = nn * lanes + n
        return or_zero([column < units] if units < panels * lanes else [], w(*batch, k, column))

    return te.compute((*lead, panels, depth, lanes), body, name="pack_columns")


def compute_columns(x: te.Tensor, w: te.Tensor, lanes: int) -> te.Tensor:
    """Return ``x[M, K] @ w[K, N]`` in vectors: the largest part of ``lanes`` that divides N."""
    depth, units = (int(d) for d in w.shape)
    lanes = gcd(units, lanes)
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (x.shape[0], units // lanes, lanes),
        lambda m, nn, n: te.sum(x[m, k] * w[k, nn * lanes + n], axis=k),
        name="dense",
        attrs={FAMILY: COLUMNS},
    )
    return te.compute(
        (x.shape[0], units),
        lambda m, n: product[m, tirx.floordiv(n, lanes), tirx.floormod(n, lanes)],
        name="unpack",
    )


def compute_rows(x: te.Tensor, w: te.Tensor, lanes: int) -> te.Tensor:
    """Return ``x[M, K] @ w[N, K].T``, summed in the largest part of ``lanes`` that divides K."""
    units, depth = (int(d) for d in w.shape)
    lanes = gcd(depth, lanes)
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


def compute_nibbles(
    x: te.Tensor,
    w: te.Tensor,
    scales: te.Tensor,
    offsets: te.Tensor | None = None,
    *,
    units: int,
    offset: float,
) -> te.Tensor:
    """Return ``x[M, K] @ v[K, N]`` for 4-bit numbers ``q``, with ``v = (q + offset) * scale``.

    The bytes ``w[ceil(N / c), K / 2, c]`` are packed weights, two neighbours of K each, the first
    one in the low bits.  ``scales[.., B, c]`` has a scale for each block along K, and so has
    ``offsets``, if these differ.
    """
    panels, pairs, lanes = (int(d) for d in w.shape)
    size = 2 * pairs // int(scales.shape[1])

    def weight(nn: tirx.Var, k: tirx.Var, n: tirx.Var) -> tirx.Expr:
        byte, block = w[nn, tirx.floordiv(k, 2), n].astype("int32"), tirx.floordiv(k, size)
        number = tirx.bitwise_and(tirx.shift_right(byte, tirx.floormod(k, 2) * 4), 15)
        added = tirx.const(offset, "float32") if offsets is None else offsets[nn, block, n]
        value = (number.astype("float32") + added) * scales[nn, block, n]
        return value.astype(x.dtype)

    weights = te.compute((panels, 2 * pairs, lanes), weight, name="weights")
    return compute_packed(x, weights, units)


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The form, and extents of the product."""

    form: str
    rows: int
    #: Blocks of columns, or single columns in the rows form.
    columns: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the register tile of a work-item."""

    tile_m: int = knob("Rows of the left matrix.")
    tile_n: int = knob("Blocks of columns, or rows of weights in the rows form.")
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "tile_m * tile_n vectors must fit the device's registers.": lambda k, s, d: (
        k.tile_m * k.tile_n <= d.accumulators
    ),
    "tile_m must divide the rows.": lambda k, s, d: s.rows % k.tile_m == 0,
    "tile_n must divide the columns.": lambda k, s, d: s.columns % k.tile_n == 0,
    **GROUP_FITS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return as many accumulators as the device has, rows of ``x`` before columns."""
    budget = device.accumulators
    tile_m = largest_divisor(shape.rows, min(ROW_TILE, budget))
    if not device.is_cpu:
        return Knobs(tile_m, 1, device.group_size)
    # The columns form reads across rows of the weights: in a wide tile each read is a long run of
    # memory (1 KiB for 16 blocks of 16 floats), which suits prefetchers and DRAM pages.
    limit = 16 if shape.form == COLUMNS else 4
    tile_n = largest_divisor(shape.columns, max(1, min(limit, budget // tile_m)))
    return Knobs(tile_m, tile_n, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return every register tile that fits."""
    return {
        "tile_m": divisors(shape.rows, device.accumulators),
        "tile_n": divisors(shape.columns, device.accumulators),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """Return the shape of a function whose anchor is one of the forms."""
    for form in (PACKED, COLUMNS, ROWS):
        if workload.anchors(form):
            *_, rows, columns, _, _ = workload.extents(workload.anchor(form))
            return Shape(form, rows, columns)
    return None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule the function's form by ``knobs``."""
    if workload.anchors(ROWS):
        return apply_rows(workload, workload.anchor(ROWS), knobs)
    (anchor,) = workload.anchors(PACKED) or workload.anchors(COLUMNS)
    return apply_packed(workload, anchor, knobs)


def apply_packed(workload: Workload, anchor: Block, knobs: Knobs) -> s_tir.Schedule:
    """Schedule the packed form (or columns): a vector of columns for each weight read."""
    sch = workload.sch
    block = workload.extents(anchor)[-2]
    output = workload.merge_epilogue(anchor)
    *batch, m, n = sch.get_loops(output)
    whole = int(sch.get(n).extent) % block == 0 and is_vector(sch.get(output))
    # Only constants may index the sums, or they are not kept in registers: results are selected
    # one by one from a copy.
    picked = None if whole else sch.cache_write(anchor, 0, "local")
    m, mi = sch.split(m, [None, knobs.tile_m])
    n, ni, lane = sch.split(n, [None, knobs.tile_n, block])
    # On a CPU, rows before columns would read all weights again for each tile of rows.
    outer = [n, m] if workload.is_cpu else [m, n]
    sch.reorder(*batch, *outer, mi, ni, lane)
    item = workload.bind_outer([*batch, *outer], knobs.group_size)
    if picked is not None:
        # It has its own scope, because TVM would merge it with the memory of the sums.
        sch.set_scope(picked, 0, "local.picked")
        sch.compute_at(picked, item, preserve_unit_loops=True)
        _run_whole_tile(workload, picked, item)
        workload.vectorize_last(workload.loops_below(picked, item))
    else:
        workload.vectorize_last([mi, ni, lane])
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    # Rows and columns after the last exist in registers: only stores are tested.
    _run_whole_tile(workload, anchor, item)
    *tile, k = workload.loops_below(anchor, item)
    k, k_inner = sch.split(k, [None, largest_divisor(int(sch.get(k).extent), 4)])
    sch.reorder(k, k_inner, *tile)
    workload.unroll_all([k_inner])
    workload.vectorize_last(tile)
    workload.split_init(anchor, k, item)
    return sch


def _run_whole_tile(workload: Workload, block: Block, item: Loop) -> None:
    """Let a block run for all of its tile below a loop, without the tests of that tile.

    Tests of the work-item stay: after the last one there is nothing to read.
    """
    sch = workload.sch
    inner = [sch.get(axis).loop_var for axis in workload.loops_below(block, item)]
    workload.drop_tests(block, lambda test: any(uses(test, var) for var in inner))


def apply_rows(workload: Workload, anchor: Block, knobs: Knobs) -> s_tir.Schedule:
    """Schedule the rows form: every weight is read once, in order, in whole vectors."""
    sch = workload.sch
    (combine,) = workload.with_role("combine")
    sch.set_scope(anchor, 0, "local")
    output = workload.merge_epilogue(combine)
    item, _ = workload.tile(output, (knobs.tile_m, knobs.tile_n), knobs.group_size)
    sch.compute_at(combine, item, preserve_unit_loops=True)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    *tile, k = workload.loops_below(anchor, item)
    sch.reorder(k, *tile)
    workload.vectorize_last(tile)
    workload.split_init(anchor, k, item)
    return sch
