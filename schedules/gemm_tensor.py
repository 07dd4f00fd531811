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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import gcd

from tvm import s_tir, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

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
#: Instructions for fragments, as schedules name them.
LOAD_A, LOAD_B, STORE, ZERO, MULTIPLY = (
    f"tvmflow_fragment_{name}" for name in ("load_a", "load_b", "store", "zero", "multiply")
)
#: A function that a block has to match, and what takes its place.
Description = tuple[tirx.PrimFunc, tirx.PrimFunc]
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


CONSTRAINTS = {
    "It is for tensor cores.": lambda k, s, d: (
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
    "Every item copies as many vectors of 16 bytes as the others.": lambda k, s, d: (
        gemm.copies_evenly(s, k.tile_m, k.tile_n, k.tile_k, WARP * k.warps_m * k.warps_n)
    ),
    "A work-group has at most 16 warps.": lambda k, s, d: k.warps_m * k.warps_n <= 16,
    **gemm.STAGES,
    "Tiles and sums must fit the shared memory of a work-group.": lambda k, s, d: (
        shared_bytes(k) <= gemm.shared_limit(d)
    ),
}

#: Tiles and the warps for them, the ones with most products for what they read first.
TILES = (
    (128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1),
    (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 2, 1), (64, 16, 2, 1), (16, 64, 1, 2),
    (32, 16, 1, 1), (16, 32, 1, 1), (16, 16, 1, 1),
)  # fmt: skip


def heuristic(shape: Shape, device: Device) -> Knobs:
    """The largest tile of which there is one for each multiprocessor (an assumption)."""
    fitting = _fitting(shape, device)
    return gemm.first_that_fills(
        fitting, lambda k, s: gemm.groups(s, k.tile_m, k.tile_n), shape, device
    )


def _fitting(shape: Shape, device: Device) -> list[Knobs]:
    """Knobs for each tile and its warps, the greatest depth and the most stages first."""
    tried = (
        Knobs(tile_m, tile_n, depth, warps_m, warps_n, count)
        for tile_m, tile_n, warps_m, warps_n in TILES
        for depth in (32, 16)
        for count in gemm.stage_counts(device)
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
    shape = gemm.shape_of(workload)
    if shape is None or not shape.half:
        return None
    return shape if _fitting(shape, workload.target.device) else None


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Place fragments, tiles and the output around the products."""
    sch = workload.sch
    (left,), (right,) = workload.with_role(gemm.LEFT), workload.with_role(gemm.RIGHT)
    shape, pixels = gemm.shape_of(workload), gemm.is_convolution(workload)
    assert shape is not None
    anchor, output = gemm.flatten_output(workload)
    lanes = gcd(int(sch.get(output).writes[0].source.shape[-1]), HALVES)
    *batch, m, n, k = sch.get_loops(anchor)
    per_m, per_n = (
        knobs.tile_m // FRAGMENT // knobs.warps_m, knobs.tile_n // FRAGMENT // knobs.warps_n
    )  # fmt: skip
    mo, mw, mi, mf = sch.split(m, [None, knobs.warps_m, per_m, FRAGMENT])
    no, nw, ni, nf = sch.split(n, [None, knobs.warps_n, per_n, FRAGMENT])
    ko, ki, kf = sch.split(k, [None, knobs.tile_k // FRAGMENT, FRAGMENT])
    sch.reorder(mo, no, mw, nw, ko, ki, mi, ni, mf, nf, kf)
    gemm.bind_batch(workload, batch)
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
    gemm.copy_tile(workload, left, ko, threads, shape.left_lanes)
    gemm.copy_tile(workload, right, ko, threads, shape.right_lanes)
    for block in (left, right):
        sch.storage_align(block, 0, -2, 2 * HALVES, HALVES)

    register_instructions()
    for fragment, load in zip(fragments, (LOAD_A, LOAD_B), strict=True):
        _tensorize(workload, fragment, ki, load)
    stored = _tensorize(workload, sums, warp, STORE)
    # Of fp32: 16 bytes longer, too.
    sch.storage_align(stored, 0, -2, 8, 4)
    init = sch.decompose_reduction(anchor, ko)
    sch.tensorize(sch.get_loops(init)[-2], ZERO)
    sch.tensorize(mf, MULTIPLY)
    workload.unroll_all([ki, mi, ni])
    gemm.store_output(workload, output, no, threads, lanes, pixels)
    gemm.pipeline_copies(workload, ko, knobs.stages)
    return sch


def _tensorize(workload: Workload, block: Block, above: Loop, intrinsic: str) -> Block:
    """Have an instruction move each fragment of a block; return the block of one."""
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
    """The number of the fragment that a buffer is, in the array of fragments it lies in."""
    offset, row = buffer.elem_offset, buffer.strides[0]
    across = tirx.floordiv(row, FRAGMENT)
    down = tirx.floordiv(tirx.floordiv(offset, row), FRAGMENT)
    return down * across + tirx.floordiv(tirx.floormod(offset, row), FRAGMENT)


def _buffer(dtype: str, scope: str) -> dict[str, object]:
    """A buffer of a fragment's size; its place in memory is that of whole fragments."""
    shape = (FRAGMENT, FRAGMENT)
    place = {"align": 64, "offset_factor": FRAGMENT, "scope": scope}
    return {"shape": shape, "dtype": dtype, **place}


@cache
def register_instructions() -> None:
    """Make the instructions known to TVM, when a schedule first asks for them.

    TVM has the same and many more, whose import takes seconds.
    """
    half_a = ("float16", "shared.dyn"), ("float16", "wmma.matrix_a")
    half_b = ("float16", "shared.dyn"), ("float16", "wmma.matrix_b")
    sums = ("float32", "wmma.accumulator"), ("float32", "shared.dyn")
    TensorIntrin.register(LOAD_A, *_move(*half_a, _load))
    TensorIntrin.register(LOAD_B, *_move(*half_b, _load))
    TensorIntrin.register(STORE, *_move(*sums, _store))
    TensorIntrin.register(ZERO, *_zero())
    TensorIntrin.register(MULTIPLY, *_multiply())


def _load(source: tirx.Var, target: tirx.Var) -> tirx.Expr:
    pointer = source.access_ptr("r", ptr_type="float16")
    place, stride = (FRAGMENT,) * 3, source.strides[0]
    return T.tvm_load_matrix_sync(
        target.data, *place, _at(target), pointer, stride, "row_major", dtype="void"
    )


def _store(source: tirx.Var, target: tirx.Var) -> tirx.Expr:
    pointer = target.access_ptr("w", ptr_type="float32")
    place, stride = (FRAGMENT,) * 3, target.strides[0]
    return T.tvm_store_matrix_sync(
        source.data, *place, _at(source), pointer, stride, "row_major", dtype="void"
    )


def _move(
    source: tuple[str, str],
    target: tuple[str, str],
    call: Callable[[tirx.Var, tirx.Var], tirx.Expr],
) -> Description:
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


def _zero() -> Description:
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


def _multiply() -> Description:
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
