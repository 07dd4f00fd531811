"""Winograd's convolution F(m×m, 3×3): transforms of tiles before and after products of matrices.

``m`` outputs of a correlation with 3 taps are interpolated from products at ``a = m + 2``
points, one of them at infinity (Toom-Cook; Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2016). In two dimensions, for a tile ``d`` of ``a×a`` inputs and taps ``g``::

    Y = AT [(G g GT) * (BT d B)] A          a*a products in place of 9*m*m

Over the blocked layout this is three primary functions, each with its own family, for ``T``
tiles in ``R`` rows::

    x[N, I', H, W, c]   ->  v[a*a, I', R, T/R, c]         winograd_input
    v, u[a*a, O', I, c] ->  t[a*a, O', R, T/R, c]         winograd_product
    t                   ->  y[N, O', H, W, c]             winograd_output, and its epilogue

``u = G g GT`` is computed at compile time, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import ClassVar

import numpy as np
from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, ROLE, Workload
from .conv2d import TILE_FITS, UNROLL_DIVIDES, RegisterTile, most_accumulators
from .definitions import pad_spatial
from .family import GROUP_FITS, Constraints, Value, knob
from .sizes import divisors, group_sizes, input_lanes, largest_divisor, tile_choices, tile_of
from .work_groups import GROUP_CONSTRAINTS, WorkGroup, group_of, group_space

#: Taps of the kernels in each direction.
TAPS = 3
#: The role of the blocks that transform columns, in both directions.
COLUMNS = "winograd_columns"
#: Block annotation: outputs of a tile in each direction.
OUTPUTS = "tvmflow.winograd_outputs"

Matrix = tuple[tuple[Fraction, ...], ...]
#: Function from an index along the transformed axis to a tensor's value.
Values = Callable[[int], tirx.Expr]

#: Finite points by ``m``.  The usual 0, ±1, ±2 of F(4×4) round 4 times as much as these (largest
#: error of fp32 with 512 channels of random numbers: 9e-6 of the scale instead of 2e-6), whose
#: powers are exact in binary, too.
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}


# -- the matrices -------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrices:
    """The exact matrices of F(m, 3), as in the module's docstring."""

    at: Matrix
    g: Matrix
    bt: Matrix


