"""Pools over windows and over the whole image."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from ..windows import Windows, read_windows
from .context import NodeContext, Refusal
from .elementwise import whole_power
from .reduction import wide_reduction
from .registry import converts

R = relax.op

_MAX = {1: R.nn.max_pool1d, 2: R.nn.max_pool2d, 3: R.nn.max_pool3d}
_AVERAGE = {1: R.nn.avg_pool1d, 2: R.nn.avg_pool2d, 3: R.nn.avg_pool3d}


@converts("MaxPool")
def max_pool(c: NodeContext) -> relax.Expr:
    """Maximum of each window."""
    if c.uses_result(1):
        raise Refusal("its second result, the indices, is not supported")
    windows = _pool_windows(c)
    return _pool(c, c.input(), windows, "max", include_pad=False)


@converts("AveragePool")
def average_pool(c: NodeContext) -> relax.Expr:
    """Mean of each window, with or without the padding in the divisor.

    Relax's operator counts in its own way when windows are dilated or reach beyond the
    padding (``ceil_mode``); there the sum of the window is divided by the number of
    elements that ONNX counts, which is known now.
    """
    windows = _pool_windows(c)
    counts = _counts(c, windows, include_pad=bool(c.attribute("count_include_pad", 0)))
    kernel = prod(windows.kernel)
    if not any(windows.pads):
        return _pool(c, c.input(), windows, "average", include_pad=False)
    if (counts == kernel).all():
        return _pool(c, c.input(), windows, "average")
    simple = all(d == 1 for d in windows.dilations) and not c.attribute("ceil_mode", 0)
    if simple and not c.attribute("count_include_pad", 0):
        return _pool(c, c.input(), windows, "average", include_pad=False)
    mean = c.emit(_pool(c, c.input(), windows, "average"))
    return R.multiply(mean, c.constant(kernel / counts))


@converts("LpPool")
def lp_pool(c: NodeContext) -> relax.Expr:
    """p-norm of each window."""
    p = _order(c)
    powers = c.emit(_power(c, c.emit(R.abs(c.input())), p))
    windows = _pool_windows(c)
    mean = c.emit(_pool(c, powers, windows, "average"))
    total = c.emit(R.multiply(mean, c.constant(prod(windows.kernel))))
    return _root(c, total, p)


def _order(c: NodeContext) -> int:
    """Return the p of a p-norm."""
    p = c.attribute("p", 2)
    if p < 1:
        raise Refusal(f"p is {p}, expected at least 1")
    return int(p)


def _power(c: NodeContext, x: relax.Expr, p: int) -> relax.Expr:
    return whole_power(c, x, p) if p <= 8 else R.power(x, c.constant(p))


def _root(c: NodeContext, x: relax.Expr, p: int) -> relax.Expr:
    if p == 2:
        return R.sqrt(x)
    return x if p == 1 else R.power(x, c.constant(1.0 / p))


def _pool_windows(c: NodeContext) -> Windows:
    """Read a pool's windows, with the end padding that yields ONNX's number of them."""
    sizes = c.shape()[2:]
    windows = read_windows(c.attribute, tuple(c.required("kernel_shape")), sizes)
    if len(sizes) not in _MAX:
        raise Refusal(f"it has {len(sizes)} spatial axes; one to three are supported")
    end = []
    for axis, size in enumerate(sizes):
        # ``ceil_mode`` adds a window that may reach beyond the padding.
        last = (c.result.shape[2 + axis] - 1) * windows.strides[axis] + windows.spans[axis]
        end.append(max(windows.end[axis], last - size - windows.begin[axis]))
    return Windows(windows.kernel, windows.strides, windows.dilations, windows.begin, tuple(end))


def _pool(
    c: NodeContext, x: relax.Expr, windows: Windows, kind: str, include_pad: bool = True
) -> relax.Expr:
    table = _MAX if kind == "max" else _AVERAGE
    return table[len(windows.kernel)](
        x, pool_size=windows.kernel, strides=windows.strides, padding=windows.pads,
        dilation=windows.dilations, ceil_mode=False, count_include_pad=include_pad,
    )  # fmt: skip


def _counts(c: NodeContext, windows: Windows, include_pad: bool) -> np.ndarray:
    """Count the elements of every window that ONNX's mean divides by.

    Returns
    -------
    numpy.ndarray
        Shape (1, 1, spatial...): elements in the input, or in the input and the padding
        that the attributes ask for; never those beyond, which ``ceil_mode`` touches.
    """
    sizes, declared = c.shape()[2:], read_windows(c.attribute, windows.kernel, c.shape()[2:])
    counts = np.ones((1, 1), np.int64)
    for axis, size in enumerate(sizes):
        outputs = c.result.shape[2 + axis]
        starts = np.arange(outputs) * windows.strides[axis] - windows.begin[axis]
        taps = np.arange(windows.kernel[axis]) * windows.dilations[axis]
        positions = starts[:, None] + taps[None, :]
        low, high = 0, size
        if include_pad:
            low, high = -declared.begin[axis], size + declared.end[axis]
        inside = ((positions >= low) & (positions < high)).sum(axis=1)
        counts = counts[..., None] * inside.reshape((1,) * counts.ndim + (-1,))
    return counts


@converts("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(c: NodeContext) -> relax.Expr:
    """Mean, maximum or p-norm over all spatial axes, which keep the extent 1."""
    axes = list(range(2, len(c.shape())))
    if c.op_type == "GlobalLpPool":
        p = _order(c)
        powers = c.emit(_power(c, c.emit(R.abs(c.input())), p))
        return _root(c, c.emit(wide_reduction(c, R.sum, powers, axes, keepdims=True)), p)
    if c.op_type == "GlobalAveragePool":
        return wide_reduction(c, R.mean, c.input(), axes, keepdims=True)
    return R.max(c.input(), axes, keepdims=True)
