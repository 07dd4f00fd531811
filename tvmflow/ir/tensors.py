"""Types of tensors: shape and dtype, and at an interface a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np


@dataclass(frozen=True)
class TensorType:
    """The static shape and NumPy dtype name of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TensorInfo:
    """A named tensor with a static shape.

    Parameters
    ----------
    name
        The name it has in the ONNX model.
    shape
        Its extents, outermost first; ``()`` is a scalar.
    dtype
        NumPy's name of the element type, such as ``"float32"`` or ``"bool"``.
    logical_shape
        Of a tensor whose blocked layout is kept: the shape in the ONNX model, of which
        `shape` ``[N, C', H, W, 4]`` is the blocked form.
    scope, image
        Of one that is also kept in an image: its memory scope, and its extent in texels.
    open_dims
        Numbers of the dimensions whose extents the ONNX model leaves to whoever compiles it;
        they do not tell one tensor from another.
    bounded_axis
        Of an output whose size is known only at run time: the axis of which only the first elements
        count, as many as the output `count_name` says.  Its extent in `shape` is the bound.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    logical_shape: tuple[int, ...] | None = None
    scope: str | None = None
    image: str | None = None
    open_dims: tuple[int, ...] = field(default=(), compare=False)
    bounded_axis: int | None = None

    @property
    def layout(self) -> str | None:
        """``NCHW4c`` of a tensor whose blocked layout is kept, else ``None``."""
        return None if self.logical_shape is None else f"NCHW{self.shape[-1]}c"

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of a compact array."""
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def extents(self) -> tuple[int | str, ...]:
        """The shape, with ``≤300`` for an extent that is a bound."""
        return tuple(
            f"≤{extent}" if axis == self.bounded_axis else extent
            for axis, extent in enumerate(self.shape)
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.extents))}]"


@dataclass(frozen=True)
class SizeLimit:
    """A bound of the user's for a size that is known only at run time, or the range of indices."""

    #: The output with the size, or with an index out of range if there is one.
    count: str
    #: The node that it was given for, or that has the indices.
    node: str
    #: The largest size or index.
    bound: int
    #: The least index; ``None`` for a size.
    least: int | None = None
    #: Why a run is an error that exceeds the bound; ``None`` for sizes and indices.
    reason: str | None = None


def count_name(name: str) -> str:
    """The output with the number of elements of a bounded one, or of what a bound was given for."""
    return f"{name}.count"