@cache
def matrices(outputs: int) -> Matrices:
    """Return the matrices for ``outputs`` at a time, from :data:`POINTS`."""
    points = POINTS[outputs]
    at = [(*(p**i for p in points), Fraction(i == outputs - 1)) for i in range(outputs)]
    g, bt = [], []
    for index, point in enumerate(points):
        others = points[:index] + points[index + 1 :]
        scale = prod((point - other for other in others), start=Fraction(1))
        # The row of point 0 in F(2×2) would be all negative.
        sign = -1 if scale < 0 and not point else 1
        g.append(tuple(sign * point**k / scale for k in range(TAPS)))
        bt.append(tuple(sign * c for c in (*_with_roots(others), Fraction(0))))
    g.append((*(Fraction(0),) * (TAPS - 1), Fraction(1)))
    bt.append(tuple(_with_roots(points)))
    return Matrices(tuple(at), tuple(g), tuple(bt))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return coefficients, lowest first, of the monic polynomial with these roots."""
    result = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return result


def matrix_of_weights(outputs: int) -> np.ndarray:
    """Return ``G`` in float64, which transforms both axes of the taps."""
    return np.array([[float(c) for c in row] for row in matrices(outputs).g])


def transformed_weight(weight: np.ndarray, outputs: int) -> np.ndarray:
    """Transform ``OIHW`` to ``[a, a, O, I]`` in its own precision, computed in float64."""
    g = matrix_of_weights(outputs)
    u = np.einsum("pk,oikl,ql->pqoi", g, weight.astype(np.float64), g, optimize=True)
    return u.astype(weight.dtype)


def tiles(extent: int, outputs: int) -> int:
    """Return how many tiles of ``outputs`` cover an extent."""
    return -(-extent // outputs)


# -- products with them as TE -------------------------------------------------------------


def row_of(
    matrix: Matrix,
    row: tirx.Expr,
    value: Values,
    terms: Callable[[Sequence[Fraction], Values], tirx.Expr],
) -> tirx.Expr:
    """Return the product of a row of ``matrix`` with values; unrolling makes the row a constant.

    ``Select`` is not used: its condition would become a vector of booleans, which OpenCL C
    represents in another way.
    """
    rows = [terms(coefficients, value) for coefficients in matrix]
    result = rows[-1]
    for index in reversed(range(len(rows) - 1)):
        result = tirx.if_then_else(row == index, rows[index], result)
    return result


def by_parity(coefficients: Sequence[Fraction], value: Values) -> tirx.Expr:
    """Add the sum of even terms and that of odd ones: rows of opposite points share both.

    The odd sum is that of the positive point; BT has such rows.
    """
    even = _sum([(c, value(k)) for k, c in enumerate(coefficients) if c and not k % 2])
    odd = [(c, value(k)) for k, c in enumerate(coefficients) if c and k % 2]
    if not odd:
        return even
    negative = odd[-1][0] < 0
    odd_sum = _sum([(-c if negative else c, v) for c, v in odd])
    if even is None:
        return -odd_sum if negative else odd_sum
    return even - odd_sum if negative else even + odd_sum


def by_pairs(coefficients: Sequence[Fraction], value: Values) -> tirx.Expr:
    """Add or subtract opposite points next to each other first; AT has such rows."""
    terms = [(coefficients[0], value(0))]
    for k in range(1, len(coefficients) - 1, 2):
        positive, negative = coefficients[k], coefficients[k + 1]
        both = value(k) + value(k + 1) if positive == negative else value(k) - value(k + 1)
        terms.append((positive, both))
    terms.append((coefficients[-1], value(len(coefficients) - 1)))
    return _sum([(c, v) for c, v in terms if c])


def _sum(terms: Sequence[tuple[Fraction, tirx.Expr]]) -> tirx.Expr:
    """Sum products, those with positive factors first; ``None`` for an empty list.

    Then no term has to be negated if any factor is positive.
    """
    result: tirx.Expr = None
    for factor, value in sorted(terms, key=lambda term: term[0] < 0):
        product = value if abs(factor) == 1 else value * float(abs(factor))
        if result is None:
            result = product if factor > 0 else -product
        else:
            result = result + product if factor > 0 else result - product
    return result


# -- the first function: tiles of the input, transformed ----------------------------------


def compute_input(x: te.Tensor, *, outputs: int, padding: tuple[int, int, int, int]) -> te.Tensor:
    """Return the transformed tiles as TE.

    For tiles of ``m×m`` outputs (``a = m + 2``) in ``R = N * TH`` rows of ``TW``::

        x[N, I', H, W, c]   r[p, n, i, h, x, l] = sum_k BT[p, k] * x[n, i, h*m + k, x, l]
                            v[p*a + q, i, n*TH + h, w, l]
                                = sum_k BT[q, k] * r[p, n, i, h, w*m + k, l]

    Columns are transformed once for the tiles that share them.  Only lanes that hold channels are
    valid in the result: :func:`compute_product` reads no others.
    """
    batch, blocks, height, width, block = (int(d) for d in x.shape)
    taken = outputs + TAPS - 1
    top, left, bottom, right = padding
    rows = tiles(height + top + bottom - TAPS + 1, outputs)
    columns = tiles(width + left + right - TAPS + 1, outputs)
    # The last tiles are whole, too.
    bottom = rows * outputs + TAPS - 1 - height - top
    right = columns * outputs + TAPS - 1 - width - left
    padded = pad_spatial(x, (top, left, bottom, right))
    bt = matrices(outputs).bt
    transformed = te.compute(
        (taken, batch, blocks, rows, padded.shape[3], block),
        lambda p, n, i, h, w, lane: row_of(
            bt, p, lambda k: padded[n, i, h * outputs + k, w, lane], by_parity
        ),
        name="columns",
        attrs={ROLE: COLUMNS},
    )

    def body(point, i, h, w, lane):  # type: ignore[no-untyped-def]
        p, q = tirx.floordiv(point, taken), tirx.floormod(point, taken)
        n, row = (0, h) if batch == 1 else (tirx.floordiv(h, rows), tirx.floormod(h, rows))
        return row_of(bt, q, lambda k: transformed[p, n, i, row, w * outputs + k, lane], by_parity)

    shape = (taken * taken, blocks, batch * rows, columns, block)
    return te.compute(shape, body, name="winograd_input", attrs={FAMILY: Input.NAME})


@dataclass(frozen=True)
class InputShape:
    """Extents of the transformed tiles, and how the input is read."""

    #: Products of a tile: ``a * a``.
    points: int
    #: Blocks of input channels.
    inputs: int
    #: Rows of tiles, and tiles in a row.
    rows: int
    columns: int
    #: Channels in a block.
    lanes: int
    _: KW_ONLY
    padded: bool
    texture: bool


@dataclass(frozen=True)
class InputKnobs:
    """Knobs of the tiles of a work-item."""

    tile_w: int = knob("Tiles of a row that a work-item transforms, one after the other.")
    stage_input: bool = knob("Copy the inputs of these tiles to private memory first.")
    group_size: int = knob("Most work-items of a work-group.")


class Input:
    """Family of Winograd's input transform: tiles of the input, transformed."""

    NAME = "winograd_input"
    ORDER = 350
    Shape, Knobs = InputShape, InputKnobs
    CONSTRAINTS: ClassVar[Constraints] = {
        "tile_w is at most the tiles in a row.": lambda k, s, d: k.tile_w <= s.columns,
        "Where a padded input is read from a texture or by a CPU, it is staged: "
        "bounds are tested once.": lambda k, s, d: (
            k.stage_input or not (s.padded and (s.texture or d.is_cpu))
        ),
        **GROUP_FITS,
    }

    @staticmethod
    def heuristic(shape: InputShape, device: Device) -> InputKnobs:
        """Return a row of tiles on a CPU; one on a GPU, where its values fill the registers."""
        tile_w = tile_of(shape.columns, 8) if device.is_cpu else 1
        return InputKnobs(tile_w, shape.padded or shape.texture, device.group_size)

    @staticmethod
    def space(shape: InputShape, device: Device) -> dict[str, tuple[Value, ...]]:
        """Return all sensible lengths of a row."""
        return {
            "tile_w": tile_choices(shape.columns, 16 if device.is_cpu else 2),
            "stage_input": (True, False),
            "group_size": group_sizes(device),
        }

    @staticmethod
    def match(workload: Workload) -> InputShape:
        """Return the shape of a function whose anchor is this family's block."""
        anchor = workload.anchor(Input.NAME)
        padded, texture = workload.input_facts(workload.with_role(COLUMNS)[0])
        return InputShape(*workload.extents(anchor), padded=padded, texture=texture)

    @staticmethod
    def apply(workload: Workload, knobs: InputKnobs) -> s_tir.Schedule:
        """Transform columns of a run of tiles, then their rows, by ``knobs``."""
        sch = workload.sch
        anchor, pad = workload.anchor(Input.NAME), workload.padding()
        (columns,) = workload.with_role(COLUMNS)
        points = workload.extents(anchor)[0]
        taken = round(points**0.5)
        staged = pad
        if pad is None and knobs.stage_input:
            staged = sch.cache_read(columns, 0, "local")
        elif pad is not None and not knobs.stage_input:
            workload.inline(pad)
        point, i, h, w, lane = sch.get_loops(anchor)
        p, q = sch.split(point, [taken, taken])
        w, wi = sch.split(w, [None, knobs.tile_w])
        sch.reorder(i, h, w, wi, p, q, lane)
        item = workload.bind_outer([i, h, w], knobs.group_size)
        # p is the first of the remaining loops; the columns follow, then lanes.
        row, *along, lanes = workload.compute_in_registers(columns, item)
        sch.reorder(*along, row, lanes)
        workload.vectorize_last([row, lanes])
        if staged is not None and knobs.stage_input:
            above = along[-1] if along else item
            workload.vectorize_last(workload.compute_in_registers(staged, above))
        if not workload.is_cpu:
            workload.unroll_all(along)
        workload.vectorize_last([*([] if workload.is_cpu else [wi]), p, q, lane])
        return sch


# -- the second one: a product of matrices for each point of a tile -----------------------


def compute_product(v: te.Tensor, u: te.Tensor) -> te.Tensor:
    """Return the products as TE.

    Over tiles in rows and columns::

        v[a*a, I', R, T, c]   u[a*a, O', I, c]
        t[k, o', h, w, o] = sum_i v[k, i // c, h, w, i % c] * u[k, o', i, o]

    The sum runs over the real input channels only: padding lanes of ``v`` are never read.
    """
    points, outputs, inputs, block = (int(d) for d in u.shape)
    i = te.reduce_axis((0, inputs), name="i")
    return te.compute(
        (points, outputs, v.shape[2], v.shape[3], block),
        lambda k, oo, h, w, o: te.sum(
            v[k, tirx.floordiv(i, block), h, w, tirx.floormod(i, block)] * u[k, oo, i, o], axis=i
        ),
        name="winograd_product",
        attrs={FAMILY: Product.NAME},
    )


@dataclass(frozen=True)
class ProductShape:
    """Extents of the products, and how the transformed input is read."""

    #: Products of a tile: ``a * a``.
    points: int
    #: Blocks of output channels.
    outputs: int
    #: Rows of tiles, and tiles in a row.
    rows: int
    columns: int
    #: Channels in a block.
    lanes: int
    #: Input channels.
    inputs: int
    _: KW_ONLY
    texture: bool

    @property
    def input_lanes(self) -> int:
        """Return the input channels that each step of the sum takes from one block."""
        return input_lanes(self.inputs, self.lanes)


@dataclass(frozen=True)
class ProductKnobs(WorkGroup, RegisterTile):
    """Knobs of a work-item's register tile, on a map of tiles, and of its group."""


class Product:
    """Family of Winograd's ``a*a`` products of matrices, one for each point of a tile."""

    NAME = "winograd_product"
    ORDER = 360
    Shape, Knobs = ProductShape, ProductKnobs
    CONSTRAINTS: ClassVar[Constraints] = {
        **TILE_FITS,
        "tile_o must divide the output blocks and tile_h the rows: "
        "a partial tile there is a test in the hot loop.": lambda k, s, d: (
            s.outputs % k.tile_o == 0 and s.rows % k.tile_h == 0
        ),
        "tile_w is at most the tiles in a row.": lambda k, s, d: k.tile_w <= s.columns,
        **UNROLL_DIVIDES,
        **GROUP_CONSTRAINTS,
    }

    @staticmethod
    def heuristic(shape: ProductShape, device: Device) -> ProductKnobs:
        """Return some tiles of a row and blocks of outputs, which share them, then more rows.

        A CPU uses half of the registers: 2 blocks and 7 tiles are as fast with OpenCL as 4 and 7,
        which are 3 times slower with LLVM, where they leave no register for weights.
        """
        width, budget = (7, 16) if device.is_cpu else (4, device.convolution.vectors)
        tile_w = tile_of(shape.columns, min(width, device.accumulators))
        tile_o = largest_divisor(shape.outputs, max(1, min(4, budget // tile_w)))
        tile_h = largest_divisor(shape.rows, max(1, budget // (tile_w * tile_o)))
        deep = 1 if device.is_cpu else 4
        unroll_i = largest_divisor(shape.input_lanes, deep)
        outputs, columns = shape.points * shape.outputs // tile_o, -(-shape.columns // tile_w)
        group = group_of((outputs, shape.rows // tile_h, columns), device, device.convolution)
        return ProductKnobs(tile_o, tile_h, tile_w, unroll_i, *group)

    @staticmethod
    def space(shape: ProductShape, device: Device) -> dict[str, tuple[Value, ...]]:
        """Return tiles of every form that fits, deeper unrolling, and work-groups."""
        return {
            "tile_o": divisors(shape.outputs, 8),
            "tile_h": divisors(shape.rows, 8),
            "tile_w": tile_choices(shape.columns, most_accumulators(device)),
            "unroll_i": divisors(shape.input_lanes, 16),
            **group_space(shape.outputs, shape.rows, shape.columns, device),
        }

    @staticmethod
    def match(workload: Workload) -> ProductShape:
        """Return the shape of a function whose anchor is this family's block."""
        anchor = workload.anchor(Product.NAME)
        return ProductShape(*workload.extents(anchor), texture=workload.reads_texture(anchor, 0))

    @staticmethod
    def apply(workload: Workload, knobs: ProductKnobs) -> s_tir.Schedule:
        """Tile and vectorise by ``knobs``."""
        sch = workload.sch
        anchor = workload.anchor(Product.NAME)
        block, inputs = workload.extents(anchor)[4:]
        texels = workload.stage_texels(anchor, 0, None)
        weights = workload.stage_weights(anchor, 1)
        output = workload.merge_epilogue(anchor)
        sizes = (0, knobs.tile_o, knobs.tile_h, knobs.tile_w)
        item, inner = workload.tile(output, sizes, knobs.group)
        sch.compute_at(anchor, item, preserve_unit_loops=True)
        workload.sum_whole_tiles(anchor, texels, weights)
        *tile, i = workload.loops_below(anchor, item)
        taken, unroll_i = input_lanes(inputs, block), knobs.unroll_i
        if texels is not None:
            # Texels are read whole; products of the last one's missing channels are left out.
            taken = unroll_i = block
        i_block, i_outer, i_inner = workload.split_channels(i, taken, unroll_i, [], tile)
        workload.place_staged(texels, i_outer)
        workload.place_staged(weights, i_outer)
        workload.unroll_all([i_inner])
        workload.vectorize_last(tile)
        workload.split_init(anchor, i_block, item)
        workload.vectorize_last(inner)
        return sch


# -- the third one: outputs of each tile --------------------------------------------------


def compute_output(t: te.Tensor, *, outputs: int, height: int, width: int) -> te.Tensor:
    """Return the outputs as TE.

    For tiles of ``m×m`` outputs (``a = m + 2``) in ``R = N * TH`` rows of ``TW``::

        t[a*a, O', R, TW, c]   s[d, q, o, h, w, l] = sum_k AT[d, k] * t[k*a + q, o, h, w, l]
                               z[n, o, y, x, l] = sum_k AT[x % m, k] * s[y % m, k, o, n*TH + y // m,
                                                                         x // m, l]
        y[N, O', H, W, c] = z[:, :, :H, :W, :]

    Elementwise operators after it are fused.
    """
    taken = outputs + TAPS - 1
    _, blocks, all_rows, columns, block = (int(d) for d in t.shape)
    rows = tiles(height, outputs)
    batch = all_rows // rows
    at = matrices(outputs).at
    transformed = te.compute(
        (outputs, taken, blocks, all_rows, columns, block),
        lambda d, q, o, h, w, lane: row_of(
            at, d, lambda k: t[k * taken + q, o, h, w, lane], by_pairs
        ),
        name="columns",
        attrs={ROLE: COLUMNS},
    )

    def body(n, o, y, x, lane):  # type: ignore[no-untyped-def]
        h = tirx.floordiv(y, outputs) + n * rows
        d, w, e = tirx.floormod(y, outputs), tirx.floordiv(x, outputs), tirx.floormod(x, outputs)
        return row_of(at, e, lambda k: transformed[d, k, o, h, w, lane], by_pairs)

    shape = (batch, blocks, rows * outputs, columns * outputs, block)
    attrs = {FAMILY: Output.NAME, OUTPUTS: str(outputs)}
    whole = te.compute(shape, body, name="winograd_output", attrs=attrs)
    shape = (batch, blocks, height, width, block)
    return te.compute(shape, whole, name="crop")


@dataclass(frozen=True)
class OutputShape:
    """Extents of the outputs, in whole tiles."""

    batch: int
    #: Blocks of output channels.
    blocks: int
    height: int
    width: int
    #: Channels in a block.
    lanes: int
    _: KW_ONLY
    #: Outputs of a tile in each direction.
    outputs: int


@dataclass(frozen=True)
class OutputKnobs:
    """Knobs of the tiles of a work-item."""

    tile_w: int = knob("Tiles of a row that a work-item transforms, one after the other.")
    group_size: int = knob("Most work-items of a work-group.")


class Output:
    """Family of Winograd's output transform: outputs of each tile from its products."""

    NAME = "winograd_output"
    ORDER = 370
    Shape, Knobs = OutputShape, OutputKnobs
    CONSTRAINTS: ClassVar[Constraints] = {
        "tile_w is at most the tiles in a row.": lambda k, s, d: k.tile_w <= s.width // s.outputs,
        **GROUP_FITS,
    }

    @staticmethod
    def heuristic(shape: OutputShape, device: Device) -> OutputKnobs:
        """Return a row of tiles on a CPU; one on a GPU, where its values fill the registers."""
        tile_w = tile_of(shape.width // shape.outputs, 8) if device.is_cpu else 1
        return OutputKnobs(tile_w, device.group_size)

    @staticmethod
    def space(shape: OutputShape, device: Device) -> dict[str, tuple[Value, ...]]:
        """Return all sensible lengths of a row."""
        limit = 16 if device.is_cpu else 2
        return {
            "tile_w": tile_choices(shape.width // shape.outputs, limit),
            "group_size": group_sizes(device),
        }

    @staticmethod
    def match(workload: Workload) -> OutputShape:
        """Return the shape of a function whose anchor is this family's block."""
        anchor = workload.anchor(Output.NAME)
        outputs = int(workload.annotation(anchor, OUTPUTS) or 1)
        return OutputShape(*workload.extents(anchor), outputs=outputs)

    @staticmethod
    def apply(workload: Workload, knobs: OutputKnobs) -> s_tir.Schedule:
        """Transform tile by tile, and write the elements inside the output."""
        sch = workload.sch
        anchor = workload.anchor(Output.NAME)
        (columns,) = workload.with_role(COLUMNS)
        outputs = int(workload.annotation(anchor, OUTPUTS) or 1)
        texels = workload.stage_texels(columns, 0, None)
        output = workload.merge_epilogue(anchor)
        n, o, y, x, lane = sch.get_loops(anchor)
        h, hi = sch.split(y, [None, outputs])
        w, wi, xi = sch.split(x, [None, knobs.tile_w, outputs])
        sch.reorder(n, o, h, w, wi, hi, xi, lane)
        workload.bind_outer([n, o, h, w], knobs.group_size)
        d, q, *_, lanes = workload.compute_in_registers(columns, wi)
        sch.reorder(q, d)
        workload.place_staged(texels, q)
        workload.vectorize_last([q, d, lanes])
        # The tile is whole in private memory; only stores are tested against the extents.
        sch.reverse_compute_at(output, wi)
        workload.vectorize_last(workload.loops_below(output, wi))
        workload.vectorize_last([hi, xi, lane])
        if not workload.is_cpu:
            workload.unroll_all([wi])
        return sch


FAMILIES = (Input, Product, Output)
