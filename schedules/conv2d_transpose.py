"""Transposed convolution over the blocked layout, as a gather: each output is written once.

With stride ``s``, dilation ``d`` and padding ``a`` before the first row (columns are
computed alike)::

    x[N, I', H, W, c]   w[O', I/groups, KH, KW, c]
    y[n, o', h, w, o] = sum_{i, p, q} x[n, i', (h + a - p*d) / s, (w + a - q*d) / s, i]
                                      * w[o', i, p, q, o]

over those ``p`` and ``q`` for which the divisions leave no remainder.  With ``e * d = 1 (mod s)``
these are ``p = (h + a) * e % s + s * t`` for every ``t``: no product is with a zero
that the stride puts between the inputs.  If ``d`` and ``s`` have a common factor there is no
such ``e``, and every ``p`` is tried.

A work-item computes ``s`` rows and a multiple of ``s`` columns, so that the taps of each of
its outputs are known at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd

from tvm import te, tirx

from ..devices.target import Device
from . import grouped
from .common import FAMILY
from .definitions import Sums, pad_spatial, term, widened
from .grouped import CONSTRAINTS, SHARED, STRIDES, Knobs, Shape, channels_read, space
from .sizes import largest_divisor
from .work_groups import group_of

NAME = "conv2d_transpose"
ORDER = 340


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a transposed convolution."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    output_padding: int

    @property
    def result(self) -> int:
        """Return the extent of the result."""
        full = (self.size - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return full - self.before - self.after + self.output_padding

    @property
    def is_coprime(self) -> bool:
        """Return whether the taps that reach an output follow from its index."""
        return gcd(self.dilation, self.stride) == 1

    @property
    def taps(self) -> int:
        """Return the number of taps that are tried for an output."""
        return -(-self.kernel // self.stride) if self.is_coprime else self.kernel

    def tap(self, place, t):  # type: ignore[no-untyped-def]
        """Return the tap ``p``, the row that it reads, and whether it is valid (or ``None``)."""
        shifted = place + self.before
        if not self.is_coprime:
            moved = shifted - t * self.dilation
            return t, moved // self.stride, _rest(moved, self.stride) == 0
        inverse = pow(self.dilation, -1, self.stride) if self.stride > 1 else 0
        p = _rest(shifted * inverse, self.stride) + t * self.stride
        counts = None if self.kernel % self.stride == 0 else p < self.kernel
        return p, (shifted - p * self.dilation) // self.stride, counts

    def reach(self) -> tuple[int, int]:
        """Return the rows that are read before the first and after the last one of the input."""
        rows = [self.tap(h, t)[1] for h in range(self.result) for t in range(self.taps)]
        return max(0, -min(rows)), max(0, max(rows) - self.size + 1)


def _rest(value, divisor):  # type: ignore[no-untyped-def]
    """Return the remainder of an integer or an expression, for which ``%`` would be C's."""
    return value % divisor if isinstance(value, int) else tirx.floormod(value, divisor)


def whole_periods(kernel: int, stride: int, dilation: int) -> int:
    """Return the taps that the weights must have: as many as are tried; extra ones are zero."""
    axis = Axis(1, kernel, stride, dilation, 0, 0, 0)
    return axis.taps * stride if axis.is_coprime else kernel


def compute(
    x: te.Tensor,
    w: te.Tensor,
    outputs: int,
    *,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    output_padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    sums: Sums = None,
) -> te.Tensor:
    """Return the convolution with ``outputs`` channels as TE; the module has the shapes.

    ``w`` has :func:`whole_periods` taps along each axis.
    """
    blocks, inputs, _, _, block = (int(d) for d in w.shape)
    sizes = int(x.shape[2]), int(x.shape[3])
    along = sizes, kernel, strides, dilation, padding[:2], padding[2:], output_padding
    rows, columns = map(Axis, *along)
    (top, bottom), (left, right) = rows.reach(), columns.reach()
    padded = pad_spatial(x, (top, left, bottom, right))
    channel, shared = channels_read(groups, inputs, outputs // groups, block)
    i = te.reduce_axis((0, inputs), name="i")
    t = te.reduce_axis((0, rows.taps), name="t")
    u = te.reduce_axis((0, columns.taps), name="u")

    def body(n, oo, h, v, o):  # type: ignore[no-untyped-def]
        p, row, row_counts = rows.tap(h, t)
        q, column, column_counts = columns.tap(v, u)
        source, lane = channel(oo, o, i)
        value = padded[n, source, row + top, column + left, lane]
        summand = term(value, w[oo, i, p, q, o], sums)
        counts = [c for c in (row_counts, column_counts) if c is not None]
        if counts:
            zero = tirx.const(0, summand.ty.dtype)
            summand = tirx.if_then_else(tirx.all(*counts), summand, zero)
        return te.sum(summand, axis=[i, t, u])

    result = te.compute(
        (x.shape[0], blocks, rows.result, columns.result, block),
        body,
        name=NAME,
        attrs={FAMILY: NAME, SHARED: str(shared), STRIDES: "{},{}".format(*strides)},
    )
    return widened(result, x.dtype)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return one period of the strides, and more columns as far as registers allow."""
    registers = device.accumulators
    rows, columns = min(shape.stride_h, shape.height), min(shape.stride_w, shape.width)
    if rows * columns > 2 * registers:
        # A period of a large stride exceeds a work-item's registers: taps are found at run time.
        rows, columns = 1, min(columns, registers)
    periods = max(1, registers // (rows * columns))
    tile_w = min(shape.width, columns * largest_divisor(-(-shape.width // columns), periods))
    taps = shape.taps_h * shape.taps_w
    # Taps that are known at compile time need no branches.
    unroll_i = largest_divisor(shape.input_lanes, 4 if taps <= 4 else 2)
    tiles = shape.batch * shape.outputs, -(-shape.height // rows), -(-shape.width // tile_w)
    return Knobs(*group_of(tiles, device, device.convolution), rows, tile_w, unroll_i, taps <= 16)


# It is scheduled as a grouped convolution.
match = partial(grouped.match, family=NAME)
apply = partial(grouped.apply, family=NAME)

__all__ = ["CONSTRAINTS", "Knobs", "Shape", "space"]
