"""Direct convolution of any window over the blocked layout ``NCHW{c}c``.

Computes, with ``c`` lanes a block and ``C' = ceil(C / c)``::

    x[N, I', H, W, c]  (or plain x[N, I, H, W])     w[O', I/groups, KH, KW, c]
    y[n, o', h, w, o] = sum_{i, p, q} x[n, i // c, h*s + p*d, w*s + q*d, i % c] * w[o', i, p, q, o]

For 8-bit numbers, each element of ``x`` and ``w`` holds four input channels (:mod:`.integers`),
``x`` has ``c / 4`` lanes, and products are dot products.

The sum runs over the real input channels only: the padding lanes of ``x`` are never read.

The knobs of its sliding windows and register tiles also serve other convolutions and pooling.
"""

from __future__ import annotations

import operator
from dataclasses import KW_ONLY, dataclass, replace
from math import log2, prod

from tvm import s_tir, te, tirx

from ..devices.target import Device, Tiling
from ..ir.annotations import PEEL_BORDERS
from ..ir.scope import is_half, is_texture
from .common import FAMILY, Block, Loop, Workload, to_constant_memory
from .definitions import Multiply, Sums, convolution, pad_spatial
from .family import Value, knob, violated
from .registers import columns_read, fits_ahead, most_vectors, window_steps
from .sizes import (
    FULL,
    LOCAL_BYTES,
    divisors,
    input_lanes,
    largest_divisor,
    tile_choices,
    tile_of,
    wave_filled,
)
from .work_groups import (
    GROUP_CONSTRAINTS,
    MOST_ITEMS,
    Extents,
    Window,
    WorkGroup,
    group_of,
    group_space,
    tile_form,
)

NAME = "conv2d"
ORDER = 310

#: Block annotation of grouped convolutions: the number of blocks of output channels of each group.
GROUP_BLOCKS = "tvmflow.group_blocks"


# -- what it computes ---------------------------------------------------------------------


def compute(
    x: te.Tensor,
    w: te.Tensor,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    sums: Sums = None,
    multiply: Multiply = operator.mul,
) -> te.Tensor:
    """Return the convolution as TE; shapes are in the module's docstring.

    With ``groups > 1`` the output channels of a group must be a multiple of the
    block, so that all lanes of an output vector read the same input channels.
    """
    outputs_per_group, inputs = int(w.shape[0]) // groups, int(w.shape[1])
    lanes = int(x.shape[-1])

    def channel(oo, o, i):  # type: ignore[no-untyped-def]
        source = i if groups == 1 else tirx.floordiv(oo, outputs_per_group) * inputs + i
        in_block = tirx.floordiv(source, lanes), tirx.floormod(source, lanes)
        return in_block if len(x.shape) == 5 else (source,)

    attrs = {FAMILY: NAME, **({GROUP_BLOCKS: str(outputs_per_group)} if groups > 1 else {})}
    return convolution(
        pad_spatial(x, padding), w, channel, strides, dilation, attrs, sums=sums, multiply=multiply
    )


# -- its knobs ----------------------------------------------------------------------------

#: Constant memory that OpenCL 1.2 guarantees, in bytes.
CONSTANT_BYTES = 65536
#: Memories from which weights can be read; `WEIGHTS_KNOB` explains them.
WEIGHTS = ("direct", "local", "constant")
WEIGHTS_KNOB = (
    "Memory from which weights are read: direct (as they are stored), local (the whole group "
    "copies them to local memory) or constant (constant memory)."
)
SPLIT_KNOB = "Work-items that sum a part of the input channels each."
#: Most vector products in an iteration on a CPU.  In 852 trials of MobileNetV2's convolutions, the
#: best have up to 56; a driver's compiler takes a second and more for some hundreds.
CPU_PRODUCTS = 112
#: Most pixels of a map that is small for the registers of a CPU.
SMALL_MAP = 9
#: Most vector products that are unrolled in the innermost remaining loop.
UNROLLED_PRODUCTS = 768


