"""Sliding windows: where they begin and end, for convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass

from .context import NodeContext, Refusal


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
    def extents(self) -> tuple[int, ...]:
        """Elements that a dilated kernel spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def read_windows(c: NodeContext, kernel: tuple[int, ...], sizes: tuple[int, ...]) -> Windows:
    """Read strides, dilations and padding of a node, and resolve ``auto_pad``.

    Parameters
    ----------
    kernel
        Extents of the kernel.
    sizes
        Spatial extents of the input.

    Raises
    ------
    Refusal
        If attributes have the wrong length, or padding is negative.
    """
    rank = len(sizes)
    strides = spatial(c, "strides", rank, 1)
    dilations = spatial(c, "dilations", rank, 1)
    mode = c.attribute("auto_pad", "NOTSET")
    if len(kernel) != rank:
        raise Refusal(f"its kernel has {len(kernel)} axes for an input with {rank}")
    if mode == "NOTSET":
        pads = spatial(c, "pads", 2 * rank, 0)
        if min(pads, default=0) < 0:
            raise Refusal("its padding is negative")
        return Windows(kernel, strides, dilations, pads[:rank], pads[rank:])
    if mode == "VALID":
        return Windows(kernel, strides, dilations, (0,) * rank, (0,) * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise Refusal(f"its auto_pad {mode!r} is unknown")
    # "Same" means as many windows as strides begin in the input; what is missing is split,
    # and an odd element goes to the end for SAME_UPPER, to the begin for SAME_LOWER.
    begin, end = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        count = -(-size // stride)
        missing = max((count - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        smaller, larger = missing // 2, missing - missing // 2
        begin.append(smaller if mode == "SAME_UPPER" else larger)
        end.append(larger if mode == "SAME_UPPER" else smaller)
    return Windows(kernel, strides, dilations, tuple(begin), tuple(end))


def spatial(c: NodeContext, name: str, length: int, default: int) -> tuple[int, ...]:
    """Return an attribute with one number for each axis (or two, for padding)."""
    values = tuple(c.attribute(name) or [default] * length)
    if len(values) != length:
        raise Refusal(f"its attribute {name!r} has {len(values)} numbers, expected {length}")
    return values
