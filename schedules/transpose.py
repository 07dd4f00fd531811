"""Transpositions, which read along one axis and write along another.

Examples are Transpose and the conversions between the plain layout and blocks of channels.  With
the axis ``a``, along which the input is contiguous, and the result's last axis ``b``::

    y[..., a, ..., b] = x[..., b, ..., a]

A work-item reads a tile of ``rows x columns`` in vectors along ``a``, transposes it in registers
and writes it in vectors along ``b``: neighbouring work-items read and write every cache line whole.
On GPUs, work-groups are squares for the same reason; with few tiles along ``a`` and ``b`` they also
have items along the other axes, so that their waves are full.  A group may also transpose its tiles
in local memory, which needs no vectors: neighbouring work-items read neighbouring elements and
write neighbouring elements.  Rows in local memory are one element longer than the tile's, so that a
column is spread over all banks.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod

from tvm import s_tir, tirx

from ..devices.target import Device
from ..ir.scope import is_texture
from .common import Loop, Workload
from .data_parallel import CPU_ELEMENTS, CPU_GROUPS, Nest
from .family import GROUP_FITS, Declined, Value, knob
from .injective import one_block
from .sizes import LANES, divisors, group_sizes, lanes_filled, largest_divisor, tile_of

NAME = "transpose"
ORDER = 610

#: Side of a tile that is transposed in a CPU's registers: 8 vectors of 8 lanes become 8 others.
CPU_TILE = 8
#: Side of a tile that is transposed in a GPU's registers: four vectors of four lanes.
GPU_TILE = 4
#: Most elements of a group's tile in local memory: half of what every device has.
MOST_SHARED = 4096
#: Work-items of a group that moves single elements through local memory: 16 x 16.
SHARING = 256
#: Least extent of both axes for a transposition through local memory.
SHORTEST = 16


@dataclass(frozen=True)
class Shape:
    """Extents along the axis that is read, the axis that is written, and all other axes."""

    outer: int
    rows: int
    columns: int
    _: KW_ONLY
    #: Whether the input, or output, is a texture, whose texels are then read or written whole.
    reads_texels: bool
    writes_texels: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of a work-item's tile, and of the number of tiles and work-items."""

    rows: int = knob("Elements of a tile along the axis that is read.")
    columns: int = knob("Elements of a tile along the axis that is written.")
    tiles: int = knob("About how many tiles a work-item transposes, one after the other.")
    share: bool = knob("Transpose tiles of a whole group in local memory, not each in registers.")
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "rows and columns must divide the axes: "
    "tests would keep vectors from being moved whole.": lambda k, s, d: (
        s.rows % k.rows == 0 and s.columns % k.columns == 0
    ),
    "A tile has at most 256 elements, which must fit the device's registers.": lambda k, s, d: (
        k.rows * k.columns <= 256
    ),
    "Texels are read and written whole.": lambda k, s, d: (
        (not s.reads_texels or k.rows == s.rows) and (not s.writes_texels or k.columns == s.columns)
    ),
    "tiles are several on a CPU only.": lambda k, s, d: d.is_cpu or k.tiles == 1,
    "share is for GPUs and buffers, and groups with at most 4096 elements.": lambda k, s, d: (
        not k.share
        or (
            not (d.is_cpu or s.reads_texels or s.writes_texels)
            and k.rows * k.columns * k.group_size <= MOST_SHARED
        )
    ),
    **GROUP_FITS,
}