@dataclass(frozen=True)
class Shape:
    """Loop extents and storage of a convolution, direct or pointwise."""

    batch: int
    #: Blocks of output channels.
    outputs: int
    height: int
    width: int
    #: Channels in a block.
    lanes: int
    #: Input channels of a group, and the extents of the window.
    inputs: int
    kernel_h: int
    kernel_w: int
    _: KW_ONLY
    padded: bool
    texture: bool
    #: Storage of the weights: ``texture``, ``buffer``, or ``half`` for fp16 in a buffer.
    weights: str
    #: Lanes of an input block: fewer than those of the output if each holds four channels.
    input_block: int
    #: Blocks of output channels in each of several groups; 0 for a single group.
    group_blocks: int = 0

    @property
    def tiled_blocks(self) -> int:
        """Return how many output blocks read the same input; ``tile_o`` divides them."""
        return self.group_blocks or self.outputs

    @property
    def input_lanes(self) -> int:
        """Return the input channels that each step of the sum takes from one block."""
        return input_lanes(self.inputs, self.input_block)

    @property
    def whole_blocks(self) -> int:
        """Return the number of input blocks, which a split divides; 1 if one is partial."""
        return self.inputs // self.input_block if self.inputs % self.input_block == 0 else 1

    @property
    def weight_bytes(self) -> int:
        """Return the size of the weights as fp32, in bytes."""
        return 4 * self.outputs * self.lanes * self.inputs * self.kernel_h * self.kernel_w

    @property
    def is_pointwise(self) -> bool:
        """Return whether the window is a single pixel."""
        return self.kernel_h == self.kernel_w == 1


@dataclass(frozen=True)
class RegisterTile:
    """Knobs of the register tile that a work-item computes."""

    tile_o: int = knob("Blocks of output channels that a work-item keeps in registers.")
    tile_h: int = knob("Rows of the map that a work-item keeps in registers.")
    tile_w: int = knob("Columns of the map that a work-item keeps in registers.")
    unroll_i: int = knob("Input channels multiplied per iteration of the innermost remaining loop.")

    @property
    def vectors(self) -> int:
        """Return the number of vectors of a tile."""
        return self.tile_o * self.tile_h * self.tile_w


@dataclass(frozen=True)
class Knobs(WorkGroup, RegisterTile):
    """Knobs of the tile, the work-group, the split sum, and the memories that are read."""

    split_i: int = knob(SPLIT_KNOB)
    stage_input: bool = knob("Copy the padded input tile to private memory before it is used.")
    split_borders: bool = knob(
        "Compile the body twice, without tests for work-groups whose inputs are all inside."
    )
    weights: str = knob(WEIGHTS_KNOB)

    @property
    def barrier_items(self) -> int:
        """Return the work-items of a group if a split sum gives it barriers, else 1."""
        return prod(self.group) * self.split_i if self.split_i > 1 else 1


def most_accumulators(device: Device) -> int:
    """Return how many vectors a work-item may keep in registers.

    A GPU's compiler gives an item more registers than :attr:`Device.accumulators` by running fewer
    waves: the best knobs of some layers on an Adreno 740 have 24 vectors.
    """
    return device.accumulators * (1 if device.is_cpu else 2)


