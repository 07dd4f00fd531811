"""Depthwise convolution (one filter for each channel) over the blocked layout.

Computes::

    x[N, C', H, W, c]   w[C', KH, KW, c]
    y[n, k', h, w, k] = sum_{p, q} x[n, k', h*s + p*d, w*s + q*d, k] * w[k', p, q, k]

Lanes never mix, so the padding lanes of ``x`` only reach padding lanes of ``y``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te

from ..devices.target import Device
from ..ir.annotations import PEEL_BORDERS
from .common import FAMILY, Workload
from .conv2d import TILE_IN_MAP, WINDOW_CONSTRAINTS, group_form, most_accumulators, window_space
from .definitions import Sums, pad_spatial, term, widened, windows_in
from .family import Constraints, Value, knob
from .registers import fits_ahead
from .sizes import divisors, tile_choices, tile_of
from .work_groups import Window, WorkGroup, group_space, tile_form

NAME = "depthwise"
ORDER = 320

#: The block annotation with strides and dilation, each along height and width; shared by pooling.
STEPS = "tvmflow.steps"

#: Most taps of a window that is unrolled.
MOST_TAPS = 25
#: Largest result, in vectors, that a CPU computes in tiles as high as the map: few work-groups.
CPU_FEW = 512


def compute(
    x: te.Tensor,
    w: te.Tensor,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    sums: Sums = None,
) -> te.Tensor:
    """Return the convolution as TE; shapes are in the module's docstring."""
    blocks, *kernel, block = (int(d) for d in w.shape)
    padded = pad_spatial(x, padding)
    p = te.reduce_axis((0, kernel[0]), name="p")
    q = te.reduce_axis((0, kernel[1]), name="q")

    def body(n, kk, h, v, k):  # type: ignore[no-untyped-def]
        row, column = h * strides[0] + p * dilation[0], v * strides[1] + q * dilation[1]
        value, weight = padded[n, kk, row, column, k], w[kk, p, q, k]
        return te.sum(term(value, weight, sums), axis=[p, q])

    shape = (x.shape[0], blocks, *windows_in(padded, kernel, strides, dilation), block)
    attrs = {FAMILY: NAME, STEPS: steps_text(strides, dilation)}
    return widened(te.compute(shape, body, name="depthwise", attrs=attrs), x.dtype)


def steps_text(strides: tuple[int, int], dilation: tuple[int, int]) -> str:
    """Return the value of the annotation :data:`STEPS`."""
    return ",".join(map(str, (*strides, *dilation)))


@dataclass(frozen=True)
class Shape:
    """Extents of the loops, with channels in blocks, and of the window."""

    batch: int
    blocks: int
    height: int
    width: int
    lanes: int
    kernel_h: int
    kernel_w: int
    _: KW_ONLY
    stride_h: int
    stride_w: int
    #: Rows and columns that a window spans, with its dilation.
    span_h: int
    span_w: int
    padded: bool
    texture: bool

    def row_inputs(self, tile_w: int) -> int:
        """Return the number of vectors that a tile reads of a row."""
        return (tile_w - 1) * self.stride_w + self.span_w

    def inputs(self, tile_h: int, tile_w: int) -> int:
        """Return the number of vectors that a tile reads."""
        return ((tile_h - 1) * self.stride_h + self.span_h) * self.row_inputs(tile_w)

    @property
    def is_small(self) -> bool:
        """Return whether the window is unrolled whole; a large one would only grow the code."""
        return self.kernel_h * self.kernel_w <= MOST_TAPS


@dataclass(frozen=True)
class Knobs(WorkGroup):
    """Knobs of a work-item's tile, computed one row of one block of channels at a time."""

    tile_o: int = knob("Blocks of channels of the tile, computed one after the other.")
    tile_h: int = knob("Rows of the tile, computed one after the other from the same input.")
    tile_w: int = knob("Columns of the tile, all in registers at once.")
    reuse_rows: bool = knob(
        "Read each row of the input once, into registers, for all rows of the tile; without it, "
        "once for each of them."
    )
    stage_input: bool = knob("Copy the padded input tile to private memory before it is used.")
    split_borders: bool = knob(
        "Compile the body twice, without tests for work-groups whose inputs are all inside."
    )


