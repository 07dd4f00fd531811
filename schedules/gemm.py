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
products: with ``cp.async`` where the GPU has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import gcd, prod
from typing import TypeVar

from tvm import te, tirx

from ..devices.target import Device
from .common import FAMILY, ROLE, Block, Loop, Workload
from .data_parallel import Axis, regroup
from .definitions import batch_shape, or_zero, output_extent, padded_matrix, widened

T = TypeVar("T")

NAME = "gemm"
LEFT, RIGHT, OUTPUT = "gemm_left", "gemm_right", "gemm_output"

#: To multiples of these are rows and columns padded.
UNITS = (128, 64, 32, 16)
#: To multiples of this is the depth padded.
DEPTH = 32
#: What the padded matrices must hold, at least, besides their padding (an assumption).
FULL = 0.6
#: Multiply-adds below which a launch takes longer than the product (an assumption).
WORK = 1 << 20


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


def pays(rows: int, columns: int, depth: int, batch: int = 1) -> bool:
    """True if padded matrices are mostly the product's own, and a batch of them is large.

    At least :data:`FULL` of the multiply-adds, and :data:`WORK` of them.
    """
    own = rows * columns * depth
    whole = padded(rows) * padded(columns) * padded_depth(depth)
    return own >= FULL * whole and batch * own >= WORK


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
) -> te.Tensor:
    """The convolution of ``channels`` to ``outputs``; shapes as in the module's docstring."""
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
        if channels % lanes:
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


#: Of every family of these products.
STAGES = {
    "stages is at most 4, and at most the steps along the depth.": lambda k, s, d: (
        k.stages <= 4 and k.stages <= s.depth // k.tile_k
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


def first_that_fills(
    fitting: Sequence[T], tile: Callable[[T], tuple[int, int]], shape: Shape, device: Device
) -> T:
    """The first knobs, of which ``tile`` tells rows and columns of a work-group, that fill a GPU.

    They have a group for each multiprocessor; where none do, those with most groups.
    """
    assert device.multiprocessors is not None
    enough = (k for k in fitting if groups(shape, *tile(k)) >= device.multiprocessors.count)
    return next(enough, max(fitting, key=lambda k: groups(shape, *tile(k))))


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
    fused = sch.fuse(*workload.loops_below(block, above)[-2:])
    _, *parts, vector = sch.split(fused, [None, *threads.values(), lanes])
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