#: Constraint on the size of register tiles, shared by several families.
TILE_FITS = {
    "tile_o * tile_h * tile_w vectors must fit the device's registers.": lambda k, s, d: (
        k.tile_o * k.tile_h * k.tile_w <= most_accumulators(d)
    ),
}
TILE_IN_MAP = {
    "A tile is at most as high and as wide as the map.": lambda k, s, d: (
        k.tile_h <= s.height and k.tile_w <= s.width
    ),
}
UNROLL_DIVIDES = {
    "unroll_i must divide the input channels that a step takes of a block.": lambda k, s, d: (
        s.input_lanes % k.unroll_i == 0
    ),
}
#: Constraints shared by all families with register tiles.
TILE_CONSTRAINTS = {
    **TILE_FITS,
    f"On a CPU, tile_o * tile_h * tile_w * unroll_i is at most {CPU_PRODUCTS}.": lambda k, s, d: (
        not d.is_cpu or k.tile_o * k.tile_h * k.tile_w * k.unroll_i <= CPU_PRODUCTS
    ),
    "tile_o must divide the output blocks of a group, which read the same input.": lambda k, s, d: (
        s.tiled_blocks % k.tile_o == 0
    ),
    "On a CPU tile_h must divide the rows: "
    "a partial tile there is a test in the hot loop.": lambda k, s, d: (
        not d.is_cpu or s.height % k.tile_h == 0
    ),
    **TILE_IN_MAP,
    **UNROLL_DIVIDES,
}
#: Constraints of sums that the items of a group share (:func:`apply_split`).
SPLIT_CONSTRAINTS = {
    "split_i must divide the whole blocks of input channels, and is 1 on a CPU.": lambda k, s, d: (
        k.split_i == 1 or (not d.is_cpu and s.whole_blocks % k.split_i == 0)
    ),
    "A split sum needs tiles that divide the map, one group of channels, weights as they are "
    "stored, and a group of one tile of the map and of group_o that divides the tiles of "
    "channels.": lambda k, s, d: (
        k.split_i == 1
        or (
            s.height % k.tile_h == s.width % k.tile_w == s.group_blocks == 0
            and k.weights == "direct"
            and k.group_h == k.group_w == 1
            and s.outputs // k.tile_o % k.group_o == 0
            and k.group_o * k.split_i <= d.max_group_size
        )
    ),
    "The parts of a split sum must fit 32 KiB of local memory.": lambda k, s, d: (
        k.split_i == 1
        or 4 * k.split_i * k.group_o * k.tile_o * k.tile_h * k.tile_w * s.lanes <= LOCAL_BYTES
    ),
}
#: Constraints on the memory from which weights are read.
WEIGHT_CONSTRAINTS = {
    "weights is direct, local or constant, and on a CPU direct.": lambda k, s, d: (
        k.weights in weight_places(d)
    ),
    "Constant memory holds plain fp32 buffers of at most 64 KiB.": lambda k, s, d: (
        k.weights != "constant" or (s.weights == "buffer" and s.weight_bytes <= CONSTANT_BYTES)
    ),
}
#: Constraints shared by families with the knobs ``stage_input`` and ``split_borders``.
WINDOW_CONSTRAINTS = {
    "split_borders is for GPUs, and inputs that are padded and not copied first.": lambda k, s, d: (
        not k.split_borders or (s.padded and not k.stage_input and not d.is_cpu)
    ),
    **GROUP_CONSTRAINTS,
}
CONSTRAINTS = {
    **TILE_CONSTRAINTS,
    **SPLIT_CONSTRAINTS,
    "A split sum excludes stage_input and split_borders.": lambda k, s, d: (
        k.split_i == 1 or not (k.stage_input or k.split_borders)
    ),
    **WEIGHT_CONSTRAINTS,
    **WINDOW_CONSTRAINTS,
}

