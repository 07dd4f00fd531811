"""Convolution over the blocked layout ``NCHW{c}c``, direct, any kernel size.

Computes, with ``c`` lanes a block and ``C' = ceil(C / c)``::

    x[N, I', H, W, c]  (or plain x[N, I, H, W])     w[O', I/groups, KH, KW, c]
    y[n, o', h, w, o] = sum_{i, p, q} x[n, i // c, h*s + p*d, w*s + q*d, i % c] * w[o', i, p, q, o]

Of 8-bit numbers, ``x`` and ``w`` hold four input channels in each element (:mod:`.integers`),
``x`` has ``c / 4`` lanes, and products are dot products.

The sum runs over the real input channels only: whatever stands in the padding
lanes of ``x`` is never read.

Its knobs of sliding windows and of register tiles also serve other convolutions and pooling.
"""

from __future__ import annotations

import operator
from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te, tirx

from ..codegen.loop_peeling import PRAGMA as BORDERS
from ..devices.target import Device
from ..ir.scope import is_half, is_texture
from .common import FAMILY, Workload, to_constant_memory
from .definitions import Multiply, Sums, convolution, pad_spatial
from .family import Value, knob
from .sizes import divisors, group_sizes, input_lanes, largest_divisor, tile_choices, tile_of

NAME = "conv2d"
ORDER = 310

#: Block annotation of convolutions with several groups: blocks of output channels of each.
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
    """The convolution as TE; shapes as in the module's docstring.

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

#: The least that OpenCL 1.2 guarantees of constant memory, in bytes.
CONSTANT_BYTES = 65536
#: Where weights can be read, and how their knob is explained.
WEIGHTS = ("direct", "local", "constant")
WEIGHTS_KNOB = (
    "Where they are read: direct (as they are stored), local (copied to local memory by the whole "
    "group) or constant (from constant memory)."
)
#: Vector products in an iteration, on a CPU.  Of MobileNetV2's convolutions, 852 trials, the best
#: have up to 56; a driver's compiler takes a second and more for some hundreds.
CPU_PRODUCTS = 112
#: Vector products that may be unrolled in the innermost loop that is left.
UNROLLED_PRODUCTS = 768


@dataclass(frozen=True)
class Shape:
    """Extents of the loops, and how the input is read; also of pointwise convolutions."""

    batch: int
    #: Blocks of output channels.
    outputs: int
    height: int
    width: int
    #: Channels of a block.
    lanes: int
    #: Input channels (of a group), and the window.
    inputs: int
    kernel_h: int
    kernel_w: int
    _: KW_ONLY
    padded: bool
    texture: bool
    #: How weights are stored: ``texture``, ``buffer``, or ``half`` in a buffer.
    weights: str
    #: Lanes of a block of the input: fewer than those of the output where each holds four channels.
    input_block: int
    #: Blocks of output channels of a group, where there are several groups; 0 where there is one.
    group_blocks: int = 0

    @property
    def tiled_blocks(self) -> int:
        """Blocks of output channels that a tile divides: those of a group read one input."""
        return self.group_blocks or self.outputs

    @property
    def together(self) -> int:
        """Inputs of one block that are taken together."""
        return input_lanes(self.inputs, self.input_block)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as fp32."""
        return 4 * self.outputs * self.lanes * self.inputs * self.kernel_h * self.kernel_w

    @property
    def is_pointwise(self) -> bool:
        """True if the window is a single pixel."""
        return self.kernel_h == self.kernel_w == 1


@dataclass(frozen=True)
class RegisterTile:
    """The knobs of register tiles: what a work-item computes of a map."""

    tile_o: int = knob("Blocks of output channels that a work-item keeps in registers.")
    tile_h: int = knob("Rows of the map that it keeps in registers.")
    tile_w: int = knob("Columns of the map that it keeps in registers.")
    unroll_i: int = knob("Input channels multiplied per iteration of the innermost loop left.")


