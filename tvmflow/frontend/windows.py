"""Sliding windows of convolutions and pools: padding and the extents of results.

The formulas are those of ONNX's operator specifications.  ONNX's own shape inference is
not asked for the extents: it counts windows of ``ceil_mode`` that begin behind the input
(which the specification of MaxPool and AveragePool ignores), and gives up on some
transposed convolutions with ``output_shape``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

POOLS = ("AveragePool", "LpPool", "MaxPool")


class WindowError(ValueError):
    """The windows are not supported or not possible; the message says why."""


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or pool, one entry for each spatial axis.

    Parameters
    ----------
    kernel, strides, dilations
        In elements.
    begin, end
        Padding before and after, in elements.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """All begins, then all ends: the order of ONNX and of Relax."""
        return self.begin + self.end

    @property
    def spans(self) -> tuple[int, ...]:
        """Elements from the first to the last one of a dilated kernel."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


#: Returns an attribute's value, or the given default.
Attributes = Callable[[str, Any], Any]


def node_attributes(node: onnx.NodeProto) -> Attributes:
    """Return a function that looks a node's attributes up."""
    values: Mapping[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def get(name: str, default: Any) -> Any:
        value = values.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    return get


def read_windows(
    attributes: Attributes, kernel: tuple[int, ...], sizes: tuple[int, ...]
) -> Windows:
    """Read strides, dilations and padding, and resolve ``auto_pad``.

    Parameters
    ----------
    attributes
        The node's attributes.
    kernel, sizes
        Spatial extents of the kernel and of the input.

    Raises
    ------
    WindowError
        If attributes have the wrong length, or padding is negative.
    """
    rank = len(sizes)
    strides = per_axis(attributes, "strides", rank, 1)
    dilations = per_axis(attributes, "dilations", rank, 1)
    mode = attributes("auto_pad", "NOTSET")
    if len(kernel) != rank:
        raise WindowError(f"its kernel has {len(kernel)} axes for an input with {rank}")
    if min(kernel + strides + dilations, default=1) < 1:
        raise WindowError("its kernel, strides or dilations are not positive")
    if mode == "NOTSET":
        pads = per_axis(attributes, "pads", 2 * rank, 0)
        if min(pads, default=0) < 0:
            raise WindowError("its padding is negative")
        return Windows(kernel, strides, dilations, pads[:rank], pads[rank:])
    if mode == "VALID":
        return Windows(kernel, strides, dilations, (0,) * rank, (0,) * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise WindowError(f"its auto_pad {mode!r} is unknown")
    # "Same" means as many windows as strides begin in the input; what is missing is split,
    # and an odd element goes to the end for SAME_UPPER, to the begin for SAME_LOWER.
    begin, end = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        missing = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        smaller, larger = missing // 2, missing - missing // 2
        begin.append(smaller if mode == "SAME_UPPER" else larger)
        end.append(larger if mode == "SAME_UPPER" else smaller)
    return Windows(kernel, strides, dilations, tuple(begin), tuple(end))


def per_axis(attributes: Attributes, name: str, length: int, default: int) -> tuple[int, ...]:
    """Return an attribute with one number for each axis (or two, for padding).

    Raises
    ------
    WindowError
        If it has another length.
    """
    values = tuple(attributes(name, None) or [default] * length)
    if len(values) != length:
        raise WindowError(f"its attribute {name!r} has {len(values)} numbers, expected {length}")
    return values


def pool_extents(
    op_type: str, attributes: Attributes, kernel: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the spatial extents of a pool's result.

    Parameters
    ----------
    op_type
        One of ``POOLS``.
    attributes
        The node's attributes.
    kernel, sizes
        Spatial extents of the kernel and of the input.

    Raises
    ------
    WindowError
        If the windows are not supported.
    """
    windows = read_windows(attributes, kernel, sizes)
    same = attributes("auto_pad", "NOTSET").startswith("SAME")
    # The specification and ONNX Runtime pad differently in these two cases.
    if same and max(windows.dilations) > 1:
        raise WindowError("auto_pad with dilations is ambiguous")
    if same and op_type != "MaxPool":
        for size, span, stride in zip(sizes, windows.spans, windows.strides, strict=True):
            if (-(-size // stride) - 1) * stride + span - size <= -2:
                raise WindowError("auto_pad with strides beyond the kernel is ambiguous")
    ceil = bool(attributes("ceil_mode", 0)) and not same
    extents = []
    for axis, size in enumerate(sizes):
        begin, end, stride = windows.begin[axis], windows.end[axis], windows.strides[axis]
        room = size + begin + end - windows.spans[axis]
        count = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (count - 1) * stride >= size + begin:
            count -= 1  # windows that begin in the padding at the end do not count
        extents.append(count)
    return tuple(extents)


def transposed_extents(
    attributes: Attributes, kernel: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the spatial extents of a transposed convolution's result.

    Raises
    ------
    WindowError
        If attributes have the wrong length.
    """
    rank = len(sizes)
    given = attributes("output_shape", None)
    if given:
        if len(given) < rank:
            raise WindowError(f"its output_shape has {len(given)} numbers, expected {rank}")
        return tuple(given[-rank:])
    if len(kernel) != rank:
        raise WindowError(f"its kernel has {len(kernel)} axes for an input with {rank}")
    strides = per_axis(attributes, "strides", rank, 1)
    dilations = per_axis(attributes, "dilations", rank, 1)
    extra = per_axis(attributes, "output_padding", rank, 0)
    full = [
        (size - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 + extra[a]
        for a, size in enumerate(sizes)
    ]
    mode = attributes("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        # Padding only takes away: a kernel smaller than the stride leaves less than the product.
        return tuple(min(f, size * s) for f, size, s in zip(full, sizes, strides, strict=True))
    pads = per_axis(attributes, "pads", 2 * rank, 0) if mode == "NOTSET" else (0,) * (2 * rank)
    return tuple(extent - pads[a] - pads[a + rank] for a, extent in enumerate(full))
