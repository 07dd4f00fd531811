"""Products of :mod:`.gemm` in 16 bits, on the tensor cores of CUDA.

A work-group computes a tile of ``tile_m`` × ``tile_n``, each of its warps a part of that, in
steps of ``tile_k`` along the depth.  Warps read fragments of 16×16 from the tiles of the factors
in shared memory, multiply them, and keep the sums in registers.  At the end the tile of sums is
stored over these tiles in shared memory, from which the group computes the epilogue and writes
whole vectors of channels.  If work-groups share the depth, fragments of sums are written to
memory unchanged, for the second kernel.

Rows in shared memory are 16 bytes longer than their tile, so that the eight rows that one
load of a fragment reads are in different banks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from math import gcd, prod

from tvm import s_tir, tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..devices.target import Device
from . import gemm
from .common import Block, Loop, Workload
from .family import Value, knob, violated
from .gemm import Shape
from .sizes import divisors

NAME = "gemm_tensor"
ORDER = 200

WARP = 32
#: Rows, columns and depth of a fragment.
FRAGMENT = 16
#: Names of the tensor intrinsics for fragments.
LOAD_A, LOAD_B, STORE, STORE_PART, ZERO, MULTIPLY = (
    f"tvmflow_fragment_{name}"
    for name in ("load_a", "load_b", "store", "store_part", "zero", "multiply")
)
#: Halves in 16 bytes: the size of an item's copies, and the padding of rows in shared memory.
HALVES = 8
#: Most fragments of sums in a warp: each takes 8 of an item's 255 registers.
FRAGMENTS = 16


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    """Knobs of a work-group's tile, and its division among warps."""

    tile_m: int = knob("Rows of the product that a work-group computes.")
    tile_n: int = knob("Columns of the product that a work-group computes.")
    tile_k: int = knob("Depth of the tiles that are copied to shared memory at once.")
    warps_m: int = knob("Warps of a work-group along the rows.")
    warps_n: int = knob("Warps of a work-group along the columns.")
    stages: int = knob("Tiles of each factor in shared memory: all but one are in flight.")
    splits: int = knob(gemm.SPLITS_KNOB)


def shared_bytes(knobs: Knobs) -> int:
    """Return the shared memory of a work-group: tiles of the factors, later the sums."""
    left = knobs.tile_m * (knobs.tile_k + HALVES)
    right = knobs.tile_k * (knobs.tile_n + HALVES)
    return max(2 * knobs.stages * (left + right), 4 * knobs.tile_m * (knobs.tile_n + 4))


CONSTRAINTS = {
    "The device must have tensor cores.": lambda k, s, d: (
        d.multiprocessors is not None and d.multiprocessors.tensor_cores
    ),
    "tile_m, tile_n and tile_k must divide rows, columns and depth.": lambda k, s, d: (
        not (s.rows % k.tile_m or s.columns % k.tile_n or s.depth % k.tile_k)
    ),
    "Each warp multiplies whole fragments of 16 x 16 x 16.": lambda k, s, d: (
        not (
            k.tile_m % (FRAGMENT * k.warps_m)
            or k.tile_n % (FRAGMENT * k.warps_n)
            or k.tile_k % FRAGMENT
        )
    ),
    "The sums of a warp are at most 16 fragments: more do not fit its registers.": lambda k, s, d: (
        k.tile_m * k.tile_n <= FRAGMENTS * FRAGMENT**2 * k.warps_m * k.warps_n
    ),
    "All items must copy equally many vectors of 16 bytes.": lambda k, s, d: gemm.copies_evenly(
        s, k.tile_m, k.tile_n, k.tile_k, WARP * k.warps_m * k.warps_n
    ),
    "A work-group has at most 16 warps.": lambda k, s, d: k.warps_m * k.warps_n <= 16,
    **gemm.DEPTH_FITS,
    "Tiles and sums must fit the shared memory of a work-group.": lambda k, s, d: (
        shared_bytes(k) <= gemm.shared_limit(d)
    ),
}

#: Tiles and the warps for them; those with the most products per read come first.
TILES = (
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 2, 1), (64, 16, 2, 1), (16, 64, 1, 2),
    (32, 16, 1, 1), (16, 32, 1, 1), (16, 16, 1, 1),
)  # fmt: skip
#: Depths of a tile; and a limit of the depth that a warp multiplies per step, times fragments.
DEPTHS = (128, 96, 64, 32, 16)
UNROLLED = 256
#: Cycles of a fragment's product in a warp, cycles of reading the factors before it, and products
#: that a multiprocessor sums per cycle (an A100's; the others are assumptions).
PRODUCT, READS, RATE = 16, 40, 1024


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the tile that takes the fewest cycles by :func:`.gemm.cycles`."""
    return min(_fitting(shape, device), key=lambda k: gemm.cycles(tile(k), shape, device))


def tile(knobs: Knobs) -> gemm.Tile:
    """Return a work-group's tile; a warp multiplies its fragments one after the other."""
    warps, fragments = knobs.warps_m * knobs.warps_n, knobs.tile_k // FRAGMENT
    read = 2 * knobs.tile_k * (knobs.tile_m * knobs.warps_n + knobs.tile_n * knobs.warps_m)
    return gemm.Tile(
        knobs.tile_m, knobs.tile_n, knobs.tile_k, WARP * warps, knobs.stages, knobs.splits,
        alone=fragments * (READS + PRODUCT * _products(knobs)), read=read, rate=RATE,
    )  # fmt: skip