@dataclass(frozen=True)
class Knobs(RegisterTile):
    """The tile of a work-item, and where it keeps what it reads."""

    stage_input: bool = knob("Copy the padded input tile to private memory before it is used.")
    split_borders: bool = knob(
        "Compile the body twice, without tests for work-groups whose inputs are all inside."
    )
    weights: str = knob(WEIGHTS_KNOB)
    group_w: int = knob("Work-items of a work-group along the width, at most.")
    group_size: int = knob("Work-items of a work-group, at most.")


#: Also of other families.
TILE_FITS = {
    "tile_o * tile_h * tile_w vectors must fit the device's registers.": lambda k, s, d: (
        k.tile_o * k.tile_h * k.tile_w <= d.accumulators
    ),
}
TILE_IN_MAP = {
    "A tile is at most as high and as wide as the map.": lambda k, s, d: (
        k.tile_h <= s.height and k.tile_w <= s.width
    ),
}
UNROLL_DIVIDES = {
    "unroll_i must divide the input channels that are taken together.": lambda k, s, d: (
        s.together % k.unroll_i == 0
    ),
}
#: Of register tiles.
TILE_CONSTRAINTS = {
    **TILE_FITS,
    f"On a CPU, tile_o * tile_h * tile_w * unroll_i is at most {CPU_PRODUCTS}.": lambda k, s, d: (
        not d.is_cpu or k.tile_o * k.tile_h * k.tile_w * k.unroll_i <= CPU_PRODUCTS
    ),
    "tile_o must divide the output blocks of a group and tile_h the rows: "
    "a partial tile there is a test in the hot loop.": lambda k, s, d: (
        s.tiled_blocks % k.tile_o == 0 and s.height % k.tile_h == 0
    ),
    "tile_w is at most the width.": lambda k, s, d: k.tile_w <= s.width,
    **UNROLL_DIVIDES,
}
#: Of where weights are read.
WEIGHT_CONSTRAINTS = {
    "weights is direct, local or constant, and on a CPU direct.": lambda k, s, d: (
        k.weights in weight_places(d)
    ),
    "Constant memory holds plain fp32 buffers of at most 64 KiB.": lambda k, s, d: (
        k.weights != "constant" or (s.weights == "buffer" and s.weight_bytes <= CONSTANT_BYTES)
    ),
}
#: Of families with the knobs ``stage_input``, ``split_borders``, ``group_w`` and ``group_size``.
WINDOW_CONSTRAINTS = {
    "split_borders is for GPUs, and inputs that are padded and not copied first.": lambda k, s, d: (
        not k.split_borders or (s.padded and not k.stage_input and not d.is_cpu)
    ),
    "group_w is at most group_size, and that at most what the device accepts.": lambda k, s, d: (
        k.group_w <= k.group_size <= d.max_group_size
    ),
}
CONSTRAINTS = {**TILE_CONSTRAINTS, **WEIGHT_CONSTRAINTS, **WINDOW_CONSTRAINTS}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Wide tiles, then more rows or output blocks while registers are free."""
    tile_o, tile_h, tile_w = (_cpu_tile if device.is_cpu else _gpu_tile)(shape, device)
    # Unrolling pays where little else is: in narrow maps, and where registers are few.
    deep = 4 if not device.is_cpu or shape.width <= 7 else 1
    unroll_i = largest_divisor(shape.together, deep)
    group_w, split = group_form(shape.padded, shape.width, tile_w, device)
    stage, size = device.stage_input, device.group_size
    return Knobs(tile_o, tile_h, tile_w, unroll_i, stage, split, "direct", group_w, size)


def _cpu_tile(shape: Shape, device: Device) -> tuple[int, int, int]:
    """Two blocks by some seven columns: half the registers, so that none of the rest spills.

    More accumulators need fewer loads for each product, but what a compiler adds to them
    does not fit any more; see the sweep in ``docs/performance.md``.
    """
    tile_o = largest_divisor(shape.tiled_blocks, 2)
    tile_w = tile_of(shape.width, 8 if tile_o > 1 else device.accumulators // 2)
    # An input that is four channels of 8 bits needs a register in all lanes.
    dots = shape.input_block < shape.lanes
    most = 16 if tile_o > 1 or dots else device.accumulators
    rest = max(1, most // (tile_o * tile_w))
    return tile_o, largest_divisor(shape.height, rest) if shape.is_pointwise else 1, tile_w


def _gpu_tile(shape: Shape, device: Device) -> tuple[int, int, int]:
    tile_w = tile_of(shape.width, max(1, device.accumulators // 2))
    rest = max(1, device.accumulators // tile_w)
    # Narrow maps leave registers free: use them for more rows of a pointwise convolution, which
    # share its weights, else for more output blocks, which share its inputs.
    tile_h = largest_divisor(shape.height, rest) if shape.is_pointwise else 1
    return largest_divisor(shape.tiled_blocks, max(1, min(2, rest // tile_h))), tile_h, tile_w


def group_form(padded: bool, width: int, tile_w: int, device: Device) -> tuple[int, bool]:
    """Items of a group along the width, and whether groups inside the picture go without tests.

    A group as wide as the picture is never inside it.  Narrow ones are worth it where at least
    half of those in a row are (an assumption).
    """
    narrow = min(4, device.group_size)
    split = padded and not device.stage_input and width > 3 * narrow * tile_w
    return (narrow if split else device.group_size), split


def tile_space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Register tiles of every form that fits, and deeper unrolling."""
    return {
        "tile_o": divisors(shape.tiled_blocks, 4),
        "tile_h": divisors(shape.height, 8),
        "tile_w": tile_choices(shape.width, device.accumulators),
        "unroll_i": divisors(shape.together, 16),
    }


