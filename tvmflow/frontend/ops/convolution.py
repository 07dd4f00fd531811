"""Converters of convolutions and transposed convolutions with one to three spatial axes.

The formulas are from ONNX's operator specifications.  The extents of transposed convolutions are
computed here, as ONNX's shape inference fails for some with ``output_shape``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.tirx import floordiv, floormod

from ...ir.rewriter import constant, constant_array
from ...ir.tensors import TensorType
from ..converter import InvalidNode, NodeContext, Refusal, converts, formulas
from ..graph import Graph, node_attributes
from .quantization import difference, integer_product, per_axis_shape, requantize

Extents = tuple[int, ...]
Attributes = Mapping[str, Any]

_CONV_TRANSPOSE = {2: R.nn.conv2d_transpose, 3: R.nn.conv3d_transpose}


@dataclass(frozen=True)
class Windows:
    """Windows of a convolution or pool, in elements, with one entry for each spatial axis.

    ``begin`` and ``end`` are the padding before and after.
    """

    kernel: Extents
    strides: Extents
    dilations: Extents
    begin: Extents
    end: Extents

    @property
    def pads(self) -> Extents:
        """Return the padding in the order of ONNX and Relax: all begins, then all ends."""
        return self.begin + self.end

    @property
    def spans(self) -> Extents:
        """Return the extents of the dilated kernel."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def counts(self, sizes: Extents) -> Extents:
        """Return the number of windows along each axis for an input of these extents."""
        each = zip(sizes, self.begin, self.end, self.spans, self.strides, strict=True)
        return tuple((size + b + e - span) // stride + 1 for size, b, e, span, stride in each)

    def along(self, *axes: int) -> Windows:
        """Return the windows along some axes."""
        return Windows(*(tuple(part[axis] for axis in axes) for part in self._parts))

    def concat(self, other: Windows) -> Windows:
        """Return the windows along these axes followed by the axes of others."""
        return Windows(*(a + b for a, b in zip(self._parts, other._parts, strict=True)))

    @property
    def _parts(self) -> tuple[Extents, ...]:
        return self.kernel, self.strides, self.dilations, self.begin, self.end

    def taps_inside(self, axis: int, size: int) -> tuple[int, int]:
        """Return the first and the last element of a kernel that do not only meet padding.

        At least one element is kept, and so many that no padding becomes negative.
        """
        step, stride = self.dilations[axis], self.strides[axis]
        begin, end = self.begin[axis], self.end[axis]
        (count,) = self.along(axis).counts((size,))

        def is_inside(tap: int) -> bool:
            return any(0 <= tap * step - begin + i * stride < size for i in range(count))

        first, last = 0, self.kernel[axis] - 1
        while first < last and begin >= (first + 1) * step and not is_inside(first):
            first += 1
        while first < last and end >= (self.kernel[axis] - last) * step and not is_inside(last):
            last -= 1
        return first, last


#: Windows along an axis of one element.
_ONE = Windows((1,), (1,), (1,), (0,), (0,))


def read_windows(attributes: Attributes, kernel: Extents, sizes: Extents) -> Windows:
    """Read strides, dilations and padding, and resolve ``auto_pad``.

    ``sizes`` are the spatial extents of the input.

    Raises ``InvalidNode`` if attributes have the wrong length, ``Refusal`` if padding is negative.
    """
    rank, mode = len(sizes), attributes.get("auto_pad", "NOTSET")
    strides = per_axis(attributes, "strides", rank, 1)
    dilations = per_axis(attributes, "dilations", rank, 1)
    if len(kernel) != rank:
        raise InvalidNode(f"its kernel has {len(kernel)} axes for an input with {rank}")
    if min(kernel + strides + dilations, default=1) < 1:
        raise InvalidNode("its kernel, strides or dilations are not positive")
    if mode in ("NOTSET", "VALID"):
        pads = per_axis(attributes if mode == "NOTSET" else {}, "pads", 2 * rank, 0)
        if min(pads, default=0) < 0:
            raise Refusal("its padding is negative")
        return Windows(kernel, strides, dilations, pads[:rank], pads[rank:])
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise Refusal(f"its auto_pad {mode!r} is unknown")
    # "Same" means ceil(size / stride) windows; the padding for them is split evenly, and an odd
    # element is put at the end for SAME_UPPER, at the beginning for SAME_LOWER.
    begin, end = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        missing = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        smaller, larger = missing // 2, missing - missing // 2
        begin.append(smaller if mode == "SAME_UPPER" else larger)
        end.append(larger if mode == "SAME_UPPER" else smaller)
    return Windows(kernel, strides, dilations, tuple(begin), tuple(end))


def per_axis(attributes: Attributes, name: str, length: int, default: int) -> Extents:
    """Return an attribute that has one number for each axis (two for padding)."""
    values = tuple(attributes.get(name) or [default] * length)
    if len(values) != length:
        raise InvalidNode(f"its attribute {name!r} has {len(values)} numbers, expected {length}")
    return values


def windowed_type(data: TensorType, channels: int, extents: Extents) -> TensorType:
    """Return the type of a result with these spatial extents; refuse empty ones."""
    if min(extents, default=1) < 1:
        raise Refusal(f"its result would have the extents {list(extents)}: the kernel is too large")
    return TensorType((data.shape[0], channels, *extents), data.dtype)


@converts("Conv")
def conv(c: NodeContext) -> relax.Expr:
    """Convolve (N, C, spatial...) with (O, C / group, spatial...), and add a bias."""
    integers = integer_product(c, 0) if len(c.shape()) == 4 else None
    if integers is None:
        return convolve(c, c.input(0), c.input(1), c.shape(1), has_bias=True)
    total = convolve(c, integers.x, constant(integers.weight), c.shape(1))
    return with_bias(c, integers.scaled(c, total, 1))


@converts("QLinearConv")
def qlinear_conv(c: NodeContext) -> relax.Expr:
    """Convolve quantized numbers, add a bias, and quantize the result."""
    total = convolve(c, difference(c, 0, 2, None), difference(c, 3, 5, 0), c.shape(3))
    if c.has(8):
        bias = c.array(8, "biases").astype(np.int32)
        shape = per_axis_shape(bias.size, c.result.shape, 1)
        total = total + constant(bias.reshape(shape))
    return requantize(c, total, scales=(1, 4, 6), zero=7, axis=1)


formulas(
    # Zero points are subtracted first, in int32.
    ConvInteger=lambda c: convolve(
        c, difference(c, 0, 2, None), difference(c, 1, 3, 0), c.shape(1)
    ),
)


def convolve(
    c: NodeContext, x: relax.Expr, w: relax.Expr, weight: Extents, *, has_bias: bool = False
) -> relax.Expr:
    """Return the node's convolution of these operands.

    With one or three spatial axes it becomes a 2-D convolution, for which there are schedules::

        (N, C, L)            (N, C, 1, L)
        (N, C, D, H, W)      (N, C, D, H · W), where the kernel has an extent along D only,
                             else (N · D', C · K, H, W), with the K frames that each of D' reads
    """
    shape, groups = c.shape(0), c.attribute("group", 1)
    rank = spatial_rank(shape, weight, weight[1] * groups)
    windows, w = _without_padding(read_windows(c.attributes, weight[2:], shape[2:]), shape[2:], w)
    array = constant_array(w)

    def of_pictures(
        x: relax.Expr, data: Extents, flat: Windows, w: relax.Expr = w, inputs: int = weight[1]
    ) -> relax.Expr:
        kernel = (weight[0], inputs, *flat.kernel)
        known = constant_array(w)
        if known is not None:
            w = constant(known.reshape(kernel))
        elif kernel != weight:
            w = R.reshape(w, kernel)
        x = x if data == shape else R.reshape(x, data)
        return R.nn.conv2d(
            x, w, strides=flat.strides, padding=flat.pads, dilation=flat.dilations, groups=groups
        )

    def finished(result: relax.Expr) -> relax.Expr:
        return with_bias(c, result) if has_bias else result

    if rank == 2:
        return finished(of_pictures(x, shape, windows))
    batch, channels, *sizes = shape
    extents = windows.counts(shape[2:])
    depth, flat = windows.along(0), windows.along(*range(1, rank))
    if rank == 1:
        result = finished(of_pictures(x, (batch, channels, 1, *sizes), _ONE.concat(windows)))
        return R.reshape(result, (batch, weight[0], *extents))
    if flat == _ONE.concat(_ONE):
        flat, data = depth.concat(_ONE), (batch, channels, sizes[0], sizes[1] * sizes[2])
        result = finished(of_pictures(x, data, flat))
        return R.reshape(result, (batch, weight[0], *extents))
    frames = _frames(c, x, depth, extents[0])
    many = batch * extents[0]
    if weight[1] == 1 and array is not None:
        # A depthwise convolution is the sum of one 2-D convolution for each frame of the kernel.
        each = [
            c.emit(of_pictures(x, (many, channels, *sizes[1:]), flat, constant(array[:, :, k])))
            for k, x in enumerate(frames)
        ]
        result = reduce(R.add, each)
    else:
        x = R.concat([R.expand_dims(frame, 3) for frame in frames], 3)
        whole = (many, channels * len(frames), *sizes[1:])
        result = of_pictures(x, whole, flat, inputs=weight[1] * len(frames))
    result = R.reshape(finished(result), (batch, extents[0], weight[0], *extents[1:]))
    return R.permute_dims(result, [0, 2, 1, 3, 4])


def _frames(c: NodeContext, x: relax.Expr, depth: Windows, count: int) -> list[relax.Expr]:
    """Return the frames that each element of a kernel's depth reads, (N, count, C, H, W)."""
    (kernel,), (stride,), (dilation,) = depth.kernel, depth.strides, depth.dilations
    x = R.permute_dims(x, [0, 2, 1, 3, 4])
    if any(depth.pads):
        x = R.nn.pad(x, [0, 0, *depth.pads, 0, 0, 0, 0, 0, 0])
    x, span = c.emit(x), (count - 1) * stride + 1
    return [
        c.emit(R.strided_slice(x, [1], [first], [first + span], [stride]))
        for first in range(0, kernel * dilation, dilation)
    ]


def _without_padding(windows: Windows, sizes: Extents, w: relax.Expr) -> tuple[Windows, relax.Expr]:
    """Remove weights at the ends of a kernel that only meet padding.

    With a dilation as large as the input, 3×3 weights reduce to 1×1 (L.-C. Chen et al., "Rethinking
    Atrous Convolution for Semantic Image Segmentation", 2017, section 3.3)::

        before  6×6 input, 3×3 kernel, dilations 12, pads 12
        after   6×6 input, 1×1 kernel, the middle one
    """
    weights = constant_array(w)
    taps = [windows.taps_inside(axis, size) for axis, size in enumerate(sizes)]
    if taps == [(0, k - 1) for k in windows.kernel] or weights is None:
        return windows, w
    if not np.isfinite(weights).all():
        # A weight that is not finite makes NaN of the padding's zeros, so all are kept.
        return windows, w
    kept = (slice(None), slice(None), *(slice(first, last + 1) for first, last in taps))
    each = list(zip(taps, windows.kernel, windows.dilations, strict=True))
    kernel = tuple(last + 1 - first for first, last in taps)
    dilations = tuple(d if k > 1 else 1 for k, d in zip(kernel, windows.dilations, strict=True))
    begin = tuple(b - t[0] * d for b, (t, _, d) in zip(windows.begin, each, strict=True))
    end = tuple(e - (k - 1 - t[1]) * d for e, (t, k, d) in zip(windows.end, each, strict=True))
    return Windows(kernel, windows.strides, dilations, begin, end), constant(weights[kept])


def spatial_rank(shape: Extents, weight: Extents, channels: int) -> int:
    """Return the number of spatial axes; check the channels, as ONNX's inference does not.

    ``channels`` is the number of input channels that the weight has.
    """
    rank = len(shape) - 2
    if not 1 <= rank <= 3:
        raise Refusal(f"it has {rank} spatial axes; one to three are supported")
    if shape[1] != channels:
        raise InvalidNode(
            f"its input {list(shape)} has {shape[1]} channels, but its weight {list(weight)} "
            f"is for {channels}"
        )
    return rank


def with_bias(c: NodeContext, result: relax.Expr, index: int = 2, *, axes: int = 4) -> relax.Expr:
    """Add the bias, if there is one, along the channels of a result with ``axes`` axes."""
    if not c.has(index):
        return result
    shape = (1, c.shape(index)[0]) + (1,) * (axes - 2)
    return result + c.reshaped(index, shape)


@dataclass(frozen=True)
class TransposedWindows(Windows):
    """Windows of a transposed convolution, whose padding is cut off its result.

    ``extra`` (``output_padding``) is added at the end.  Without any padding the result has the
    extents ``full``, with it ``extents``.
    """

    extra: Extents
    full: Extents
    extents: Extents


def transposed_windows(
    attributes: Attributes, kernel: Extents, sizes: Extents
) -> TransposedWindows:
    """Read the attributes of a transposed convolution, like :func:`read_windows`.

    ``output_shape`` and ``auto_pad`` determine the padding from the extents; an odd element is cut
    at the end for SAME_UPPER, else at the beginning.
    """
    rank, mode = len(sizes), attributes.get("auto_pad", "NOTSET")
    given = attributes.get("output_shape")
    if given and len(given) < rank:
        raise InvalidNode(f"its output_shape has {len(given)} numbers, expected {rank}")
    if len(kernel) != rank:
        raise InvalidNode(f"its kernel has {len(kernel)} axes for an input with {rank}")
    strides = per_axis(attributes, "strides", rank, 1)
    dilations = per_axis(attributes, "dilations", rank, 1)
    extra = per_axis(attributes, "output_padding", rank, 0)
    full = tuple(
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    )
    whole = [f + e for f, e in zip(full, extra, strict=True)]
    if not given and not mode.startswith("SAME"):
        pads = per_axis(attributes if mode == "NOTSET" else {}, "pads", 2 * rank, 0)
        begin = pads[:rank]
        extents = tuple(w - pads[a] - pads[a + rank] for a, w in enumerate(whole))
    else:
        # Padding cannot enlarge: a kernel smaller than the stride gives less than size · stride.
        same = [min(w, size * s) for w, size, s in zip(whole, sizes, strides, strict=True)]
        extents = tuple(given[-rank:] if given else same)
        totals = [max(w - extent, 0) for w, extent in zip(whole, extents, strict=True)]
        begin = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals)
    # The result is full[begin : begin + extent]; the rest of full is padding at the end.
    end = tuple(w - b - extent for w, b, extent in zip(whole, begin, extents, strict=True))
    return TransposedWindows(kernel, strides, dilations, begin, end, extra, full, extents)


