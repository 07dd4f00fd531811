"""Products of :mod:`.gemm` in 16 bits, on the tensor cores of CUDA.

A work-group computes a tile of ``tile_m`` × ``tile_n``, its warps a part of that each, in
steps of ``tile_k`` along the depth.  The tiles of both factors are copied to shared memory, 16
bytes an item, ``stages`` of them ahead of the products: with ``cp.async`` where the GPU has it.
Warps read fragments of 16×16 from there, multiply them, and keep the sums in registers.  At the
end the tile of sums goes to shared memory, over the tiles of the factors, from where the group
takes it through the epilogue to memory, whole vectors of channels at a time.

Rows in shared memory are 16 bytes longer than their tile, so that the eight rows which a
fragment's read takes together lie in different banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tvm import s_tir

from ..devices.target import Device
from .common import Block, Loop, Workload
from .family import Constraint, Value, knob, violated
from .fragments import FRAGMENT, LOAD_A, LOAD_B, MULTIPLY, STORE, ZERO, register
from .gemm import LEFT, RIGHT
from .gemm_tiles import (
    STAGES,
    Shape,
    ahead,
    bind_batch,
    copies_evenly,
    copy_tile,
    first_that_fills,
    flatten_output,
    groups,
    is_convolution,
    role,
    shape_of,
    shared_limit,
    stage_counts,
    store_output,
)
from .tiles import divisors

NAME = "gemm_tensor"

WARP = 32
#: Halves in 16 bytes: what an item copies, and what rows in shared memory are longer.
HALVES = 8
#: Fragments of sums that a warp keeps: 8 of their 32-bit registers a fragment and item, of 255.
FRAGMENTS = 16


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    """The tile of a work-group, and how its warps share it."""

    tile_m: int = knob("Rows of the product that a work-group computes.")
    tile_n: int = knob("Columns of it.")
    tile_k: int = knob("Depth of the tiles that are copied to shared memory at once.")
    warps_m: int = knob("Warps of a work-group along the rows.")
    warps_n: int = knob("Warps along the columns.")
    stages: int = knob("Tiles of each factor in shared memory: all but one are on their way.")


def shared_bytes(knobs: Knobs) -> int:
    """Shared memory of a work-group: tiles of the factors, and later the sums in their place."""
    left = knobs.tile_m * (knobs.tile_k + HALVES)
    right = knobs.tile_k * (knobs.tile_n + HALVES)
    return max(2 * knobs.stages * (left + right), 4 * knobs.tile_m * (knobs.tile_n + 4))


CONSTRAINTS = (
    Constraint(
        "It is for tensor cores.",
        lambda k, s, d: d.multiprocessors is not None and d.multiprocessors.tensor_cores,
    ),
    Constraint(
        "tile_m, tile_n and tile_k must divide rows, columns and depth.",
        lambda k, s, d: not (s.rows % k.tile_m or s.columns % k.tile_n or s.depth % k.tile_k),
    ),
    Constraint(
        "Each warp multiplies whole fragments of 16 x 16 x 16.",
        lambda k, s, d: (
            not (
                k.tile_m % (FRAGMENT * k.warps_m)
                or k.tile_n % (FRAGMENT * k.warps_n)
                or k.tile_k % FRAGMENT
            )
        ),
    ),
    Constraint(
        "The sums of a warp are at most 16 fragments: more do not fit its registers.",
        lambda k, s, d: k.tile_m * k.tile_n <= FRAGMENTS * FRAGMENT**2 * k.warps_m * k.warps_n,
    ),
    Constraint(
        "Every item copies as many vectors of 16 bytes as the others.",
        lambda k, s, d: copies_evenly(
            s, k.tile_m, k.tile_n, k.tile_k, WARP * k.warps_m * k.warps_n
        ),
    ),
    Constraint("A work-group has at most 16 warps.", lambda k, s, d: k.warps_m * k.warps_n <= 16),
    STAGES,
    Constraint(
        "Tiles and sums must fit the shared memory of a work-group.",
        lambda k, s, d: shared_bytes(k) <= shared_limit(d),
    ),
)

#: Tiles and the warps for them, the ones with most products for what they read first.
TILES = (
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 2, 1), (64, 16, 2, 1), (16, 64, 1, 2),
    (32, 16, 1, 1), (16, 32, 1, 1), (16, 16, 1, 1),
)  # fmt: skip


def heuristic(shape: Shape, device: Device) -> Knobs:
    """The largest tile of which there is one for each multiprocessor (an assumption)."""
    fitting = _fitting(shape, device)
    return first_that_fills(fitting, lambda k, s: groups(s, k.tile_m, k.tile_n), shape, device)


def _fitting(shape: Shape, device: Device) -> list[Knobs]:
    """Knobs for each tile and its warps, the greatest depth and the most stages first."""
    tried = (
        Knobs(tile_m, tile_n, depth, warps_m, warps_n, count)
        for tile_m, tile_n, warps_m, warps_n in TILES
        for depth in (32, 16)
        for count in stage_counts(device)
    )
    return [k for k in tried if violated(CONSTRAINTS, k, shape, device) is None]


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles up to 128 × 256, up to eight warps along each side, up to four stages."""
    return {
        "tile_m": tuple(t for t in divisors(shape.rows, 256) if t % FRAGMENT == 0),
        "tile_n": tuple(t for t in divisors(shape.columns, 256) if t % FRAGMENT == 0),
        "tile_k": tuple(t for t in (16, 32, 64) if shape.depth % t == 0),
        "warps_m": (1, 2, 4),
        "warps_n": (1, 2, 4),
        "stages": (1, 2, 3, 4),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a product of factors in 16 bits, on a GPU with tensor cores."""
    gpu = workload.target.device.multiprocessors
    if gpu is None or not gpu.tensor_cores:
        return None
    shape = shape_of(workload)
    if shape is None or not shape.half:
        return None
    return shape if _fitting(shape, workload.target.device) else None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Place fragments, tiles and the output around the products."""
    sch: Any = workload.sch
    left, right = role(workload, LEFT), role(workload, RIGHT)
    shape, pixels = shape_of(workload), is_convolution(workload)
    assert shape is not None
    anchor, output = flatten_output(workload)
    lanes = gcd(int(sch.get(output).writes[0].source.shape[-1]), HALVES)
    *batch, m, n, k = sch.get_loops(anchor)
    per_m, per_n = (
        knobs.tile_m // FRAGMENT // knobs.warps_m, knobs.tile_n // FRAGMENT // knobs.warps_n
    )  # fmt: skip
    mo, mw, mi, mf = sch.split(m, [None, knobs.warps_m, per_m, FRAGMENT])
    no, nw, ni, nf = sch.split(n, [None, knobs.warps_n, per_n, FRAGMENT])
    ko, ki, kf = sch.split(k, [None, knobs.tile_k // FRAGMENT, FRAGMENT])
    sch.reorder(mo, no, mw, nw, ko, ki, mi, ni, mf, nf, kf)
    bind_batch(workload, batch)
    sch.bind(mo, "blockIdx.x")
    sch.bind(no, "blockIdx.y")
    warp = sch.fuse(mw, nw)
    sch.bind(warp, "threadIdx.y")

    sch.reverse_compute_at(output, no)
    fragments = [sch.cache_read(anchor, i, f"wmma.matrix_{side}") for i, side in enumerate("ab")]
    sums = sch.cache_write(anchor, 0, "wmma.accumulator")
    sch.set_scope(sums, 0, "shared.dyn")
    sch.reverse_compute_at(sums, warp)
    for fragment in fragments:
        sch.compute_at(fragment, ki)
    threads = {"threadIdx.y": knobs.warps_m * knobs.warps_n, "threadIdx.x": WARP}
    copy_tile(workload, left, ko, threads, shape.left_lanes)
    copy_tile(workload, right, ko, threads, shape.right_lanes)
    for block in (left, right):
        sch.storage_align(block, 0, -2, 2 * HALVES, HALVES)

    register()
    for fragment, load in zip(fragments, (LOAD_A, LOAD_B), strict=True):
        _tensorize(workload, fragment, ki, load)
    stored = _tensorize(workload, sums, warp, STORE)
    # Of fp32: 16 bytes longer, too.
    sch.storage_align(stored, 0, -2, 8, 4)
    init = sch.decompose_reduction(anchor, ko)
    sch.tensorize(sch.get_loops(init)[-2], ZERO)
    sch.tensorize(mf, MULTIPLY)
    workload.unroll_all([ki, mi, ni])
    store_output(workload, output, no, threads, lanes, pixels)
    ahead(workload, ko, knobs.stages)
    return sch


def _tensorize(workload: Workload, block: Block, above: Loop, intrinsic: str) -> Block:
    """Have an instruction move each fragment of a block; return the block of one."""
    sch: Any = workload.sch
    *_, i, j = workload.loops_below(block, above)
    i, rows = sch.split(i, [None, FRAGMENT])
    j, columns = sch.split(j, [None, FRAGMENT])
    sch.reorder(i, j, rows, columns)
    workload.unroll_all([i, j])
    whole = sch.blockize(rows)
    sch.tensorize(whole, intrinsic)
    return whole