#: Work-items below which a phone's GPU cannot hide its latencies (an assumption: some ten waves of
#: 64 for each of two to six compute units), and below which some of six cores have fewer than two
#: waves of 64.
FEW_ITEMS, LEAST_ITEMS = 2048, 768


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return a register tile and a work-group by the device's rules.

    If a GPU would have few work-items, several items share a sum, or tiles are smaller.
    """
    if device.is_cpu:
        return _tiled(shape, device, _cpu_tile(shape, device))
    vectors = device.convolution.vectors
    knobs = _tiled(shape, device, _gpu_tile(shape, device, vectors))
    if device.convolution.channels and _items(knobs, shape) < FEW_ITEMS:
        # Two thirds of a tile read little more per product; smaller tiles read much more.
        vectors = vectors * 2 // 3
        knobs = _tiled(shape, device, _gpu_tile(shape, device, vectors))
    if _items(knobs, shape) < FEW_ITEMS and (split := split_up(knobs, shape, device)) is not None:
        return split
    while device.convolution.channels and _items(knobs, shape) < LEAST_ITEMS and vectors > 1:
        vectors = vectors * 2 // 3
        knobs = _tiled(shape, device, _gpu_tile(shape, device, vectors))
    return knobs


def _tiled(shape: Shape, device: Device, tile: Extents) -> Knobs:
    """Return the knobs for a tile of ``(blocks, rows, columns)``."""
    # Unrolling pays where little else is unrolled: in narrow maps, and where registers are few.
    deep = 4 if not device.is_cpu or shape.width <= 7 else 1
    unroll_i = largest_divisor(shape.input_lanes, deep)
    tested = shape.padded and not shape.texture
    tiles = _tiles(shape, *tile)
    group, borders = group_form(tested, tiles, device, device.convolution)
    return Knobs(*tile, unroll_i, *group, 1, device.stage_input, borders, "direct")


def _tiles(shape: Shape, tile_o: int, tile_h: int, tile_w: int) -> Extents:
    """Return the numbers of tiles of a whole batch along channels, rows and columns."""
    outputs = shape.batch * shape.outputs // tile_o
    return outputs, -(-shape.height // tile_h), -(-shape.width // tile_w)


def _items(knobs: Knobs, shape: Shape) -> int:
    return prod(_tiles(shape, knobs.tile_o, knobs.tile_h, knobs.tile_w)) * knobs.split_i


def split_up(knobs: Knobs, shape: Shape, device: Device) -> Knobs | None:
    """Return knobs that let several items share a sum, to occupy the device; ``None`` if none fit.

    The tile divides the map, each part has at least four blocks of input channels, and a group
    fills three quarters of its waves' lanes: if it fills fewer, smaller tiles of unsplit sums keep
    more lanes busy.  Groups are ranked by few idle lanes, then enough items, then a size near the
    usual one.
    """
    vectors, items = device.convolution.vectors, device.convolution.items
    most = vectors * 3 // 2
    tile_w = largest_divisor(shape.width, most)
    tile_h = largest_divisor(shape.height, most // tile_w)
    if 2 * tile_h * tile_w < min(vectors, shape.height * shape.width):
        # With fewer vectors, each load of a weight would serve too few products.
        return None
    whole = replace(
        knobs,
        tile_h=tile_h,
        tile_w=tile_w,
        group_h=1,
        group_w=1,
        stage_input=False,
        split_borders=False,
    )
    # Larger groups, which have barriers, would leave too few registers to each item.
    most_items = min(MOST_ITEMS, device.max_group_size)
    found = [
        replace(whole, split_i=split, group_o=group_o)
        for split in (2, 4, 8)
        if shape.whole_blocks >= 4 * split
        # The items share all pixels of a tile evenly, or its columns with few items idle.
        and (tile_h * tile_w % split == 0 or -tile_w % split <= tile_w // 4)
        for group_o in divisors(shape.outputs // knobs.tile_o, most_items // split)
    ]

    def worth(knobs: Knobs) -> tuple[bool, bool, float]:
        size = knobs.group_o * knobs.split_i
        far = abs(log2(size / items))
        return wave_filled(size, device.wave) >= 0.9, _items(knobs, shape) >= FEW_ITEMS, -far

    allowed = [
        k
        for k in found
        if wave_filled(k.group_o * k.split_i, device.wave) >= FULL
        and violated(CONSTRAINTS, k, shape, device) is None
    ]
    return max(allowed, key=worth, default=None)


def _cpu_tile(shape: Shape, device: Device) -> Extents:
    """Return two blocks by some seven columns: half the registers, so that the rest does not spill.

    More accumulators need fewer loads per product, but leave too few registers for the
    compiler's temporaries; see the sweep in ``docs/notes.md``.
    """
    pixels = shape.height * shape.width
    if pixels <= SMALL_MAP:
        # Enough sums to hide the latency of additions.  A pointwise tile of the whole map reads
        # each weight once; with a window it would wait for memory at each of its many weights.
        wide = 2 if shape.is_pointwise and pixels > 4 else 4
        height = shape.height if shape.is_pointwise else 1
        return largest_divisor(shape.tiled_blocks, wide), height, shape.width
    tile_o = largest_divisor(shape.tiled_blocks, 2)
    tile_w = tile_of(shape.width, 8 if tile_o > 1 else device.accumulators // 2)
    # An input of four 8-bit channels needs a register that repeats it in all lanes.
    dots = shape.input_block < shape.lanes
    most = 16 if tile_o > 1 or dots else device.accumulators
    rest = max(1, most // (tile_o * tile_w))
    return tile_o, largest_divisor(shape.height, rest) if shape.is_pointwise else 1, tile_w


def _gpu_tile(shape: Shape, device: Device, vectors: int) -> Extents:
    if device.convolution.channels:
        window = Window(shape.height, shape.width, shape.kernel_h, shape.kernel_w)
        return 1, *tile_form(window, vectors)
    tile_w = tile_of(shape.width, max(1, vectors // 2))
    rest = max(1, vectors // tile_w)
    # Narrow maps leave registers free: use them for more rows of a pointwise convolution, which
    # share its weights, else for more output blocks, which share its inputs.
    tile_h = largest_divisor(shape.height, rest) if shape.is_pointwise else 1
    return largest_divisor(shape.tiled_blocks, max(1, min(2, rest // tile_h))), tile_h, tile_w


def group_form(
    tested: bool, tiles: Extents, device: Device, tiling: Tiling
) -> tuple[Extents, bool]:
    """Return a work-group, and whether groups inside the picture skip the border tests.

    ``tested`` says whether reads of a padded input need tests, which textures do not.

    A group as wide as the picture is never inside it.  Narrow groups pay off where at least half
    of those in a row are inside (an assumption).  On CUDA a test is a predicate of the load, and
    narrow groups read partial sectors.
    """
    narrow = min(4, device.group_size)
    tested = tested and not device.stage_input and device.multiprocessors is None
    split = tested and tiles[-1] > 3 * narrow
    return group_of(tiles, device, tiling, narrow if split else None), split


def tile_space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return register tiles of every form that fits, and deeper unrolling."""
    return {
        "tile_o": divisors(shape.tiled_blocks, 4),
        "tile_h": divisors(shape.height, 8) if device.is_cpu else tile_choices(shape.height, 8),
        "tile_w": tile_choices(shape.width, most_accumulators(device)),
        "unroll_i": divisors(shape.input_lanes, 16),
    }


