"""Products of :mod:`.gemm` in fp32 on CUDA, from tiles in shared memory.

A work-group computes a tile of rows and columns, in steps of ``tile_k`` along the depth; each
of its items keeps ``tile_m`` rows of ``tile_n`` vectors of columns in registers.  An item reads
four steps of the left factor's depth at once, the same ones as its neighbours along the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from math import gcd

from tvm import s_tir

from ..devices.target import Device
from . import gemm
from .common import Workload
from .family import Value, knob, violated
from .gemm import Shape
from .sizes import divisors

NAME = "gemm_simt"
ORDER = 210

#: Columns of a vector, and steps of the depth that are read at once: 16 bytes.
LANES = 4
#: Registers for an item's sums, out of 255.
SUMS = 64


@dataclass(frozen=True)
class Knobs:
    """Knobs of the tile of a work-item, and of a work-group's items."""

    tile_m: int = knob("Rows that a work-item keeps in registers.")
    tile_n: int = knob("Vectors of four columns that a work-item keeps in registers.")
    group_m: int = knob("Work-items of a work-group along the rows.")
    group_n: int = knob("Work-items of a work-group along the columns.")
    tile_k: int = knob("Depth of the tiles that are copied to shared memory at once.")
    stages: int = knob("Tiles of each factor in shared memory: all but one are in flight.")
    splits: int = knob(gemm.SPLITS_KNOB)

    @property
    def rows(self) -> int:
        """Return the rows of a work-group."""
        return self.tile_m * self.group_m

    @property
    def columns(self) -> int:
        """Return the columns of a work-group."""
        return LANES * self.tile_n * self.group_n


def shared_bytes(knobs: Knobs) -> int:
    """Return the shared memory of a work-group, in bytes."""
    left, right = knobs.rows * (knobs.tile_k + LANES), knobs.tile_k * knobs.columns
    return 4 * knobs.stages * (left + right)


CONSTRAINTS = {
    "The device must be a GPU with CUDA.": lambda k, s, d: d.multiprocessors is not None,
    "The tile of a work-group must divide rows, columns and depth.": lambda k, s, d: (
        not (s.rows % k.rows or s.columns % k.columns or s.depth % k.tile_k)
    ),
    "tile_k is a multiple of 4, the steps that are read at once.": lambda k, s, d: (
        k.tile_k % LANES == 0
    ),
    "tile_m * tile_n vectors are at most 64 numbers: "
    "more do not fit the registers.": lambda k, s, d: LANES * k.tile_m * k.tile_n <= SUMS,
    "All items must copy equally many vectors of 16 bytes.": lambda k, s, d: gemm.copies_evenly(
        s, k.rows, k.columns, k.tile_k, k.group_m * k.group_n
    ),
    "group_m * group_n is 32 to 512.": lambda k, s, d: 32 <= k.group_m * k.group_n <= 512,
    **gemm.DEPTH_FITS,
    "Tiles must fit the shared memory of a work-group.": lambda k, s, d: (
        shared_bytes(k) <= gemm.shared_limit(d)
    ),
}

#: Tiles of items and groups; those with the most products per read come first.
TILES = (
    (16, 1, 8, 16), (8, 1, 8, 16), (8, 1, 8, 8), (4, 1, 8, 8), (4, 1, 4, 8), (4, 1, 8, 4),
    (2, 1, 8, 4),
)  # fmt: skip
TILE_K = 16
#: Products that a multiprocessor sums per cycle (an A100's).
RATE = 64


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the tile that takes the fewest cycles by :func:`.gemm.cycles`."""
    return min(_fitting(shape, device), key=lambda k: gemm.cycles(tile(k), shape, device))


def tile(knobs: Knobs) -> gemm.Tile:
    """Return a work-group's tile; items read separately, and warps take two cycles a product."""
    items, vectors = knobs.group_m * knobs.group_n, knobs.tile_m * knobs.tile_n
    return gemm.Tile(
        knobs.rows, knobs.columns, knobs.tile_k, items, knobs.stages, knobs.splits,
        alone=2 * LANES * vectors * knobs.tile_k,
        read=4 * items * knobs.tile_k * (knobs.tile_m + LANES * knobs.tile_n), rate=RATE,
    )  # fmt: skip