def _transposed_type(node: onnx.NodeProto, graph: Graph) -> TensorType:
    attributes = node_attributes(node)
    data, weight = (graph.type_of(name) for name in node.input[:2])
    windows = transposed_windows(attributes, weight.shape[2:], data.shape[2:])
    return windowed_type(data, weight.shape[1] * attributes.get("group", 1), windows.extents)


@converts("ConvTranspose", result_type=_transposed_type)
def conv_transpose(c: NodeContext) -> relax.Expr:
    """Compute a transposed convolution with a weight (I, O / group, spatial...), and add a bias.

    Forms that Relax's operator does not support (padding beyond the kernel, output padding of a
    stride or more) are computed without padding, then cropped or padded.  With one spatial axis it
    becomes a 2-D operator on one row.
    """
    shape, weight = c.shape(0), c.shape(1)
    rank = spatial_rank(shape, weight, weight[0])
    windows = transposed_windows(c.attributes, weight[2:], shape[2:])
    if rank > 1:
        return _transposed(c, c.input(0), c.input(1), windows)
    of_one = (1, 1, 1, 0, 0, 0, 1, 1)
    parts = (getattr(windows, part.name) for part in fields(windows))
    windows = TransposedWindows(*((one, *part) for one, part in zip(of_one, parts, strict=True)))
    x, w = (c.reshaped(index, (*c.shape(index)[:2], 1, c.shape(index)[2])) for index in (0, 1))
    result = _transposed(c, x, w, windows)
    return R.reshape(result, c.result.shape)


