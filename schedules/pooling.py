"""Max and average pooling over the blocked layout, lane by lane.

For a window of KH x KW::

    x[N, C', H, W, c]
    max: y[n, k', h, w, k] = max_{p, q} x[n, k', h*s + p*d, w*s + q*d, k]
    avg: the sum over the same window, divided by the number of elements counted

Padding is -inf for max and 0 for avg.  With ``count_include_pad`` an average
counts padded elements, but never those that ``ceil_mode`` adds beyond the
declared padding (ONNX AveragePool, opset 19).
"""

from __future__ import annotations

from functools import partial

from tvm import te, tirx

from ..ir.extremes import reducer
from . import depthwise
from .common import FAMILY
from .definitions import Sums, narrowed, output_extent, pad_spatial, widened
from .depthwise import CONSTRAINTS, STEPS, Knobs, Shape, heuristic, space, steps_text

NAME = "pooling"
ORDER = 380


def compute(
    x: te.Tensor,
    *,
    kind: str,
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
    count_include_pad: bool,
    sums: Sums = None,
) -> te.Tensor:
    """Return pooling as TE for a ``kind`` of ``max`` or ``avg``.

    ``padding`` is top, left, bottom, right.
    """
    extents = [int(x.shape[2]), int(x.shape[3])]
    before, after = padding[:2], padding[2:]
    along = extents, window, strides, dilation, before, after, (ceil_mode,) * 2
    outs = [*map(output_extent, *along)]
    # Rows and columns by which the last window exceeds the input, with or without padding.
    reach = [
        (outs[a] - 1) * strides[a] + dilation[a] * (window[a] - 1) + 1 - before[a] - extents[a]
        for a in range(2)
    ]
    overhang = (*before, max(0, reach[0]), max(0, reach[1]))
    padded = pad_spatial(x, overhang, float("-inf") if kind == "max" else 0.0)
    p = te.reduce_axis((0, window[0]), name="p")
    q = te.reduce_axis((0, window[1]), name="q")
    reduce = reducer(True, str(x.dtype)) if kind == "max" else te.sum
    shape = (*x.shape[:2], *outs, x.shape[4])

    def body(n, kk, h, v, k):  # type: ignore[no-untyped-def]
        row, column = h * strides[0] + p * dilation[0], v * strides[1] + q * dilation[1]
        return reduce(narrowed(padded[n, kk, row, column, k], sums), axis=[p, q])

    attrs = {FAMILY: NAME, STEPS: steps_text(strides, dilation)}
    pooled = widened(te.compute(shape, body, name="pool", attrs=attrs), x.dtype)
    if kind == "max":
        return pooled

    def counted(axis: int, index: tirx.Expr) -> tirx.Expr:
        """Return how many elements of a window count along one axis."""
        low, high = 0, extents[axis]
        if count_include_pad:
            low, high = -before[axis], extents[axis] + after[axis]
        start = index * strides[axis] - before[axis]
        step, size = dilation[axis], window[axis]
        first = tirx.max(0, tirx.floordiv(low - start + step - 1, step))
        last = tirx.min(size - 1, tirx.floordiv(high - 1 - start, step))
        return last - first + 1

    def average(n, kk, h, v, k):  # type: ignore[no-untyped-def]
        area = tirx.max(counted(0, h) * counted(1, v), 1)
        return pooled[n, kk, h, v, k] / tirx.Cast(x.dtype, area)

    return te.compute(shape, average, name="average")


# It has the knobs of a depthwise convolution: the window is the same.
match = partial(depthwise.match, family=NAME)
apply = partial(depthwise.apply, family=NAME)

__all__ = ["CONSTRAINTS", "Knobs", "Shape", "heuristic", "space"]