def split_space(device: Device) -> tuple[int, ...]:
    """Return the values of the knob ``split_i``."""
    return (1,) if device.is_cpu else (1, 2, 4, 8)


def weight_places(device: Device) -> tuple[str, ...]:
    """Return the values of the knob ``weights``."""
    return ("direct",) if device.is_cpu else WEIGHTS


def window_space(padded: bool, texture: bool, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return the values of the knobs of sliding windows that are worth trying."""
    return {
        "stage_input": (True, False) if padded and not texture else (False,),
        "split_borders": (False, True) if padded and not device.is_cpu else (False,),
    }


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of every form that fits, deeper unrolling, and work-groups."""
    return {
        **tile_space(shape, device),
        "split_i": split_space(device),
        "weights": weight_places(device),
        **window_space(shape.padded, shape.texture, device),
        **group_space(shape.outputs, shape.height, shape.width, device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    padded, texture = workload.input_facts(anchor)
    extents = workload.extents(anchor)
    source, weight = (read.source for read in workload.sch.get(anchor).reads[:2])
    scope = weight.scope()
    return Shape(
        *extents,
        padded=padded,
        texture=texture,
        weights="texture" if is_texture(scope) else "half" if is_half(scope) else "buffer",
        input_block=int(source.shape[-1]) if len(source.shape) == 5 else extents[4],
        group_blocks=int(workload.annotation(anchor, GROUP_BLOCKS) or 0),
    )


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule | None:
    """Tile, stage and vectorise by ``knobs``; return ``None`` if the knobs do not fit."""
    if knobs.split_i > 1:
        return apply_split(workload, knobs)
    sch = workload.sch
    anchor, pad = workload.anchor(NAME), workload.padding()
    shape = match(workload)
    weight_source = sch.get(anchor).reads[1].source
    texels = workload.stage_texels(anchor, 0, pad)
    weights = workload.stage_weights(anchor, 1) if knobs.weights == "direct" else None
    output = workload.merge_epilogue(anchor)
    sizes = (0, knobs.tile_o, knobs.tile_h, knobs.tile_w)
    item, inner = workload.tile(output, sizes, knobs.group)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    if knobs.split_borders:
        sch.annotate(item, PEEL_BORDERS, 1)

    *tile, i, p, q = workload.loops_below(anchor, item)
    workload.sum_whole_tiles(anchor, texels, weights)
    # The sum takes lanes of one input block at a time, whose tile can be staged as whole vectors.
    lanes, unroll_i = shape.input_lanes, knobs.unroll_i
    if texels is not None:
        # Texels are read whole, also the last one; products of its missing channels are left out.
        lanes = unroll_i = shape.input_block
    i_block, i_outer, i_inner = workload.split_channels(i, lanes, unroll_i, [p, q], tile)
    if texels is not None:
        # One row of texels serves every column of the window, unless the code grows too much.
        row = _unrolls_rows(workload, anchor, shape, knobs)
        if row:
            workload.unroll_all([q, i_outer])
        workload.place_staged(texels, p if row else q)
    elif pad is not None and knobs.stage_input:
        workload.stage_padded(pad, i_block)
    elif pad is not None:
        workload.inline(pad)
    workload.place_staged(weights, i_outer)
    if knobs.weights == "local":
        workload.stage_in_local_memory(anchor, 1, i_block)
    workload.unroll_all([i_inner])
    workload.vectorize_last(tile)
    workload.split_init(anchor, i_block, item)
    workload.vectorize_last(inner)
    if knobs.weights == "constant":
        # Weights may be computed, for example bytes minus their zero point.
        return to_constant_memory(sch, weight_source)
    return sch


def _unrolls_rows(workload: Workload, anchor: Block, shape: Shape, knobs: Knobs) -> bool:
    """Return whether the products of a row of the window are few enough to unroll.

    The row's texels are then staged at once, on a GPU in registers: 17 for 8 columns of a window of
    3 with stride 2, but 64 for one of 8 with stride 8, whose columns share none.
    """
    if shape.kernel_w * shape.input_block * knobs.vectors > UNROLLED_PRODUCTS:
        return False
    if workload.is_cpu:
        return True
    columns = columns_read(knobs.tile_w, shape.kernel_w, *window_steps(workload, anchor))
    live = live_vectors(shape, knobs, columns)
    most = most_vectors(workload.target.device, knobs.barrier_items)
    if knobs.split_i > 1:
        # Compilers read the weights of the other taps ahead, too, which groups with barriers have
        # room for only if all registers suffice.
        ahead = (shape.kernel_w - 1) * knobs.tile_o * shape.input_lanes
        most = min(most, most * 4 // 3 - ahead)
    return fits_ahead(knobs.tile_h * columns) and live <= most


def live_vectors(shape: Shape, knobs: Knobs, columns: int) -> int:
    """Estimate the vectors in registers: sums, ``columns`` texels of each row, and weights."""
    return knobs.vectors + knobs.tile_h * columns + knobs.tile_o * shape.input_block


def apply_split(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule a sum that the items of a group share."""
    sch, anchor, pad = workload.sch, workload.anchor(NAME), workload.padding()
    shape = match(workload)
    texels = workload.stage_texels(anchor, 0, pad)
    if pad is not None and texels is None:
        workload.inline(pad)
    weights = workload.stage_weights(anchor, 1)
    output = workload.merge_epilogue(anchor)
    *_, i, _p, _q = sch.get_loops(anchor)
    part, _ = sch.split(i, [knobs.split_i, None])
    partial = sch.rfactor(part, 0)
    group = _bind_output(workload, output, knobs, anchor)

    # Each part is summed in registers, then stored in local memory for the whole group.
    sch.set_scope(partial, 0, "shared")
    left = sch.cache_write(partial, 0, "local")
    sch.compute_at(left, group, preserve_unit_loops=True)
    s, n, o, h, w, lane = workload.loops_below(left, group)
    o, oi = sch.split(o, [None, knobs.tile_o])
    sch.reorder(s, o, n, oi, h, w, lane)
    sch.bind(s, "threadIdx.y")
    sch.bind(o, "threadIdx.x")
    workload.vectorize_last([n, oi, h, w, lane])
    sch.compute_at(partial, o, preserve_unit_loops=True)
    *tile, i, p, q = workload.loops_below(partial, o)
    lanes = shape.input_block
    unroll = knobs.unroll_i if texels is None else lanes
    i_block, i_outer, i_inner = workload.split_channels(i, lanes, unroll, [p, q], tile)
    row = texels is not None and _unrolls_rows(workload, partial, shape, knobs)
    if row:
        workload.unroll_all([q])
    workload.place_staged(texels, p if row else q)
    workload.place_staged(weights, i_outer)
    workload.unroll_all([i_outer, i_inner])
    workload.vectorize_last(tile)
    workload.split_init(partial, i_block, o)
    # Neighbouring items store neighbouring vectors, which avoids bank conflicts.
    tile_o = knobs.tile_o
    sch.transform_layout(
        left, ("write", 0), lambda s, n, o, h, w, c: (s, n, o % tile_o, h, w, o // tile_o, c)
    )
    return sch


def _bind_output(workload: Workload, output: Block, knobs: Knobs, total: Block) -> Loop:
    """Bind outputs to groups and to items, which add up the parts; return the loop of groups."""
    sch = workload.sch
    n, o, h, w, lane = sch.get_loops(output)
    o, ot, oi = sch.split(o, [None, knobs.group_o, knobs.tile_o])
    h, hi = sch.split(h, [None, knobs.tile_h])
    w, wi = sch.split(w, [None, knobs.tile_w])
    sch.reorder(n, o, h, w, ot, oi, hi, wi, lane)
    outer = [oi]
    if knobs.tile_h * knobs.tile_w % knobs.split_i:
        outer.append(hi)
    else:
        # Within single rows, more items than columns would sum beyond the tile.
        wi = sch.fuse(hi, wi)
    rest, item = sch.split(wi, [None, knobs.split_i])
    sch.reorder(ot, item, *outer, rest, lane)
    workload.bind_batch([n, o])
    axes = {"blockIdx.y": h, "blockIdx.x": w, "threadIdx.x": ot, "threadIdx.y": item}
    workload.bind(axes.items())
    sch.compute_at(total, rest, preserve_unit_loops=True)
    part, *sums = workload.loops_below(total, rest)
    workload.vectorize_last(sums)
    workload.split_init(total, part, rest)
    workload.unroll_all([part, *outer, rest])
    sch.vectorize(lane)
    return w