def _transposed(
    c: NodeContext, x: relax.Expr, w: relax.Expr, windows: TransposedWindows
) -> relax.Expr:
    native = all(
        0 <= begin < span and 0 <= end < span and 0 <= extra < stride
        for begin, end, extra, span, stride in zip(
            windows.begin, windows.end, windows.extra, windows.spans, windows.strides, strict=True
        )
    )
    padding = {"padding": windows.pads, "output_padding": windows.extra} if native else {}
    result = _CONV_TRANSPOSE[len(windows.kernel)](
        x, w, strides=windows.strides, dilation=windows.dilations,
        groups=c.attribute("group", 1), **padding,
    )  # fmt: skip
    return with_bias(c, result if native else _cut(result, windows), axes=len(windows.kernel) + 2)


def _cut(full: relax.Expr, windows: TransposedWindows) -> relax.Expr:
    """Return ``full[begin : begin + extent]`` along the spatial axes, padded with zeros."""
    axes = list(zip(windows.full, windows.begin, windows.extents, strict=True))
    widths = [(max(-begin, 0), max(begin + extent - size, 0)) for size, begin, extent in axes]
    if any(map(any, widths)):
        full = R.nn.pad(full, [0, 0, 0, 0, *(width for pair in widths for width in pair)])
    starts = [max(begin, 0) for _, begin, _ in axes]
    ends = [start + extent for start, (_, _, extent) in zip(starts, axes, strict=True)]
    sizes = [size + sum(pair) for (size, _, _), pair in zip(axes, widths, strict=True)]
    if sizes == list(windows.extents) and not any(starts):
        return full
    return R.strided_slice(full, list(range(2, len(axes) + 2)), starts, ends)


