"""An execution plan as Python objects, before it becomes bytes.

What `native/standalone/plan.h` has as indices and offsets are names and objects here.  Besides,
operands know which *tensor* they are for: tensors whose lives do not overlap share an
allocation, and :mod:`.check` proves that none of them is read after another one's begin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ...ir.scope import CHANNELS, Extent, extent_of, is_half, is_texture
from ...ir.tensors import TensorInfo
from ..weights import WeightLike, dtype_from_name

#: Channel types of OpenCL's images, by the dtype of the elements in memory.
CHANNEL_TYPES = {
    "float32": 0x10DE,
    "float16": 0x10DD,
    "int8": 0x10D7,
    "int16": 0x10D8,
    "int32": 0x10D9,
    "uint8": 0x10DA,
    "uint16": 0x10DB,
    "uint32": 0x10DC,
}
#: No buffer of OpenCL is empty, and vectors that begin inside of one end inside of it.
SMALLEST_BUFFER_BYTES = 64


@dataclass(frozen=True)
class Allocation:
    """A memory object: a buffer, or an image when it has an extent."""

    bytes: int
    extent: Extent | None = None
    #: Of an image: a key of `CHANNEL_TYPES`.
    channels: str = ""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: str, scope: str | None = None) -> Allocation:
        """What holds one tensor, and nothing else."""
        stored = "float16" if scope is not None and is_half(scope) else dtype
        if scope is not None and is_texture(scope):
            extent = extent_of(shape, scope)
            return cls(extent.texels * CHANNELS * dtype_from_name(stored).itemsize, extent, stored)
        size = prod(shape) * dtype_from_name(stored).itemsize
        return cls(max(size, SMALLEST_BUFFER_BYTES))


@dataclass(frozen=True, eq=False)
class Tensor:
    """Content of an allocation: what is written before it is read.

    Views of it, other shapes of the same elements, are the same object.
    """

    name: str
    allocation: int
    #: Memory scope; ``None`` is a buffer of the tensor's dtype.
    scope: str | None = None

    @property
    def is_image(self) -> bool:
        """Whether kernels take it as an image."""
        return self.scope is not None and is_texture(self.scope)


@dataclass(frozen=True)
class Operand:
    """A tensor as the argument of a launch."""

    tensor: Tensor
    #: Whether the kernel reads it, and whether it writes it.
    read: bool
    written: bool


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments and work sizes."""

    kernel: str
    #: The primary function that it is part of.
    function: str
    #: Bytes are a scalar.
    arguments: tuple[Operand | bytes, ...]
    #: Work-items, in the order of OpenCL's dimensions.
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True)
class Interface:
    """An input or output of the network."""

    info: TensorInfo
    tensor: Tensor


@dataclass(frozen=True)
class SeededInput:
    """How the self-test makes an input, see :mod:`.self_test`."""

    seed: int
    low: float
    high: float


@dataclass(frozen=True)
class ExpectedOutput:
    """What the self-test compares of an output."""

    output: int
    stride: int
    rtol: float
    atol: float
    values: np.ndarray


@dataclass
class Plan:
    """All that a library needs besides the weights' bytes."""

    allocations: list[Allocation] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    inputs: list[Interface] = field(default_factory=list)
    outputs: list[Interface] = field(default_factory=list)
    #: Weights that are read, with their tensors, in the order of the file.
    weights: dict[str, WeightLike] = field(default_factory=dict)
    weight_tensors: dict[str, Tensor] = field(default_factory=dict)
    #: OpenCL C of each kernel, without the others' declarations.
    sources: dict[str, str] = field(default_factory=dict)
    extensions: list[str] = field(default_factory=list)
    test_inputs: list[SeededInput] = field(default_factory=list)
    test_outputs: list[ExpectedOutput] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def allocate(self, allocation: Allocation) -> int:
        """Number of a new allocation."""
        self.allocations.append(allocation)
        return len(self.allocations) - 1