def tile_along(extent: int, device: Device) -> int:
    """Return a vector's width if that divides the extent; else on a CPU a divisor of similar size.

    On a GPU the alternative is single elements: neighbouring work-items then move neighbours.
    """
    wanted = CPU_TILE if device.is_cpu else GPU_TILE
    for lanes in (wanted, wanted // 2):
        if extent % lanes == 0:
            return lanes
    return largest_divisor(extent, 2 * wanted) if device.is_cpu else 1


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return square tiles; on a CPU as many as hide the launch of a work-group."""
    rows = shape.rows if shape.reads_texels else tile_along(shape.rows, device)
    columns = shape.columns if shape.writes_texels else tile_along(shape.columns, device)
    tiles = 1
    if device.is_cpu:
        count = shape.outer * (shape.rows // rows) * (shape.columns // columns)
        tiles = max(1, min(CPU_ELEMENTS // (rows * columns), count // CPU_GROUPS))
    elif (
        not (shape.reads_texels or shape.writes_texels)
        and min(rows, columns) < GPU_TILE
        # Local memory pays off only if both axes are at least as long as the group's tile (an
        # assumption).
        and min(shape.rows, shape.columns) >= SHORTEST
    ):
        return Knobs(rows, columns, 1, True, min(SHARING, device.max_group_size))
    return Knobs(rows, columns, tiles, False, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of all forms."""
    return {
        "rows": divisors(shape.rows, 16),
        "columns": divisors(shape.columns, 16),
        "tiles": (1, 4, 16, 64, 256) if device.is_cpu else (1,),
        "share": (False,) if device.is_cpu else (False, True),
        "group_size": group_sizes(device),
    }


def match(workload: Workload) -> Shape:
    """Return the shape of a function with one block, one of whose reads is transposed."""
    _, _, nest = one_block(workload, digits=True)
    if str(nest.tensors[0].dtype) in ("int8", "uint8"):
        raise Declined("TVM's OpenCL code is wrong for vectors of transposed bytes")
    access, axis = _transposed_access(nest)
    rows, columns = nest.extents[axis], nest.extents[-1]
    shape = Shape(
        prod(nest.extents) // (rows * columns),
        rows,
        columns,
        reads_texels=is_texture(nest.tensors[access].scope()),
        writes_texels=is_texture(nest.tensors[0].scope()),
    )
    knobs = heuristic(shape, workload.target.device)
    least = 2 if workload.is_cpu else 1
    small = knobs.rows < least or knobs.columns < least or knobs.rows * knobs.columns < 4
    if small and not knobs.share:
        raise Declined(f"no tile divides {rows} x {columns}")
    return shape


def _transposed_access(nest: Nest) -> tuple[int, int]:
    """Return the access that is contiguous along another axis than the result, and that axis."""
    last = len(nest.extents) - 1
    for access, (steps, tensor) in enumerate(zip(nest.accesses, nest.tensors, strict=True)):
        turned = steps[last] not in (0, 1, None) and 1 in steps[:last] and nest.inside[access]
        alone = sum(other.same_as(tensor) for other in nest.tensors) == 1
        if nest.accesses[0][last] == 1 and turned and alone:
            return access, max(range(last), key=lambda a: (steps[a] == 1) * nest.extents[a])
    raise Declined("nothing is read along another axis than written")


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Transpose tiles in registers by ``knobs``."""
    workload, block, nest = one_block(workload, digits=True)
    sch = workload.sch
    access, axis = _transposed_access(nest)
    tensor = nest.tensors[access]
    index = next(i for i, r in enumerate(sch.get(block).reads) if r.source.same_as(tensor))
    *others, b = nest.loops
    a = others.pop(axis)
    a, row = sch.split(a, [None, knobs.rows])
    b, column = sch.split(b, [None, knobs.columns])
    sch.reorder(*others, a, b, row, column)
    if workload.is_cpu:
        above = _stretch(workload, [*others, a, b], knobs.tiles)
    else:
        group, item = _bind_squares(workload, others, a, b, knobs)
        above = group if knobs.share else item
    staged = sch.reindex(block, ("read", index))
    sch.set_scope(staged, 0, "shared" if knobs.share else "local")
    # The copy has the order of the input, so that it can be stored in the vectors that are read.
    count = len(nest.extents)
    order = [i for i in range(count) if i != axis] + [axis]
    index_map = tirx.IndexMap.from_func(
        lambda *v: [v[i] for i in order],
        ndim=count,
        index_dtype=str(sch.get(block).iter_vars[0].var.ty.dtype),
    )
    sch.transform_layout(staged, ("write", 0), index_map)
    sch.compute_at(staged, above, preserve_unit_loops=True)
    # The copy has a loop for each axis of the input; only two are longer than 1.
    loops = workload.loops_below(staged, above)[-count:]
    read_row, read_column = loops[axis], loops[-1]
    sch.reorder(read_column, read_row)
    if knobs.share:
        sch.storage_align(staged, 0, axis=-2, factor=2, offset=1)
        # Rows of an odd length do not suit CUDA's vectors, which must be aligned.
        lanes = knobs.rows if knobs.rows in LANES and workload.target.kind != "cuda" else 1
        items = workload.group_extents(block)
        workload.share_among_items([read_column, read_row], items, lanes)
    else:
        sch.unroll(read_column)
        sch.vectorize(read_row) if knobs.rows in LANES else sch.unroll(read_row)
    sch.unroll(row)
    # Elements of several texels do not form a vector.
    others = nest.tensors[1:access] + nest.tensors[access + 1 :]
    plain = not (
        nest.tested[-1]
        or str(nest.tensors[0].dtype) == "bool"
        or any(is_texture(other.scope()) for other in others)
    )
    sch.vectorize(column) if plain and knobs.columns in LANES else sch.unroll(column)
    return sch


def _bind_squares(
    workload: Workload, others: list[Loop], a: Loop, b: Loop, knobs: Knobs
) -> tuple[Loop, Loop]:
    """Bind tiles to work-items, in groups about as high as wide; return the loops of both.

    Groups divide the axes, so that the extents of a work-item's copies are constants.  If such a
    group leaves lanes of its waves idle, as with few tiles along both axes, it also has items along
    the other axes, except if it transposes in local memory, which would have to hold all its tiles.
    """
    sch, group_size, device = workload.sch, knobs.group_size, workload.target.device
    edge = 1 << (group_size.bit_length() - 1) // 2
    counts = [int(sch.get(loop).extent) for loop in (a, b)]
    width = tile_of(counts[1], group_size // min(counts[0], edge))
    height = tile_of(counts[0], group_size // width)
    a, row = sch.split(a, [None, height])
    b, column = sch.split(b, [None, width])
    outer, items = list[Loop](), [row, column]
    if others:
        place = workload.fuse(others)
        extents = [int(sch.get(place).extent), *counts]
        deepest = 1 if knobs.share else group_size // (height * width)

        def filled(depth: int) -> float:
            return lanes_filled(extents, (depth, height, width), device.wave)

        depth = max(range(1, min(deepest, device.max_group_depth, extents[0]) + 1), key=filled)
        if depth > 1:
            place, deep = sch.split(place, [None, depth])
            items.insert(0, deep)
        outer = [place]
    sch.reorder(*outer, a, b, *items)
    groups = zip(("blockIdx.x", "blockIdx.y", "blockIdx.z"), (b, a, *outer), strict=False)
    names = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
    workload.bind([*groups, *zip(names, reversed(items), strict=False)])
    return b, column


def _stretch(workload: Workload, loops: list[Loop], tiles: int) -> Loop:
    """Bind all loops but those over about ``tiles`` tiles; return the innermost bound loop."""
    sch = workload.sch
    inner: list[Loop] = []
    for at in reversed(range(len(loops))):
        few = largest_divisor(int(sch.get(loops[at]).extent), tiles)
        tiles //= few
        if few > 1:
            loops[at], part = sch.split(loops[at], [None, few])
            inner.insert(0, part)
    sch.reorder(*loops, *inner)
    bound = workload.bind_outer(loops)
    return inner[-1] if inner else bound