@converts("Col2Im")
def col2im(c: NodeContext) -> relax.Expr:
    """Sum columns of windows at their positions in an image, the reverse of im2col."""
    sizes = tuple(int(n) for n in c.array(1, "shape of the image"))
    kernel = tuple(int(n) for n in c.array(2, "shape of the blocks"))
    windows = read_windows(c.attributes, kernel, sizes)
    counts = list(windows.counts(sizes))
    batch, depth, columns = c.shape()
    if columns != prod(counts) or depth % prod(kernel):
        raise InvalidNode(
            f"its {depth} × {columns} columns do not fit {counts} windows of {list(kernel)}"
        )
    channels = depth // prod(kernel)

    def compute(x: te.Tensor) -> te.Tensor:
        over = [te.reduce_axis((0, extent)) for extent in kernel]

        def element(n: tirx.Var, k: tirx.Var, *place: tirx.Var) -> tirx.Expr:
            column, row, there = tirx.const(0, "int32"), k, []
            for i, tap, extent, count, begin, stride, dilation in zip(
                place, over, kernel, counts, windows.begin, windows.strides, windows.dilations,
                strict=True,
            ):  # fmt: skip
                ahead = i + begin - tap * dilation
                window = floordiv(ahead, stride)
                there += [floormod(ahead, stride) == 0, window >= 0, window < count]
                row, column = row * extent + tap, column * count + window
            zero = tirx.const(0, c.dtype())
            value = tirx.if_then_else(tirx.all(*there), x(n, row, column), zero)
            return te.sum(value, axis=over)

        return te.compute((batch, channels, *sizes), element, name="col2im")

    return c.builder.call_te(compute, c.input(), primfunc_name_hint="col2im")
