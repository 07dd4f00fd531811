"""Convolutions and matrix products as one product of padded matrices, for CUDA.

Computes, with all extents padded to whole tiles (:func:`padded`)::

    left[.., M', K']    right[.., K', N']
    product[.., m, n] = sum_k left[.., m, k] * right[.., k, n]

*Convolution* (implicit GEMM): row ``m`` is a pixel of the output, column ``n`` an output
channel, and ``k`` runs over taps, blocks of input channels, and lanes.  ``left`` is never in
memory as a whole: the group that multiplies a tile of it gathers that tile::

    x[N, I', H, W, c]        left[(n, h, w), (p, q, i', i)] = x[n, i', h*s + p*d, w*s + q*d, i]
    w[K', N']                y[n, o', h, w, o] = product[(n, h, w), (o', o)]

*Matrix product*: ``left`` and ``right`` are padded copies::

    x[.., M, K]   w[.., K, N]    y[.., m, n] = product[.., m, n]

With ``half``, both factors are rounded to 16 bits and their products are summed in fp32, as tensor
cores do; for tensors that are stored in 16 bits this is exact.

:mod:`.gemm_tensor` and :mod:`.gemm_simt` schedule the products and share this file.  Both
copy tiles of the factors to shared memory, 16 bytes an item, ``stages`` tiles ahead of the
products: with ``cp.async`` if the GPU has it.  If there are few tiles and each is deep,
``splits`` work-groups share one (*split-K*); a second kernel adds up their partial products::

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

#: Rows and columns are padded to a multiple of one of these.
UNITS = (128, 64, 32, 16)
#: The depth is padded to a multiple of this.
DEPTH = 32
#: Least share of the padded matrices that is not padding: in fp32, and on tensor cores, which
#: multiply 16 times as much in a cycle (assumptions).
FULL, FULL_HALF = 0.6, 0.25
#: Multiply-adds below which a launch takes longer than the product (an assumption).
WORK = 1 << 20
#: Most work-groups that share a tile.
SPLITS = 16
#: Cycles until a tile is in shared memory, of a step's barrier, of a copy's instructions, of
#: those for a result, and of a second kernel (assumptions).
LATENCY, BARRIER, COPY, RESULT, LAUNCH = 600, 50, 10, 6, 3000
#: Bytes that a multiprocessor receives per cycle, and reads from shared memory (an A100's).
SENT, READ = 32, 128


# -- what it computes ---------------------------------------------------------------------


def padded(extent: int) -> int:
    """Return rows or columns in whole tiles of the largest unit that adds 15 % at most.

    If every unit adds more (49 rows are 64), return the fewest.
    """
    least = max(1.15 * extent, -(-extent // UNITS[-1]) * UNITS[-1])
    return next(whole for u in UNITS if (whole := -(-extent // u) * u) <= least)


def padded_depth(extent: int) -> int:
    """Return the depth in whole tiles."""
    return -(-extent // DEPTH) * DEPTH


def pays(
    rows: int, columns: int, depth: int, batch: int = 1, *, whole: int = 0, full: float = FULL
) -> bool:
    """Return whether padded matrices are full enough, and their batch large enough.

    At least ``full`` of the multiply-adds must not be padding, and they must be at least
    :data:`WORK`.  ``whole`` is the depth including the lanes that channels leave empty.
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
    """Return the convolution of ``channels`` to ``outputs``; shapes are in the module's docstring.

    ``zero_lanes`` says that lanes of ``x`` after the last channel are zeros.
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
            # Padding lanes may hold anything, also NaN, which a zero weight does not cancel.
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
    """Return ``x[.., M, K] @ w[.., K, N]``, the first ``units`` columns of it.

    The leading axes broadcast as in NumPy.  Weights may be padded already.
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
    """Extents after padding, and the forms in which the factors can be read."""

    batch: int
    rows: int
    columns: int
    depth: int
    #: Elements of each factor that are read at once.
    left_lanes: int
    right_lanes: int
    _: KW_ONLY
    #: Whether the factors have 16 bits.
    half: bool


SPLITS_KNOB = "Work-groups that share the depth of a tile; a second kernel adds up their sums."
#: Constraints shared by all families of these products.
DEPTH_FITS = {
    f"splits is at most {SPLITS}, and divides the steps along the depth.": lambda k, s, d: (
        k.splits <= SPLITS and s.depth % (k.splits * k.tile_k) == 0
    ),
    "stages is at most 4, and at most the steps along the depth of a work-group.": lambda k, s, d: (
        k.stages <= 4 and k.stages <= s.depth // k.splits // k.tile_k
    ),
}


