"""Convolutions and transposed convolutions with one to three spatial axes."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..windows import per_axis, read_windows
from .context import NodeContext, Refusal, constant, shape_of
from .dequantized import integer_product
from .registry import converts

R = relax.op

_CONV = {1: R.nn.conv1d, 2: R.nn.conv2d, 3: R.nn.conv3d}
_CONV_TRANSPOSE = {1: R.nn.conv1d_transpose, 2: R.nn.conv2d_transpose, 3: R.nn.conv3d_transpose}


@converts("Conv")
def conv(c: NodeContext) -> relax.Expr:
    """Convolution (N, C, spatial...) × (O, C / group, spatial...), plus a bias."""
    rank = len(c.shape()) - 2
    integers = integer_product(c, 0) if rank == 2 else None
    if integers is None:
        result = convolve(c, c.input(0), c.input(1), c.shape(1))
    else:
        total = convolve(c, integers.x, constant(integers.weight), c.shape(1))
        result = integers.scaled(c, total, 1)
    return _with_bias(c, result, rank)


def convolve(c: NodeContext, x: relax.Expr, w: relax.Expr, weight: tuple[int, ...]) -> relax.Expr:
    """The node's convolution, of its operands or what was made of them."""
    shape = c.shape(0)
    rank, groups = _spatial_rank(shape), c.attribute("group", 1)
    _check_channels(shape[1], weight[1] * groups)
    windows = read_windows(c.attribute, weight[2:], shape[2:])
    return _CONV[rank](
        x, w, strides=windows.strides, padding=windows.pads,
        dilation=windows.dilations, groups=groups,
    )  # fmt: skip


def _spatial_rank(shape: tuple[int, ...]) -> int:
    rank = len(shape) - 2
    if rank not in _CONV:
        raise Refusal(f"it has {rank} spatial axes; one to three are supported")
    return rank


def _check_channels(found: int, expected: int) -> None:
    """Compare the input's channels with the weight's, which ONNX's inference does not."""
    if found != expected:
        raise Refusal(f"its input has {found} channels, its weight is for {expected}")


def _with_bias(c: NodeContext, result: relax.Expr, rank: int) -> relax.Expr:
    """Add the third input, if there is one, along the channels."""
    if not c.has(2):
        return result
    shape = (1, c.shape(2)[0]) + (1,) * rank
    values = c.known(2)
    if values is not None:
        bias: relax.Expr = constant(np.ascontiguousarray(values.reshape(shape)))
    else:
        bias = c.emit(R.reshape(c.input(2), shape))
    return R.add(c.emit(result), bias)


@converts("ConvTranspose")
def conv_transpose(c: NodeContext) -> relax.Expr:
    """Transposed convolution with a weight (I, O / group, spatial...), plus a bias.

    What Relax's operator cannot express (padding beyond the kernel, output padding of a
    stride or more) is computed without padding, then cropped or padded.
    """
    shape, weight = c.shape(0), c.shape(1)
    rank = _spatial_rank(shape)
    strides, dilations = (
        per_axis(c.attribute, "strides", rank, 1),
        per_axis(c.attribute, "dilations", rank, 1),
    )
    kernel = weight[2:]
    groups = c.attribute("group", 1)
    _check_channels(shape[1], weight[0])
    # Extent of the result without any padding.
    full = tuple(
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, k, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True)
    )
    begin, extra = _transposed_padding(c, full)
    # The result is full[begin : begin + result]; the rest of full is padding at the end.
    wanted = c.result.shape[2:]
    end = tuple(f + e - b - w for f, e, b, w in zip(full, extra, begin, wanted, strict=True))
    spans = tuple((k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True))
    native = all(
        0 <= b < span and 0 <= p < span and 0 <= e < stride
        for b, p, e, span, stride in zip(begin, end, extra, spans, strides, strict=True)
    )
    options = {"strides": strides, "dilation": dilations, "groups": groups}
    operator = _CONV_TRANSPOSE[rank]
    if native:
        result = operator(
            c.input(0), c.input(1), padding=begin + end, output_padding=extra, **options
        )
        return _with_bias(c, result, rank)
    result = operator(c.input(0), c.input(1), **options)
    return _with_bias(c, _cut(c, result, begin, wanted), rank)


def _transposed_padding(
    c: NodeContext, full: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how much is cut off before the result, and how much is added after it.

    ``output_shape`` and ``auto_pad`` determine the padding from the extents, as the
    operator's specification says; an odd element is cut at the end for SAME_UPPER, else
    at the begin.
    """
    rank = len(full)
    extra = per_axis(c.attribute, "output_padding", rank, 0)
    mode = c.attribute("auto_pad", "NOTSET")
    if not c.attribute("output_shape") and mode in ("NOTSET", "VALID"):
        pads = per_axis(c.attribute, "pads", 2 * rank, 0) if mode == "NOTSET" else (0,) * (2 * rank)
        return pads[:rank], extra
    wanted = c.result.shape[2:]
    begin = []
    for f, e, w in zip(full, extra, wanted, strict=True):
        total = max(f + e - w, 0)
        begin.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    return tuple(begin), extra


def _cut(
    c: NodeContext, full: relax.Expr, begin: tuple[int, ...], wanted: tuple[int, ...]
) -> relax.Expr:
    """Return ``full[begin : begin + wanted]`` of the spatial axes, zeros where it ends early."""
    value = c.emit(full)
    sizes = shape_of(value)[2:]
    pad_width = [0, 0, 0, 0]
    for size, b, w in zip(sizes, begin, wanted, strict=True):
        pad_width += [max(-b, 0), max(b + w - size, 0)]
    if any(pad_width):
        value = c.emit(R.nn.pad(value, pad_width))
    starts = [max(b, 0) for b in begin]
    ends = [start + w for start, w in zip(starts, wanted, strict=True)]
    if shape_of(value)[2:] == tuple(wanted) and not any(starts):
        return value
    axes = list(range(2, 2 + len(wanted)))
    return R.strided_slice(value, axes, starts, ends)
