"""What is known of a tensor at an interface: its name, shape and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np


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
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of a compact array."""
        return self.elements * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