def _products(knobs: Knobs) -> int:
    """Return the fragments of sums that a warp keeps."""
    return knobs.tile_m * knobs.tile_n // (FRAGMENT**2 * knobs.warps_m * knobs.warps_n)


def _fitting(shape: Shape, device: Device) -> list[Knobs]:
    """Return knobs for each tile and its warps, each with the most stages that fit."""
    found: list[Knobs] = []
    for tile_m, tile_n, warps_m, warps_n in TILES:
        for depth, splits in product(DEPTHS, gemm.split_counts(shape)):
            tried = (
                Knobs(tile_m, tile_n, depth, warps_m, warps_n, count, splits)
                for count in gemm.stage_counts(device)
            )
            fits = (k for k in tried if violated(CONSTRAINTS, k, shape, device) is None)
            found += [k for k in islice(fits, 1) if depth * _products(k) <= UNROLLED]
    return found


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles up to 128 × 256, up to eight warps along each side, up to four stages."""
    return {
        "tile_m": tuple(t for t in divisors(shape.rows, 256) if t % FRAGMENT == 0),
        "tile_n": tuple(t for t in divisors(shape.columns, 256) if t % FRAGMENT == 0),
        "tile_k": tuple(t for t in reversed(DEPTHS) if shape.depth % t == 0),
        "warps_m": (1, 2, 4),
        "warps_n": (1, 2, 4),
        "stages": (1, 2, 3, 4),
        "splits": gemm.split_counts(shape),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """Return the shape of a product of 16-bit factors, on a GPU with tensor cores."""
    gpu = workload.target.device.multiprocessors
    if gpu is None or not gpu.tensor_cores:
        return None
    shape = gemm.shape_of(workload)
    return shape if shape.half and _fitting(shape, workload.target.device) else None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Place fragments, tiles and the output around the products."""
    sch = workload.sch
    (left,), (right,) = workload.with_role(gemm.LEFT), workload.with_role(gemm.RIGHT)
    shape, pixels = gemm.shape_of(workload), gemm.is_convolution(workload)
    anchor, output = gemm.flatten_output(workload)
    lanes = gcd(int(sch.get(output).writes[0].source.shape[-1]), HALVES)
    whole, anchor = anchor, gemm.split_depth(workload, anchor, knobs.splits)
    *batch, m, n, k = sch.get_loops(anchor)
    per_m, per_n = (
        knobs.tile_m // FRAGMENT // knobs.warps_m, knobs.tile_n // FRAGMENT // knobs.warps_n
    )  # fmt: skip
    mo, mw, mi, mf = sch.split(m, [None, knobs.warps_m, per_m, FRAGMENT])
    no, nw, ni, nf = sch.split(n, [None, knobs.warps_n, per_n, FRAGMENT])
    ko, ki, kf = sch.split(k, [None, knobs.tile_k // FRAGMENT, FRAGMENT])
    sch.reorder(mo, no, mw, nw, ko, ki, mi, ni, mf, nf, kf)
    workload.bind_batch(batch)
    warp = sch.fuse(mw, nw)
    workload.bind([("blockIdx.x", mo), ("blockIdx.y", no), ("threadIdx.y", warp)])

    splits = knobs.splits > 1
    if not splits:
        sch.reverse_compute_at(output, no)
    fragments = [sch.cache_read(anchor, i, f"wmma.matrix_{side}") for i, side in enumerate("ab")]
    sums = sch.cache_write(anchor, 0, "wmma.accumulator")
    sch.set_scope(sums, 0, "global" if splits else "shared.dyn")
    sch.reverse_compute_at(sums, warp)
    for fragment in fragments:
        sch.compute_at(fragment, ki)
    threads = {"threadIdx.y": knobs.warps_m * knobs.warps_n, "threadIdx.x": WARP}
    gemm.copy_tile(workload, left, ko, threads, shape.left_lanes)
    gemm.copy_tile(workload, right, ko, threads, shape.right_lanes)
    for block in (left, right):
        sch.storage_align(block, 0, -2, 2 * HALVES, HALVES)

    register_instructions()
    for fragment, load in zip(fragments, (LOAD_A, LOAD_B), strict=True):
        _tensorize(workload, fragment, ki, load)
    stored = _tensorize(workload, sums, warp, STORE_PART if splits else STORE)
    init = sch.decompose_reduction(anchor, ko)
    sch.tensorize(sch.get_loops(init)[-2], ZERO)
    sch.tensorize(mf, MULTIPLY)
    workload.unroll_all([ki, mi, ni])
    if splits:
        gemm.add_parts(workload, whole, output, lanes, pixels)
    else:
        # Rows of the fp32 sums are 16 bytes longer, too.
        sch.storage_align(stored, 0, -2, 8, 4)
        gemm.store_output(workload, output, no, threads, lanes, pixels)
    gemm.pipeline_copies(workload, ko, knobs.stages)
    return sch


def _tensorize(workload: Workload, block: Block, above: Loop, intrinsic: str) -> Block:
    """Let a tensor intrinsic move each fragment of a block; return the block of one fragment."""
    sch = workload.sch
    *_, i, j = workload.loops_below(block, above)
    i, rows = sch.split(i, [None, FRAGMENT])
    j, columns = sch.split(j, [None, FRAGMENT])
    sch.reorder(i, j, rows, columns)
    workload.unroll_all([i, j])
    whole = sch.blockize(rows)
    sch.tensorize(whole, intrinsic)
    return whole


# -- instructions of tensor cores (``wmma``) for blocks of 16×16×16 -----------------------


def _at(buffer: tirx.Var) -> tirx.Expr:
    """Return the index of a buffer's fragment in the array that contains it."""
    offset, row = buffer.elem_offset, buffer.strides[0]
    across = tirx.floordiv(row, FRAGMENT)
    down = tirx.floordiv(tirx.floordiv(offset, row), FRAGMENT)
    return down * across + tirx.floordiv(tirx.floormod(offset, row), FRAGMENT)


@cache
def register_instructions() -> None:
    """Register the tensor intrinsics with TVM, when a schedule first needs them.

    TVM's own ones are the same and many more, but their import takes seconds.
    """
    size = (FRAGMENT,) * 3
    left, right = (("float16", f"wmma.matrix_{side}") for side in "ab")
    half, sums = ("float16", "shared.dyn"), ("float32", "wmma.accumulator")

    def moved(source, target, i, j):  # type: ignore[no-untyped-def]
        return source[i, j]

    def load(source, target):  # type: ignore[no-untyped-def]
        place = source.access_ptr("r", ptr_type="float16"), source.strides[0], "row_major"
        return T.tvm_load_matrix_sync(target.data, *size, _at(target), *place, dtype="void")

    def store(source, target):  # type: ignore[no-untyped-def]
        place = target.access_ptr("w", ptr_type="float32"), target.strides[0], "row_major"
        return T.tvm_store_matrix_sync(source.data, *size, _at(source), *place, dtype="void")

    def fill(target):  # type: ignore[no-untyped-def]
        return T.tvm_fill_fragment(target.data, *size, _at(target), T.float32(0), dtype="void")

    def added(rows, columns, total, i, j, k):  # type: ignore[no-untyped-def]
        factors = (T.Cast("float32", factor) for factor in (rows[i, k], columns[k, j]))
        return total[i, j] + prod(factors)

    def multiply(rows, columns, total):  # type: ignore[no-untyped-def]
        fragments = [x for b in (total, rows, columns, total) for x in (b.data, _at(b))]
        return T.tvm_mma_sync(*fragments, dtype="void")

    _register(LOAD_A, [half, left], moved, load)
    _register(LOAD_B, [half, right], moved, load)
    for name, scope in ((STORE, "shared.dyn"), (STORE_PART, "global")):
        _register(name, [sums, ("float32", scope)], moved, store)
    _register(ZERO, [sums], lambda target, i, j: T.float32(0), fill)
    _register(MULTIPLY, [left, right, sums], added, multiply, "SSR")


def _register(
    name: str,
    operands: Sequence[tuple[str, str]],
    element: Callable[..., tirx.Expr],
    call: Callable[..., tirx.Expr],
    axes: str = "SS",
) -> None:
    """Register an intrinsic on ``operands`` (dtypes and scopes), the last of which is written.

    ``element`` computes one element at each of its ``axes``, ``call`` all of them.
    """

    def function(body: Callable[..., None], strided: bool) -> tirx.PrimFunc:
        whole = slice(FRAGMENT), slice(FRAGMENT)
        # A buffer's offset is a multiple of whole fragments.
        place = {"shape": (FRAGMENT,) * 2, "align": 64, "offset_factor": FRAGMENT}
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            params = [T.arg(f"p{number}", T.handle()) for number in range(len(operands))]
            buffers = []
            for param, (dtype, scope) in zip(params, operands, strict=True):
                strides = [T.int32(), T.int32()] if strided else None
                described = {"dtype": dtype, "scope": scope, "strides": strides}
                buffers.append(T.match_buffer(param, **place, **described))
            *read, written = (buffer[whole] for buffer in buffers)
            with T.sblock("root"):
                T.reads(*([written] if "R" in axes else []), *read)
                T.writes(written)
                body(buffers)
        return builder.get()

    def elements(buffers: list[tirx.Var]) -> None:
        with T.grid(*(FRAGMENT for _ in axes)) as loops, T.sblock("element"):
            index = T.axis.remap(axes, loops)
            T.buffer_store(buffers[-1], element(*buffers, *index), index[:2])

    whole_call = function(lambda buffers: T.evaluate(call(*buffers)), strided=True)
    TensorIntrin.register(name, function(elements, strided=False), whole_call)