def weight_places(device: Device) -> tuple[str, ...]:
    """Values of the knob ``weights``."""
    return ("direct",) if device.is_cpu else WEIGHTS


def window_space(padded: bool, texture: bool, device: Device) -> dict[str, tuple[Value, ...]]:
    """Values of the knobs of sliding windows that are worth trying."""
    usual = device.group_size
    return {
        "stage_input": (True, False) if padded and not texture else (False,),
        "split_borders": (False, True) if padded and not device.is_cpu else (False,),
        "group_w": tuple(sorted({min(4, usual), min(16, usual), usual})),
        "group_size": group_sizes(device),
    }


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of every form that fits, deeper unrolling, and work-groups around the preset's."""
    return {
        **tile_space(shape, device),
        "weights": weight_places(device),
        **window_space(shape.padded, shape.texture, device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """The shape of a function whose anchor is this family's block."""
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
    """Tile, stage and vectorise by ``knobs``; nothing where these do not fit."""
    sch = workload.sch
    anchor, pad = workload.anchor(NAME), workload.padding()
    shape = match(workload)
    weight_source = sch.get(anchor).reads[1].source
    texels = workload.stage_texels(anchor, 0, pad)
    weights = workload.stage_weights(anchor, 1) if knobs.weights == "direct" else None
    output = workload.merge_epilogue(anchor)
    sizes = (0, knobs.tile_o, knobs.tile_h, knobs.tile_w)
    item, inner = workload.tile(output, sizes, knobs.group_size, knobs.group_w)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    if knobs.split_borders:
        sch.annotate(item, BORDERS, 1)

    *tile, i, p, q = workload.loops_below(anchor, item)
    # Lanes of one input block stay together, so that its tile can be staged as whole vectors.
    lanes, unroll_i = shape.together, knobs.unroll_i
    if texels is not None:
        # Whole texels, also the last one: products of channels that it lacks are left out.
        lanes = unroll_i = shape.input_block
    i_block, i_outer, i_inner = workload.split_channels(i, lanes, unroll_i, [p, q], tile)
    if texels is not None:
        # A row of texels serves every column of the kernel, if the code does not grow too much.
        columns = int(sch.get(q).extent)
        row = columns * lanes * knobs.tile_o * knobs.tile_h * knobs.tile_w <= UNROLLED_PRODUCTS
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
        # They may be computed: bytes less their zero point, for example.
        return to_constant_memory(sch, weight_source)
    return sch
