"""Converters of image sampling at computed positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op as R

from ...ir.extremes import reducer
from ...ir.rewriter import constant
from ..converter import InvalidNode, NodeContext, Refusal, converts, shape_along


@converts("GridSample")
def grid_sample(c: NodeContext) -> relax.Expr:
    """Sample an image at the positions of a grid."""
    if len(c.shape()) not in (4, 5):
        raise Refusal(
            f"its image has {len(c.shape()) - 2} spatial axes; two or three are supported"
        )
    methods = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest",
               "cubic": "bicubic", "bicubic": "bicubic"}  # fmt: skip
    method = methods.get(c.attribute("mode", "linear"))
    if method is None:
        raise Refusal(f"its mode {c.attribute('mode')!r} is unknown")
    padding, align = c.attribute("padding_mode", "zeros"), bool(c.attribute("align_corners", 0))
    if len(c.shape()) == 5:
        # The only other implementation, ONNX's evaluator, gives different numbers at borders.
        if method == "bicubic":
            raise Refusal("cubic samples of volumes are not supported")
        return _volume_samples(c, method, padding, align)
    image = c.input()
    for axis in (2, 3):
        # For reflection TVM divides by the distance between the centres of the first and the last
        # element. A single element is doubled, so that the distance is not zero.
        if padding == "reflection" and align and c.shape()[axis] == 1:
            image = R.concat([image, image], axis)
    # Relax expects the two coordinates before the grid's axes.
    grid = R.permute_dims(c.input(1), [0, 3, 1, 2])
    return R.image.grid_sample(
        image, grid, method=method, padding_mode=padding, align_corners=align
    )


@converts("RoiAlign")
def roi_align(c: NodeContext) -> relax.Expr:
    """Return the average or maximum of samples in each cell of each region."""
    pool, samples = c.attribute("mode", "avg"), c.attribute("sampling_ratio", 0)
    if pool not in ("avg", "max"):
        raise InvalidNode(f"its mode {pool!r} is unknown")
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    mode = c.attribute("coordinate_transformation_mode", default)
    rois = R.concat([R.astype(_pictures(c), c.dtype(1)), c.input(1)], 1)
    scale = c.attribute("spatial_scale", 1.0)
    if mode == "half_pixel":
        offset = np.array([0, -0.5, -0.5, -0.5, -0.5]) / scale
        rois = rois + c.constant(offset, c.dtype(1))
    if samples < 1:
        return _roi_of_all_samples(c, rois, pool, is_aligned=mode == "half_pixel")
    if pool == "max":
        return _roi_maxima(c, rois, samples, is_aligned=mode == "half_pixel")
    return R.vision.roi_align(
        c.input(), rois,
        pooled_size=(c.attribute("output_height", 1), c.attribute("output_width", 1)),
        spatial_scale=scale, sample_ratio=samples,
        aligned=mode == "half_pixel", layout="NCHW", mode="avg",
    )  # fmt: skip


def _pictures(c: NodeContext) -> relax.Expr:
    """Return the batch index of each region as ``[regions, 1]``, clamped to the batch.

    Constant indices out of range are refused.
    """
    count, values = c.shape()[0], c.known(2)
    if values is not None and ((values < 0) | (values >= count)).any():
        raise Refusal("a constant index is out of range")
    numbers = R.reshape(c.input(2), (c.shape(2)[0], 1))
    if values is not None:
        return numbers
    first, last = (constant(np.array(limit, c.dtype(2))) for limit in (0, count - 1))
    return R.minimum(R.maximum(numbers, first), last)


def _roi_maxima(c: NodeContext, rois: relax.Expr, samples: int, is_aligned: bool) -> relax.Expr:
    """Return the largest sample in each cell of each region.

    ONNX defines a sample as the largest of its four weighted neighbours, not their sum.
    """
    scale = c.attribute("spatial_scale", 1.0)
    rows, columns = c.result.shape[2:]
    sizes, dtype = c.shape()[2:], c.dtype()

    def compute(x: te.Tensor, regions: te.Tensor) -> te.Tensor:
        over = [te.reduce_axis((0, samples)) for _ in range(2)]
        sides = [te.reduce_axis((0, 2)) for _ in range(2)]

        def neighbour(region: tirx.Var, axis: int, cell: tirx.Var) -> tuple[tirx.Expr, tirx.Expr]:
            """Return the index and weight of a sample's neighbour along rows or columns."""
            # Regions are column and row of the first corner, then of the second one.
            begin, end = (regions(region, 1 + 2 * i + (1 - axis)) * scale for i in range(2))
            extent = end - begin if is_aligned else te.max(end - begin, tirx.const(1, dtype))
            size, count = sizes[axis], (rows, columns)[axis]
            cell_size = extent / count
            place = begin + cell * cell_size + (over[axis] + 0.5) * cell_size / samples
            outside = tirx.any(place < -1, place > size)
            place = te.min(te.max(place, 0), size - 1)
            low = te.floor(place).astype("int32")
            part = place - low.astype(dtype)
            weight = tirx.Select(sides[axis] == 0, 1 - part, part)
            weight = tirx.Select(outside, tirx.const(0, dtype), weight)
            # Fused functions have int64 indices.
            return te.min(low + sides[axis], size - 1).astype("int64"), weight

        def element(region: tirx.Var, k: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            (row, above), (column, left) = neighbour(region, 0, i), neighbour(region, 1, j)
            picture = regions(region, 0).astype("int64")
            value = x(picture, k, row, column) * (above * left)
            return reducer(True, dtype)(value, axis=[*over, *sides])

        return te.compute(c.result.shape, element, name="roi_maxima")

    return c.builder.call_te(compute, c.input(), c.emit(rois), primfunc_name_hint="roi_maxima")


def _roi_of_all_samples(
    c: NodeContext, rois: relax.Expr, pool: str, is_aligned: bool
) -> relax.Expr:
    """Return the average or maximum of ceil(extent) samples in each cell.

    Samples of a cell are more than 1/2 and at most 1 apart.  Therefore ``2 * size + 7`` of them,
    starting at the first one near the image, cover all in it and one beyond either end, whose
    weight is 0.  Weights are products of the weights along rows and columns, and never negative.
    For an average the weight of an element is the sum over all samples; for a maximum it is the
    largest one for positive elements, else the smallest.  Columns are reduced first, then rows.
    """
    scale = c.attribute("spatial_scale", 1.0)
    cells, sizes, dtype = c.result.shape[2:], c.shape()[2:], c.dtype()

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    def compute(x: te.Tensor, regions: te.Tensor) -> te.Tensor:
        def cell_of(region: tirx.Var, axis: int) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
            """Return the start of a region, and the extent and number of samples of its cells."""
            begin, end = (regions(region, 1 + 2 * i + (1 - axis)) * scale for i in range(2))
            extent = end - begin if is_aligned else te.max(end - begin, number(1))
            cell_size = extent / cells[axis]
            return begin, cell_size, te.ceil(cell_size)

        def weights(axis: int, combine: Callable[..., tirx.Expr], untouched: float) -> te.Tensor:
            """Return the combined weights of each cell's samples for each element of an axis."""
            size = sizes[axis]
            nth, side = te.reduce_axis((0, 2 * size + 7)), te.reduce_axis((0, 2))

            def element(region: tirx.Var, cell: tirx.Var, at: tirx.Var) -> tirx.Expr:
                begin, cell_size, samples = cell_of(region, axis)
                begin = begin + cell * cell_size
                first = te.floor((-1 - begin) / cell_size * samples) - 2
                index = te.max(first, number(0)) + nth
                place = begin + (index + 0.5) * cell_size / samples
                outside = tirx.any(place < -1, place > size)
                place = te.min(te.max(place, 0), size - 1)
                low = te.floor(place)
                part = place - low
                weight = tirx.Select(side == 0, 1 - part, part)
                weight = tirx.Select(outside, number(0), weight)
                touches = tirx.all(index < samples, te.min(low + side, size - 1) == at)
                return combine(tirx.Select(touches, weight, number(untouched)), axis=[nth, side])

            shape = (c.result.shape[0], cells[axis], size)
            return te.compute(shape, element, name=f"weights_{axis}")

        largest = [weights(axis, te.max, -1.0) for axis in range(2)]
        if pool == "max":
            least = [weights(axis, te.min, 2.0) for axis in range(2)]
            combine, nothing = reducer(True, dtype), number(-np.inf)
        else:
            total = [weights(axis, te.sum, 0.0) for axis in range(2)]
            combine, nothing = te.sum, number(0)

        def taken(value: tirx.Expr, axis: int, *at: tirx.Var) -> tirx.Expr:
            """Return an element times its weight, or the neutral element without a sample."""
            if pool == "max":
                weight = tirx.Select(value > 0, largest[axis](*at), least[axis](*at))
            else:
                weight = total[axis](*at)
            return tirx.Select(largest[axis](*at) < 0, nothing, value * weight)

        over = [te.reduce_axis((0, size)) for size in sizes]

        def along_columns(region: tirx.Var, k: tirx.Var, row: tirx.Var, j: tirx.Var) -> tirx.Expr:
            value = x(regions(region, 0).astype("int64"), k, row, over[1])
            return combine(taken(value, 1, region, j, over[1]), axis=[over[1]])

        def along_rows(region: tirx.Var, k: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            return combine(taken(columns(region, k, over[0], j), 0, region, i, over[0]),
                           axis=[over[0]])  # fmt: skip

        shape = c.result.shape
        columns = te.compute((*shape[:2], sizes[0], shape[3]), along_columns, name="roi_columns")
        pooled = te.compute(shape, along_rows, name="roi_rows")

        def result(region: tirx.Var, *at: tirx.Var) -> tirx.Expr:
            high, wide = (cell_of(region, axis)[2] for axis in range(2))
            value = pooled(region, *at)
            value = value if pool == "max" else value / te.max(high * wide, number(1))
            return tirx.Select(tirx.any(high <= 0, wide <= 0), number(0), value)

        return te.compute(c.result.shape, result, name="roi_cells")

    return c.builder.call_te(compute, c.input(), c.emit(rois), primfunc_name_hint="roi_samples")


def _volume_samples(c: NodeContext, mode: str, padding: str, align: bool) -> relax.Expr:
    """Sample images with three spatial axes, with products of the weights along each axis.

    A sample has one neighbour along an axis (``nearest``) or two (``linear``).
    """
    taps = {"nearest": 1, "bilinear": 2}[mode]
    sizes, dtype = c.shape()[2:], c.dtype(1)

    def compute(x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        def real(n: tirx.Var, *at: tirx.Var) -> tirx.Expr:
            """Return a sample's position along an axis, where axis 0 is the image's last."""
            *point, axis = at
            size = tirx.Select(axis == 0, tirx.const(float(sizes[2]), dtype), tirx.Select(
                axis == 1, tirx.const(float(sizes[1]), dtype),
                tirx.const(float(sizes[0]), dtype)))  # fmt: skip
            position = grid(n, *point, axis) + 1
            place = position / 2 * (size - 1) if align else (position * size - 1) / 2
            if mode == "nearest":
                place = te.nearbyint(place)
            if padding == "border":
                place = te.min(te.max(place, 0), size - 1)
            return _reflected(place, size, align, dtype) if padding == "reflection" else place

        places = te.compute(grid.shape, real, name="places")
        over = [te.reduce_axis((0, taps)) for _ in sizes]

        def neighbour(place: tirx.Expr, axis: int) -> tuple[tirx.Expr, tirx.Expr]:
            """Return a neighbour's index and its weight, which is zero outside the image."""
            tap, size = over[axis], sizes[axis]
            first = place if mode == "nearest" else te.floor(place)
            part, one = place - first, tirx.const(1, dtype)
            weight = one if taps == 1 else tirx.Select(tap == 0, 1 - part, part)
            at = first + tap.astype(dtype)
            if padding == "reflection":
                at = _reflected(at, tirx.const(float(size), dtype), align, dtype)
            elif padding == "zeros":
                outside = tirx.any(at < 0, at > size - 1)
                weight = tirx.Select(outside, tirx.const(0, dtype), weight)
            # Positions that are NaN or far outside must not read beyond the image either.
            return te.min(te.max(at, 0), size - 1).astype("int64"), weight

        def element(n: tirx.Var, k: tirx.Var, *point: tirx.Var) -> tirx.Expr:
            found = [neighbour(places(n, *point, 2 - axis), axis) for axis in range(3)]
            value = x(n, k, *(at for at, _ in found))
            weight = found[0][1] * found[1][1] * found[2][1]
            zero = tirx.const(0, c.dtype())
            # With a weight of zero, infinities must contribute zero, too.
            return te.sum(tirx.Select(weight == 0, zero, value * weight), axis=over)

        return te.compute(c.result.shape, element, name="volume_samples")

    return c.builder.call_te(compute, c.input(), c.input(1), primfunc_name_hint="volume_samples")


def _reflected(place: tirx.Expr, size: tirx.Expr, align: bool, dtype: str) -> tirx.Expr:
    """Reflect a position at the centres of the first and last element, or at their outer edges."""
    low = tirx.const(0.0 if align else -0.5, dtype)
    span = size - 1 if align else size
    distance = te.abs(place - low)
    turns = te.floor(distance / te.max(span, tirx.const(0.5, dtype)))
    rest = distance - turns * span
    is_even = turns - 2 * te.floor(turns / 2) < 0.5
    turned = tirx.Select(is_even, low + rest, low + span - rest)
    within = tirx.all(place >= low, place <= low + span)
    return tirx.Select(within, place, tirx.Select(span <= 0, tirx.const(0, dtype), turned))


@converts("AffineGrid")
def affine_grid(c: NodeContext) -> relax.Expr:
    """Return the positions of a grid with two or three axes under an affine map."""
    batch, _, *extents = (int(extent) for extent in c.array(1, "sizes"))
    if len(extents) not in (2, 3):
        raise Refusal(f"its grid has {len(extents)} axes; two and three are supported")
    # Positions -1 and 1 are the centres of the first and last element, or their outer edges.
    align = bool(c.attribute("align_corners", 0))
    lines = [_positions(n) if align else _positions(n) * (n - 1) / n for n in extents]
    rank = len(extents)

    def column(index: int) -> relax.Expr:
        found = R.strided_slice(c.input(), [2], [index], [index + 1])
        return R.reshape(found, (batch, *[1] * rank, rank))

    result = column(rank)
    # The coordinates of a position start with the last axis, x.
    for index, axis in enumerate(reversed(range(rank))):
        line = c.constant(lines[axis].reshape(1, *shape_along(axis, rank), 1))
        result = result + line * column(index)
    return R.broadcast_to(result, (batch, *extents, rank))


def _positions(count: int) -> np.ndarray:
    """Return equidistant numbers from -1 to 1; a single one is 1, as in ONNX Runtime."""
    return np.linspace(-1, 1, count) if count > 1 else np.ones(1)