def _fitting(shape: Shape, device: Device) -> list[Knobs]:
    """Return knobs for each tile that fits, each with the most stages that fit."""
    found: list[Knobs] = []
    for tile, splits in product(TILES, gemm.split_counts(shape)):
        tried = (Knobs(*tile, TILE_K, count, splits) for count in gemm.stage_counts(device))
        fits = (k for k in tried if violated(CONSTRAINTS, k, shape, device) is None)
        found += islice(fits, 1)
    return found


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles that fit, groups of up to 32 items along each side, up to four stages."""
    return {
        "tile_m": divisors(shape.rows, 16),
        "tile_n": (1, 2),
        "group_m": (4, 8, 16, 32),
        "group_n": (4, 8, 16, 32),
        "tile_k": (8, 16, 32),
        "stages": (1, 2, 3, 4),
        "splits": gemm.split_counts(shape),
    }


def match(workload: Workload) -> Shape | None:
    """Return the shape of a product of fp32 factors on CUDA."""
    device = workload.target.device
    shape = gemm.shape_of(workload)
    if device.multiprocessors is None or shape.half or not _fitting(shape, device):
        return None
    return shape


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Place tiles, registers and the output around the products."""
    sch = workload.sch
    (left,), (right,) = workload.with_role(gemm.LEFT), workload.with_role(gemm.RIGHT)
    shape, pixels = gemm.shape_of(workload), gemm.is_convolution(workload)
    anchor, output = gemm.flatten_output(workload)
    lanes = gcd(int(sch.get(output).writes[0].source.shape[-1]), LANES)
    whole, anchor = anchor, gemm.split_depth(workload, anchor, knobs.splits)
    if knobs.splits > 1:
        gemm.add_parts(workload, whole, output, lanes, pixels)
        output = sch.cache_write(anchor, 0, "local")
    else:
        sch.set_scope(anchor, 0, "local")
    *batch, m, n, k = sch.get_loops(anchor)
    mo, mg, mi = sch.split(m, [None, knobs.group_m, knobs.tile_m])
    no, ng, ni, lane = sch.split(n, [None, knobs.group_n, knobs.tile_n, LANES])
    ko, ki, kk = sch.split(k, [None, knobs.tile_k // LANES, LANES])
    sch.reorder(mo, no, mg, ng, ko, ki, kk, mi, ni, lane)
    workload.bind_batch(batch)
    axes = {"blockIdx.x": mo, "blockIdx.y": no, "threadIdx.y": mg, "threadIdx.x": ng}
    workload.bind(axes.items())

    columns = int(sch.get(sch.get_loops(output)[-1]).extent)
    sch.reverse_compute_at(output, ng)
    if columns % LANES == 0:
        # An item with a single row has no loop over rows.
        *rows, below = workload.loops_below(output, ng)[-2:]
        vectors, vector = sch.split(below, [None, LANES])
        workload.vectorize_last([*rows, vectors, vector])
    steps = sch.cache_read(anchor, 0, "local")
    sch.compute_at(steps, ki)
    threads = {"threadIdx.y": knobs.group_m, "threadIdx.x": knobs.group_n}
    gemm.copy_tile(workload, left, ko, threads, shape.left_lanes)
    gemm.copy_tile(workload, right, ko, threads, shape.right_lanes)
    # Rows of the left tile that a warp reads at once are in different banks.
    sch.storage_align(left, 0, -2, 2 * LANES, LANES)
    workload.vectorize_last(workload.loops_below(steps, ki)[-2:])
    workload.unroll_all([ki, kk, mi, ni])
    sch.vectorize(lane)
    workload.split_init(anchor, ko, ng)
    gemm.pipeline_copies(workload, ko, knobs.stages)
    return sch
