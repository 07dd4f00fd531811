"""An execution plan as Python objects; `.encode` turns it into bytes.

Names and objects stand for the indices and offsets of `native/standalone/plan.h`.  Operands also
refer to a *tensor*: tensors whose lifetimes do not overlap share an allocation, and
`tvmflow.compiler.standalone.check` proves that none is read after another has overwritten it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ...ir.machine_code import MachineCode
from ...ir.scope import CHANNELS, Extent, extent_of, is_half, is_texture
from ...ir.tensors import TensorInfo, dtype_from_name
from ...runtime.json_types import JsonObject
from .format import AlternativeKind
from .pictures import Picture
from .small_weights import Form

#: Least size of a buffer: OpenCL has no empty ones, and a vector that begins in one must end in it.
SMALLEST_BUFFER_BYTES = 64


@dataclass(frozen=True)
class Allocation:
    """A memory object: a buffer, or an image when it has an extent."""

    bytes: int
    extent: Extent | None = None
    channels: str = ""  #: Dtype of an image's channels.

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: str, scope: str | None = None) -> Allocation:
        """Return an allocation that holds just one tensor."""
        stored = "float16" if scope is not None and is_half(scope) else dtype
        if scope is not None and is_texture(scope):
            extent = extent_of(shape, scope)
            return cls(extent.texels * CHANNELS * dtype_from_name(stored).itemsize, extent, stored)
        size = prod(shape) * dtype_from_name(stored).itemsize
        return cls(max(size, SMALLEST_BUFFER_BYTES))


@dataclass(frozen=True, eq=False)
class PlanTensor:
    """A tensor in an allocation, written before it is read.

    Views with other shapes of the same elements are the same object.
    """

    name: str
    allocation: int
    scope: str | None = None  #: Memory scope; ``None`` is a buffer of the tensor's dtype.

    @property
    def is_image(self) -> bool:
        """Return whether kernels access it as an image."""
        return self.scope is not None and is_texture(self.scope)


@dataclass(frozen=True)
class Operand:
    """A tensor as the argument of a launch."""

    tensor: PlanTensor
    read: bool  #: Whether the kernel reads it.
    written: bool  #: Whether the kernel writes it.


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments and work sizes."""

    kernel: str
    function: str  #: The primary function that contains it.
    arguments: tuple[Operand | bytes, ...]  #: Tensors, and scalars as bytes.
    global_size: tuple[int, ...]  #: Work-items, in the order of OpenCL's dimensions.
    local_size: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call of a primary function, which consecutive launches compute."""

    function: str
    first: int  #: Number of its first launch.
    count: int  #: Number of launches.
    operands: tuple[PlanTensor, ...]  #: Of the function's parameters, then its workspaces.


@dataclass(frozen=True)
class Interface:
    """An input or output of the network."""

    info: TensorInfo
    tensor: PlanTensor


@dataclass(frozen=True)
class SeededInput:
    """Seed and range of an input of the self-test."""

    seed: int
    low: float
    high: float


@dataclass(frozen=True)
class ExpectedOutput:
    """Elements of an output that the self-test compares."""

    output: int
    stride: int
    rtol: float
    atol: float
    values: np.ndarray


@dataclass(frozen=True)
class ExpectedTensor:
    """Elements of a tensor between primary functions that the self-test compares."""

    call: int  #: Number of the call that computes it.
    tensor: PlanTensor
    nodes: tuple[str, ...]  #: The ONNX nodes of the call's function.
    dtype: str  #: The type in which memory holds its elements.
    size: tuple[int, int]  #: Columns and rows of an image; zeros for a buffer.
    stride: int
    rtol: float
    atol: float
    values: np.ndarray  #: In the order of the allocation's elements; NaN is not compared.


@dataclass(frozen=True)
class Alternative:
    """Other launches for a call or several, with the same results."""

    call: int
    launches: tuple[Launch, ...]
    kind: AlternativeKind
    calls: int = 1


@dataclass(frozen=True)
class Boxes:
    """An output of boxes in pixels of a picture."""

    output: int
    picture: int  #: Number of the picture among the plan's.
    form: str  #: One of `BOX_FORMS`.
    unit: bool = False  #: Whether 1 is the input's width or height.


@dataclass(frozen=True)
class DerivedWeight:
    """A weight that is derived from a stored array when an instance is created.

    The stored array has the same values in other blocks or in fewer bits, or the windows whose
    Winograd transform is the weight.
    """

    stored: np.ndarray  #: ``[N', ..., c]``, as in the file; for windows ``[N', I, 3, 3, c]``.
    lanes: int  #: Lanes of a block of the derived weight.
    transform: np.ndarray | None = None  #: ``[a, 3]``, applied to both axes of windows.
    form: Form = Form.RAW
    axes: int = 0  #: `Axes` along which steps differ.
    steps: str = ""  #: Name of the array of steps in the file.


@dataclass
class Plan:
    """The content of a library except the weights' bytes."""

    allocations: list[Allocation] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    inputs: list[Interface] = field(default_factory=list)
    outputs: list[Interface] = field(default_factory=list)
    #: Weights that kernels read, with their tensors, in the order of the file.
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    weight_tensors: dict[str, PlanTensor] = field(default_factory=dict)
    #: Weights that differ from the file's array.
    derived: dict[str, DerivedWeight] = field(default_factory=dict)
    #: Names in the file of weights whose array has another name there.
    stored_names: dict[str, str] = field(default_factory=dict)
    #: OpenCL C of each kernel.
    sources: dict[str, str] = field(default_factory=dict)
    #: Extensions of OpenCL that kernels need; for functions, features of the processor.
    extensions: list[str] = field(default_factory=list)
    #: Machine code of kernels that are functions of the host: first for all of them, then of some
    #: for newer processors.
    code: Sequence[MachineCode] = ()
    test_inputs: list[SeededInput] = field(default_factory=list)
    test_outputs: list[ExpectedOutput] = field(default_factory=list)
    test_tensors: list[ExpectedTensor] = field(default_factory=list)
    #: Names in the model of tensors between functions, with shape and dtype, by their identity.
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    #: Alternatives of calls, and the source of each program of their kernels.
    alternatives: list[Alternative] = field(default_factory=list)
    alternative_sources: list[dict[str, str]] = field(default_factory=list)
    #: Names of weights that only alternatives read.
    alternative_weights: set[str] = field(default_factory=set)
    metadata: JsonObject = field(default_factory=dict)
    #: Inputs that take pictures, and outputs of boxes, the same in all shapes.
    pictures: list[Picture] = field(default_factory=list)
    boxes: list[Boxes] = field(default_factory=list)
    #: Number of launches of each of several shapes; inputs, outputs and their tests are then listed
    #: shape by shape.
    shapes: list[int] = field(default_factory=list)

    def allocate(self, allocation: Allocation) -> int:
        """Append an allocation and return its number."""
        self.allocations.append(allocation)
        return len(self.allocations) - 1


#: Function of the C runtime (native/standalone/cpu.c) that copies a buffer.
COPY = "tvmflow_copy"