CONSTRAINTS: Constraints = {
    "tile_w vectors must fit the device's registers.": lambda k, s, d: (
        k.tile_w <= most_accumulators(d)
    ),
    "tile_o must divide the blocks of channels, and is 1 on a CPU.": lambda k, s, d: (
        s.blocks % k.tile_o == 0 and (k.tile_o == 1 or not d.is_cpu)
    ),
    **TILE_IN_MAP,
    "reuse_rows is for GPUs, tiles of several rows, windows of at most 25 taps, and inputs "
    "of at most three vectors for each accumulator.": lambda k, s, d: (
        not k.reuse_rows
        or (
            not d.is_cpu
            and k.tile_h > 1
            and s.is_small
            and s.inputs(k.tile_h, k.tile_w) <= 3 * d.accumulators
        )
    ),
    **WINDOW_CONSTRAINTS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return tall tiles, which read each input row once; on CUDA tiles of at most two rows."""
    return (_cpu_knobs if device.is_cpu else _gpu_knobs)(shape, device)


def _cpu_knobs(shape: Shape, device: Device) -> Knobs:
    """Return tiles that fill half the registers; copy the input if all windows overlap.

    With strides, inputs are read about twice: testing each read costs no more than a copy, and a
    copy of 29 x 29 vectors does not fit the first-level cache.  Windows that do not overlap read
    so little for each result that whole rows are best.
    """
    overlaps = shape.stride_h == shape.stride_w == 1
    disjoint = shape.stride_h >= shape.span_h and shape.stride_w >= shape.span_w
    rows, columns = 14, 16 if disjoint else device.accumulators // (2 if overlaps else 4)
    if shape.batch * shape.blocks * shape.height * shape.width <= CPU_FEW:
        rows, columns = shape.height, device.accumulators
    tile = 1, tile_of(shape.height, rows), tile_of(shape.width, max(1, columns))
    stage = overlaps and device.stage_input
    return Knobs(1, 1, 1, *tile, reuse_rows=False, stage_input=stage, split_borders=False)


def _gpu_knobs(shape: Shape, device: Device) -> Knobs:
    if device.multiprocessors is not None:
        # On CUDA a warp reads whole sectors: neighbouring items have neighbouring columns.
        tile_h, tile_w = min(2, shape.height), 1
    else:
        window = shape.kernel_h, shape.kernel_w, shape.stride_w
        form = Window(shape.height, shape.width, *window)
        tile_h, tile_w = tile_form(form, device.depthwise.vectors)
    reuse = tile_h > 1 and shape.is_small
    reuse = reuse and shape.inputs(tile_h, tile_w) <= 2 * device.accumulators
    tile_h = tile_h if reuse or device.multiprocessors is None else 1
    tiles = shape.batch * shape.blocks, -(-shape.height // tile_h), -(-shape.width // tile_w)
    group, split = group_form(shape.padded and not shape.texture, tiles, device, device.depthwise)
    return Knobs(*group, 1, tile_h, tile_w, reuse, stage_input=False, split_borders=split)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of any form, with and without a copy of the input."""
    return {
        "tile_o": (1,) if device.is_cpu else divisors(shape.blocks, 4),
        "tile_h": tile_choices(shape.height, 28),
        "tile_w": tile_choices(shape.width, most_accumulators(device)),
        "reuse_rows": (False,) if device.is_cpu else (False, True),
        **window_space(shape.padded, shape.texture, device),
        **group_space(shape.blocks, shape.height, shape.width, device),
    }


def match(workload: Workload, family: str = NAME) -> Shape:
    """Return the shape of a function whose anchor is a family's block."""
    anchor = workload.anchor(family)
    padded, texture = workload.input_facts(anchor)
    *_, kernel_h, kernel_w = extents = workload.extents(anchor)
    steps = str(workload.annotation(anchor, STEPS)).split(",")
    stride_h, stride_w, dilation_h, dilation_w = map(int, steps)
    return Shape(
        *extents,
        stride_h=stride_h,
        stride_w=stride_w,
        span_h=dilation_h * (kernel_h - 1) + 1,
        span_w=dilation_w * (kernel_w - 1) + 1,
        padded=padded,
        texture=texture,
    )


def apply(workload: Workload, knobs: Knobs, family: str = NAME) -> s_tir.Schedule:
    """Schedule a lane-wise sliding window by ``knobs``, also for pooling."""
    sch = workload.sch
    anchor, pad = workload.anchor(family), workload.padding()
    shape = match(workload, family)
    texels = workload.stage_texels(anchor, 0, pad)
    has_weights = len(sch.get(anchor).reads) > 1
    weights = workload.stage_weights(anchor, 1) if has_weights else None
    output = workload.merge_epilogue(anchor)
    sizes = (0, knobs.tile_o if knobs.tile_o > 1 else 0, knobs.tile_h, knobs.tile_w)
    item, (*blocks, hi, wi, lane) = workload.tile(output, sizes, knobs.group)
    rows = blocks[0] if blocks else item
    workload.unroll_all(blocks)
    sch.compute_at(anchor, hi, preserve_unit_loops=True)
    if knobs.split_borders:
        sch.annotate(item, PEEL_BORDERS, 1)
    if pad is not None and texels is None:
        if knobs.stage_input:
            sch.vectorize(workload.compute_in_registers(pad, rows)[-1])
        else:
            workload.inline(pad)
    workload.sum_whole_tiles(anchor, texels, weights, weighted=has_weights)
    *tile, p, q = workload.loops_below(anchor, hi)
    sch.reorder(p, q, *tile)
    # Rows that share registers are unrolled: a loop cannot index registers.
    reuse = knobs.reuse_rows and texels is not None
    if reuse:
        sch.unroll(hi)
    staged = texels is not None and not workload.is_cpu
    row = shape.row_inputs(knobs.tile_w) + shape.kernel_w * has_weights
    # The rows of a window stay a loop if all their texels, read ahead, would not fit the registers.
    whole = shape.is_small and (reuse or not staged or fits_ahead(row * shape.kernel_h))
    if whole or (staged and fits_ahead(row)):
        # One row of texels serves every column of a window that is unrolled.
        workload.unroll_all([p, q] if whole else [q])
        workload.place_staged(texels, rows if reuse else p)
    else:
        workload.place_staged(texels, q)
    workload.place_staged(weights, rows if reuse else q)
    workload.vectorize_last(tile)
    workload.split_init(anchor, p, hi)
    workload.vectorize_last([wi, lane])
    return sch
