"""Types of tensors: shape and dtype, and for inputs and outputs a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np


def dtype_from_name(name: str) -> np.dtype:
    """Return the NumPy dtype of this name; ``bfloat16`` comes from ``ml_dtypes``."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@dataclass(frozen=True)
class TensorType:
    """Static shape and NumPy dtype name of a tensor."""

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
        Name in the ONNX model.
    shape
        Extents, outermost first; ``()`` is a scalar.
    dtype
        NumPy's name of the element type, such as ``"float32"`` or ``"bool"``.
    logical_shape
        Shape in the ONNX model, if `shape` is its blocked form ``[N, C', H, W, 4]``.
    scope, image
        Memory scope and extent in texels of a blocked tensor that is a texture.
    open_dims
        Indices of the dimensions that the ONNX model leaves open; not compared.
    bounded_axis
        Bounded axis of an output whose size is known only at run time: its extent in `shape` is the
        bound, and the output `count_name` has the number of valid elements.
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
    """Upper bound of a size that is known only at run time, or range of run-time indices."""

    #: Output with the size, or with an index that is out of range, if any.
    count: str
    #: Node that the bound was given for, or that has the indices.
    node: str
    #: Largest size or index.
    bound: int
    #: Least index; ``None`` for a size.
    least: int | None = None
    #: Error message for a run that exceeds the bound; ``None`` for sizes and indices.
    reason: str | None = None


def count_name(name: str) -> str:
    """Return the name of the output that has the size of a bounded one."""
    return f"{name}.count"