def shared_limit(device: Device) -> int:
    """Return the shared memory of a work-group on CUDA; 0 on other targets."""
    return 0 if device.multiprocessors is None else device.multiprocessors.shared_bytes


def stage_counts(device: Device) -> range:
    """Return stages to try, best first: three or fewer with asynchronous copies, else two.

    Three hide some 600 cycles of memory latency during two steps of products (an assumption).
    """
    gpu = device.multiprocessors
    return range(3 if gpu is not None and gpu.async_copies else 2, 0, -1)


def copies_evenly(shape: Shape, rows: int, columns: int, depth: int, items: int) -> bool:
    """Return whether all items of a group copy equally many vectors of a tile."""
    left = rows * depth % (items * shape.left_lanes)
    return not left and not depth * columns % (items * shape.right_lanes)


def groups(shape: Shape, rows: int, columns: int) -> int:
    """Return the number of work-groups of a launch, for tiles of these rows and columns."""
    return shape.batch * (shape.rows // rows) * (shape.columns // columns)


def split_counts(shape: Shape) -> tuple[int, ...]:
    """Return the numbers of work-groups that may share a tile."""
    return divisors(shape.depth // DEPTH, SPLITS)


@dataclass(frozen=True)
class Tile:
    """A work-group's part of a product, from which its time is estimated."""

    rows: int
    columns: int
    #: Depth of a step.
    depth: int
    items: int
    stages: int
    splits: int
    #: Cycles in which a warp multiplies its part of a step, without others running.
    alone: float
    #: Bytes of shared memory that are read in a step.
    read: float
    #: Products that a multiprocessor sums per cycle.
    rate: float


def cycles(tile: Tile, shape: Shape, device: Device) -> float:
    """Estimate the cycles in which a multiprocessor computes its share of a product.

    Its work-groups run concurrently.  A step takes as long as the slowest of these: the latency
    of the copies issued ``stages - 1`` steps ago, a group's own instructions, or, for all groups
    together, the bytes received, the reads of shared memory, and the products.
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
    """Return the shape of a function whose anchor is a product."""
    anchor = workload.anchor(NAME)
    *batch, rows, columns, depth = workload.extents(anchor)
    half = str(workload.sch.get(anchor).reads[-1].source.dtype) == "float16"
    lanes = [_lanes(workload, factor, half) for factor in (LEFT, RIGHT)]
    return Shape(prod(batch), rows, columns, depth, *lanes, half=half)


def _lanes(workload: Workload, factor: str, half: bool) -> int:
    """Return how many elements of a factor are read at once: 16 bytes, or a divisor of its rows."""
    (block,) = workload.with_role(factor)
    source = workload.sch.get(block).reads[0].source
    return gcd(int(source.shape[-1]), 8 if half else 4)


# -- how both are scheduled ---------------------------------------------------------------


def flatten_output(workload: Workload) -> tuple[Block, Block]:
    """Merge the blocks after the product into one, with one axis for rows and one for columns.

    Returns the block of products, and the merged block, which writes the function's result.
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
    """Return whether rows are pixels, and the result is in blocks of channels."""
    (output,) = workload.with_role(OUTPUT)
    axes = len(workload.sch.get(output).iter_vars)
    return axes == 5 and len(workload.extents(workload.anchor(NAME))) == 3


def copy_tile(
    workload: Workload, block: Block, above: Loop, threads: Mapping[str, int], lanes: int
) -> None:
    """Let all items of a group copy a tile, neighbouring vectors by neighbouring items."""
    sch = workload.sch
    # The scope is set before the block is placed: only then does the tile cover all items' reads.
    sch.set_scope(block, 0, "shared.dyn")
    sch.compute_at(block, above)
    i, j = workload.loops_below(block, above)[-2:]
    # The split comes before the fusion: only then do indices of a vector's elements differ in one
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
    """Let all items of a group write a tile of results, in memory order.

    ``pixels`` says that neighbours in memory are pixels of a block of channels, else columns.
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
    """Turn the product into a sum of partial sums; return the block that computes those.

    The index of the partial sum is the first of its axes, like a batch.
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
    """Schedule the second kernel, which adds up the partial sums and computes the epilogue."""
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
