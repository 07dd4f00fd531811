"""Convolutions and matrix products as one product of padded matrices, for CUDA.

Computes, with all extents padded to whole tiles (:func:`padded`)::

    left[.., M', K']    right[.., K', N']
    product[.., m, n] = sum_k left[.., m, k] * right[.., k, n]

*Convolution* (implicit GEMM): row ``m`` is a pixel of the output, column ``n`` an output
channel, and ``k`` runs over taps, blocks of input channels, and lanes; ``left`` is never in
memory as a whole, but a tile at a time is gathered by the group that multiplies it::

    x[N, I', H, W, c]        left[(n, h, w), (p, q, i', i)] = x[n, i', h*s + p*d, w*s + q*d, i]
    w[K', N']                y[n, o', h, w, o] = product[(n, h, w), (o', o)]

*Matrix product*: ``left`` and ``right`` are padded copies::

    x[.., M, K]   w[.., K, N]    y[.., m, n] = product[.., m, n]

With ``half``, both factors are rounded to 16 bits and their products summed in fp32.  That
is what tensor cores do, and exact for tensors that are stored in 16 bits.

:mod:`.gemm_tensor` and :mod:`.gemm_simt` schedule the products; what both do stands here.  Both
copy tiles of the factors to shared memory, 16 bytes an item, ``stages`` of them ahead of the
products: with ``cp.async`` where the GPU has it.  Where there are few tiles and each is deep,
``splits`` work-groups share one (*split-K*); a second kernel adds up what they leave in memory::

    part[s, .., m, n] = sum_k left[.., m, s * K' / splits + k] * right[.., s * K' / splits + k, n]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import gcd, prod

from tvm import te, tirx

from ..devices.target import Device
from .common import FAMILY, ROLE, Block, Loop, Workload
from .data_parallel import Axis, regroup
from .definitions import batch_shape, or_zero, output_extent, padded_matrix, widened
from .sizes import divisors

NAME = "gemm"
LEFT, RIGHT, OUTPUT = "gemm_left", "gemm_right", "gemm_output"

#: To multiples of these are rows and columns padded.
UNITS = (128, 64, 32, 16)
#: To multiples of this is the depth padded.
DEPTH = 32
#: What the padded matrices must hold, at least, besides their padding: in fp32, and on tensor
#: cores, which multiply 16 times as much in a cycle (assumptions).
FULL, FULL_HALF = 0.6, 0.25
#: Multiply-adds below which a launch takes longer than the product (an assumption).
WORK = 1 << 20
#: Work-groups that share a tile, at most.
SPLITS = 16
#: Cycles until a tile is in shared memory, of a step's barrier, of a copy's instructions, of those
#: for a result, and of a second kernel (assumptions).
LATENCY, BARRIER, COPY, RESULT, LAUNCH = 600, 50, 10, 6, 3000
#: Bytes that a multiprocessor is sent in a cycle, and reads of shared memory (an A100's).
SENT, READ = 32, 128


# -- what it computes ---------------------------------------------------------------------


def padded(extent: int) -> int:
    """Rows or columns as whole tiles: the largest unit that adds little, 15 % at most.

    Where every unit adds more (49 rows are 64), the fewest.
    """
    least = max(1.15 * extent, -(-extent // UNITS[-1]) * UNITS[-1])
    return next(whole for u in UNITS if (whole := -(-extent // u) * u) <= least)


def padded_depth(extent: int) -> int:
    """The depth as whole tiles."""
    return -(-extent // DEPTH) * DEPTH


def pays(
    rows: int, columns: int, depth: int, batch: int = 1, *, whole: int = 0, full: float = FULL
) -> bool:
    """True if enough of padded matrices is the product's own, and a batch of them is large.

    At least ``full`` of the multiply-adds, and :data:`WORK` of them.  ``whole`` is the depth with
    lanes that channels leave empty.
    """
    own = rows * columns * depth
    padding = padded(rows) * padded(columns) * padded_depth(whole or depth)
    return own >= full * padding and batch * own >= WORK


def compute_conv(
    x: te.Tensor,
    w: te.Tensor,
    *,
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    half: bool,
    zero_lanes: bool,
) -> te.Tensor:
    """The convolution of ``channels`` to ``outputs``; shapes as in the module's docstring.

    ``zero_lanes`` says that lanes of ``x`` behind the last channel are zeros.
    """
    batch, blocks, height, width, lanes = (int(d) for d in x.shape)
    depth = int(w.shape[0])
    top, left, bottom, right = padding
    along = (height, width), kernel, strides, dilation, padding[:2], padding[2:]
    out_h, out_w = map(output_extent, *along)
    pixels = batch * out_h * out_w
    taps = kernel[0] * kernel[1]

    def gather(m, k):  # type: ignore[no-untyped-def]
        group, lane = tirx.floordiv(k, lanes), tirx.floormod(k, lanes)
        tap, block = tirx.floordiv(group, blocks), tirx.floormod(group, blocks)
        p, q = tirx.floordiv(tap, kernel[1]), tirx.floormod(tap, kernel[1])
        image, pixel = tirx.floordiv(m, out_h * out_w), tirx.floormod(m, out_h * out_w)
        row = tirx.floordiv(pixel, out_w) * strides[0] + p * dilation[0] - top
        column = tirx.floormod(pixel, out_w) * strides[1] + q * dilation[1] - left
        tests = []
        if padded(pixels) > pixels:
            tests.append(m < pixels)
        if depth > taps * blocks * lanes:
            tests.append(group < taps * blocks)
        if channels % lanes and not zero_lanes:
            # Lanes of padding hold anything, also NaN, which no zero weight undoes.
            tests.append(block * lanes + lane < channels)
        if top or bottom:
            tests += [row >= 0, row < height]
        if left or right:
            tests += [column >= 0, column < width]
        return or_zero(tests, _rounded(x(image, block, row, column, lane), half))

    rows = te.compute((padded(pixels), depth), gather, name=LEFT, attrs={ROLE: LEFT})
    weights = te.compute(w.shape, lambda *i: _rounded(w(*i), half), name=RIGHT, attrs={ROLE: RIGHT})
    product = _product(rows, weights, ())

    def unpack(n, oo, h, v, o):  # type: ignore[no-untyped-def]
        return product[(n * out_h + h) * out_w + v, oo * lanes + o]

    shape = (batch, -(-outputs // lanes), out_h, out_w, lanes)
    return widened(te.compute(shape, unpack, name=OUTPUT, attrs={ROLE: OUTPUT}), x.dtype)


def compute_matmul(x: te.Tensor, w: te.Tensor, units: int, *, half: bool) -> te.Tensor:
    """``x[.., M, K] @ w[.., K, N]``, the first ``units`` columns of it.

    NumPy's broadcasting of the leading axes.  Weights may have their padding already.
    """
    rows, depth = (int(d) for d in x.shape[-2:])
    lead = batch_shape(x, w)
    whole = padded_depth(depth)
    rounded = partial(_rounded, half=half)
    left = padded_matrix(x, lead, (padded(rows), whole), LEFT, rounded)
    right = padded_matrix(w, lead, (whole, padded(units)), RIGHT, rounded)
    product = _product(left, right, lead)
    return te.compute((*lead, rows, units), product, name=OUTPUT, attrs={ROLE: OUTPUT})


def _product(left: te.Tensor, right: te.Tensor, lead: Sequence[int]) -> te.Tensor:
    k = te.reduce_axis((0, left.shape[-1]), name="k")

    def body(*index):  # type: ignore[no-untyped-def]
        *batch, m, n = index
        factors = left(*batch, m, k), right(*batch, k, n)
        return te.sum(_widened(factors[0]) * _widened(factors[1]), axis=k)

    shape = (*lead, left.shape[-2], right.shape[-1])
    return te.compute(shape, body, name="gemm", attrs={FAMILY: NAME})


def _rounded(value: tirx.Expr, half: bool) -> tirx.Expr:
    return tirx.Cast("float16", value) if half and str(value.ty.dtype) == "float32" else value


def _widened(value: tirx.Expr) -> tirx.Expr:
    return value if str(value.ty.dtype) == "float32" else tirx.Cast("float32", value)


# -- facts that the knobs of both families depend on -------------------------------------


@dataclass(frozen=True)
class Shape:
    """Extents after padding, and how the factors can be read."""

    batch: int
    rows: int
    columns: int
    depth: int
    #: Elements that are read at once of each factor.
    left_lanes: int
    right_lanes: int
    _: KW_ONLY
    #: Whether factors have 16 bits.
    half: bool


SPLITS_KNOB = "Work-groups that share the depth of a tile; a second kernel adds up their sums."
#: Of every family of these products.
DEPTH_FITS = {
    f"splits is at most {SPLITS}, and divides the steps along the depth.": lambda k, s, d: (
        k.splits <= SPLITS and s.depth % (k.splits * k.tile_k) == 0
    ),
    "stages is at most 4, and at most the steps along the depth of a work-group.": lambda k, s, d: (
        k.stages <= 4 and k.stages <= s.depth // k.splits // k.tile_k
    ),
}


def shared_limit(device: Device) -> int:
    """Shared memory of a work-group on CUDA; 0 on other targets."""
    return 0 if device.multiprocessors is None else device.multiprocessors.shared_bytes


def stage_counts(device: Device) -> range:
    """Stages to try, the best first: three where copies are asynchronous, else two.

    Three hide some 600 cycles of memory behind two steps of products (an assumption).
    """
    gpu = device.multiprocessors
    return range(3 if gpu is not None and gpu.async_copies else 2, 0, -1)


def copies_evenly(shape: Shape, rows: int, columns: int, depth: int, items: int) -> bool:
    """True if every item of a group copies as many vectors of a tile as the others."""
    left = rows * depth % (items * shape.left_lanes)
    return not left and not depth * columns % (items * shape.right_lanes)


def groups(shape: Shape, rows: int, columns: int) -> int:
    """Work-groups of a launch, of so many rows and columns each."""
    return shape.batch * (shape.rows // rows) * (shape.columns // columns)


def split_counts(shape: Shape) -> tuple[int, ...]:
    """Work-groups that may share a tile."""
    return divisors(shape.depth // DEPTH, SPLITS)


@dataclass(frozen=True)
class Tile:
    """The part of a product that a work-group has, for an estimate of its time."""

    rows: int
    columns: int
    #: Of a step.
    depth: int
    items: int
    stages: int
    splits: int
    #: Cycles in which a warp multiplies its part in a step, alone.
    alone: float
    #: Bytes of shared memory that are read in a step.
    read: float
    #: Products that a multiprocessor adds up in a cycle.
    rate: float


def cycles(tile: Tile, shape: Shape, device: Device) -> float:
    """Cycles that a multiprocessor takes for its share of a product, by a simple count.

    Its work-groups go on together.  A step takes them what is slowest: to wait for what was asked
    for ``stages - 1`` steps ago, one's own instructions, or what all of them are sent, read of
    shared memory, and multiply.
    """
    assert device.multiprocessors is not None
    count, outputs = device.multiprocessors.count, tile.rows * tile.columns
    together = -(-groups(shape, tile.rows, tile.columns) * tile.splits // count)
    copied = (2 if shape.half else 4) * (tile.rows + tile.columns) * tile.depth
    own = BARRIER + tile.alone + COPY * copied / 16 / tile.items
    shared = max(copied / SENT, tile.read / READ, outputs * tile.depth / tile.rate)
    steps, ahead = shape.depth // tile.depth // tile.splits, tile.stages - 1
    if ahead == 0:
        own += LATENCY
    elif steps > ahead:
        own = max(own, LATENCY / ahead)
    whole = steps * max(own, together * shared) + RESULT * outputs / tile.items
    whole += LATENCY if ahead else 0
    if tile.splits == 1:
        return whole
    # Partial sums are written, and read again.
    parts = 2 * 4 * tile.splits * shape.batch * shape.rows * shape.columns
    return whole + LAUNCH + parts / SENT / count


def shape_of(workload: Workload) -> Shape:
    """The shape of a function whose anchor is a product."""
    anchor = workload.anchor(NAME)
    *batch, rows, columns, depth = workload.extents(anchor)
    half = str(workload.sch.get(anchor).reads[-1].source.dtype) == "float16"
    lanes = [_lanes(workload, factor, half) for factor in (LEFT, RIGHT)]
    return Shape(prod(batch), rows, columns, depth, *lanes, half=half)


def _lanes(workload: Workload, factor: str, half: bool) -> int:
    """Elements of a factor in 16 bytes, or fewer where rows in memory are no multiple of these."""
    (block,) = workload.with_role(factor)
    source = workload.sch.get(block).reads[0].source
    return gcd(int(source.shape[-1]), 8 if half else 4)


# -- how both are scheduled ---------------------------------------------------------------


def flatten_output(workload: Workload) -> tuple[Block, Block]:
    """Make what follows the product one block with an axis for its rows and one for its columns.

    Returns the block of products, and this one, which writes the function's result.
    """
    sch = workload.sch
    anchor = workload.anchor(NAME)
    before = workload.before(anchor)
    workload.inline(*(b for b in before if workload.annotation(b, ROLE) not in (LEFT, RIGHT)))
    pixels = is_convolution(workload)
    *inlined, output = workload.after(anchor)
    workload.inline(*inlined)
    if pixels:
        axes = [Axis(v.var, int(v.dom.extent), i) for i, v in enumerate(sch.get(output).iter_vars)]
        regroup(sch, output, axes, [[0, 2, 3], [1, 4]])
    return anchor, output


def is_convolution(workload: Workload) -> bool:
    """True if rows are pixels, and the result is in blocks of channels."""
    (output,) = workload.with_role(OUTPUT)
    axes = len(workload.sch.get(output).iter_vars)
    return axes == 5 and len(workload.extents(workload.anchor(NAME))) == 3


def copy_tile(
    workload: Workload, block: Block, above: Loop, threads: Mapping[str, int], lanes: int
) -> None:
    """Have all items of a group copy a tile together, a vector each, side by side."""
    sch = workload.sch
    # Before it is placed: only then does it cover what the items of the group read together.
    sch.set_scope(block, 0, "shared.dyn")
    sch.compute_at(block, above)
    i, j = workload.loops_below(block, above)[-2:]
    # Before both become one: only so do all numbers of a vector have indices that differ in one
    # term, whatever the tile.
    j, vector = sch.split(j, [None, lanes])
    _, *parts = sch.split(sch.fuse(i, j), [None, *threads.values()])
    workload.bind(zip(threads, parts, strict=True))
    sch.vectorize(vector)


def store_output(
    workload: Workload,
    output: Block,
    above: Loop,
    threads: Mapping[str, int],
    lanes: int,
    pixels: bool,
) -> None:
    """Have all items of a group write a tile of results, in the order in which they are in memory.

    ``pixels`` says that those of a block of channels are: else columns.
    """
    sch = workload.sch
    m, n = workload.loops_below(output, above)[-2:]
    n, vector = sch.split(n, [None, lanes])
    if pixels:
        sch.reorder(n, m, vector)
    _, *parts = sch.split(sch.fuse(n, m) if pixels else sch.fuse(m, n), [None, *threads.values()])
    workload.bind(zip(threads, parts, strict=True))
    sch.vectorize(vector)


def split_depth(workload: Workload, anchor: Block, splits: int) -> Block:
    """Have the product's block add up partial sums; return the block that makes those.

    Which one is of a batch comes first among its axes.
    """
    if splits == 1:
        return anchor
    sch = workload.sch
    part, _ = sch.split(sch.get_loops(anchor)[-1], [splits, None])
    partial = sch.rfactor(part, 0)
    *rest, s, k = sch.get_loops(partial)
    sch.reorder(s, *rest, k)
    return partial


def add_parts(workload: Workload, whole: Block, output: Block, lanes: int, pixels: bool) -> None:
    """Make the second kernel of the block that adds up, and of what follows it."""
    sch = workload.sch
    *batch, m, n = sch.get_loops(output)
    n, vector = sch.split(n, [None, lanes])
    order = [n, m] if pixels else [m, n]
    sch.reorder(*batch, *order, vector)
    item = workload.bind_outer([*batch, *order])
    sch.set_scope(whole, 0, "local")
    sch.compute_at(whole, item, preserve_unit_loops=True)
    spatial, reduced = workload.by_kind(whole, workload.loops_below(whole, item))
    sch.reorder(*reduced, *spatial)
    workload.vectorize_last([*reduced, *spatial])
    workload.split_init(whole, reduced[0], item)
    sch.vectorize(vector)


def pipeline_copies(workload: Workload, loop: Loop, stages: int) -> None:
    """Copy the tiles of ``stages - 1`` later steps while one is multiplied."""
    if stages == 1:
        return
    sch = workload.sch
    gpu = workload.target.device.multiprocessors
    sch.annotate(loop, "software_pipeline_stage", [0, 0, stages - 1])
    sch.annotate(loop, "software_pipeline_order", [0, 1, 2])
    if gpu is not None and gpu.async_copies:
        sch.annotate(loop, "software_pipeline_async_stages", [0])
