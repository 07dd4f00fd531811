"""An execution plan as Python objects, before it becomes bytes.

What `native/standalone/plan.h` has as indices and offsets are names and objects here.  Besides,
operands know which *tensor* they are for: tensors whose lives do not overlap share an
allocation, and :mod:`.check` proves that none of them is read after another one's begin.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod

import numpy as np

from ...ir.machine_code import MachineCode
from ...ir.results import BOX_FORMS
from ...ir.scope import CHANNELS, Extent, extent_of, is_half, is_texture
from ...ir.tensors import TensorInfo
from ...runtime.json_types import JsonObject
from ..blocked_layout import panels_of
from ..weights import dtype_from_name
from .format import (
    DTYPES,
    MAX_DIMENSIONS,
    ArgumentKind,
    Kind,
    Section,
    Strings,
    WrittenWeights,
    encode_plan,
    records,
)
from .minify import minify
from .pictures import Picture
from .small_weights import Form

_STORED = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")
#: Channel types of OpenCL's images from `CL_SIGNED_INT8` to `CL_FLOAT`, by the elements' dtype.
CHANNEL_TYPES = {dtype: code for code, dtype in enumerate(_STORED, 0x10D7)}
#: No buffer of OpenCL is empty, and vectors that begin inside of one end inside of it.
SMALLEST_BUFFER_BYTES = 64


@dataclass(frozen=True)
class Allocation:
    """A memory object: a buffer, or an image when it has an extent."""

    bytes: int
    extent: Extent | None = None
    channels: str = ""  #: Of an image: a key of `CHANNEL_TYPES`.

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: str, scope: str | None = None) -> Allocation:
        """Make what holds one tensor, and nothing else."""
        stored = "float16" if scope is not None and is_half(scope) else dtype
        if scope is not None and is_texture(scope):
            extent = extent_of(shape, scope)
            return cls(extent.texels * CHANNELS * dtype_from_name(stored).itemsize, extent, stored)
        size = prod(shape) * dtype_from_name(stored).itemsize
        return cls(max(size, SMALLEST_BUFFER_BYTES))


@dataclass(frozen=True, eq=False)
class PlanTensor:
    """Content of an allocation: what is written before it is read.

    Views of it, other shapes of the same elements, are the same object.
    """

    name: str
    allocation: int
    scope: str | None = None  #: Memory scope; ``None`` is a buffer of the tensor's dtype.

    @property
    def is_image(self) -> bool:
        """True if kernels take it as an image."""
        return self.scope is not None and is_texture(self.scope)


@dataclass(frozen=True)
class Operand:
    """A tensor as the argument of a launch."""

    tensor: PlanTensor
    read: bool  #: Whether the kernel reads it.
    written: bool


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments and work sizes."""

    kernel: str
    function: str  #: The primary function that it is part of.
    arguments: tuple[Operand | bytes, ...]  #: Bytes are a scalar.
    global_size: tuple[int, ...]  #: Work-items, in the order of OpenCL's dimensions.
    local_size: tuple[int, ...]


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
class Boxes:
    """An output of boxes in pixels of a picture's input, and the picture."""

    output: int
    picture: int
    form: str  #: One of `BOX_FORMS`.
    unit: bool = False  #: Whether 1 is the input's width or height.


@dataclass(frozen=True)
class Made:
    """What the file has of a weight: the same numbers in other blocks, or in fewer bits.

    Or windows as they are, of which Winograd's algorithm has the transforms.
    """

    stored: np.ndarray  #: ``[N', ..., c]``, as in the file; of windows ``[N', I, 3, 3, c]``.
    lanes: int  #: Of a block that is made.
    transform: np.ndarray | None = None  #: ``[a, 3]``, which both axes of windows meet.
    form: Form = Form.AS_THEY_ARE
    axes: int = 0  #: `Axes`, with steps.
    steps: int = 0  #: Where they are, from the weights' begin.


@dataclass
class Plan:
    """All that a library needs besides the weights' bytes."""

    allocations: list[Allocation] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    inputs: list[Interface] = field(default_factory=list)
    outputs: list[Interface] = field(default_factory=list)
    #: Weights that are read, with their tensors, in the order of the file.
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    weight_tensors: dict[str, PlanTensor] = field(default_factory=dict)
    #: Those that the file has otherwise: made when an instance is.
    made: dict[str, Made] = field(default_factory=dict)
    #: OpenCL C of each kernel.
    sources: dict[str, str] = field(default_factory=dict)
    #: Of OpenCL; of kernels that are functions, what the processor must have.
    extensions: list[str] = field(default_factory=list)
    #: Where kernels are functions of the host: their machine code, first that of all of them, then
    #: of some for better processors.
    code: Sequence[MachineCode] = ()
    test_inputs: list[SeededInput] = field(default_factory=list)
    test_outputs: list[ExpectedOutput] = field(default_factory=list)
    metadata: JsonObject = field(default_factory=dict)
    #: Inputs that take pictures, and outputs of boxes: in all shapes.
    pictures: list[Picture] = field(default_factory=list)
    boxes: list[Boxes] = field(default_factory=list)
    #: Of several shapes the number of launches of each; inputs, outputs and their tests are then
    #: those of the first, of the second, and so on.
    shapes: list[int] = field(default_factory=list)

    def allocate(self, allocation: Allocation) -> int:
        """Number of a new allocation."""
        self.allocations.append(allocation)
        return len(self.allocations) - 1


#: The function of the C runtime (native/standalone/cpu.c) that copies a buffer.
COPY = "tvmflow_copy"
#: As for modules that run in Python (native/opencl/program.cc).
BUILD_OPTIONS = "-cl-mad-enable"


def encode(plan: Plan, weights: WrittenWeights) -> bytes:
    """Pack a plan whose weights were written to a file."""
    strings = Strings()
    rows: defaultdict[Section, list[JsonObject]] = defaultdict(list)
    if plan.code:
        # Nothing that is built: the library has the functions by their names.
        program: JsonObject = {"offset": 0, "bytes": 1, "options": strings("")}
        rows[Section.PROGRAMS], source = [program], b"\n"
        called = [launch.kernel for launch in plan.launches]
        program_of = dict.fromkeys((*called, *(picture.kernel for picture in plan.pictures)), 0)
    else:
        rows[Section.PROGRAMS], program_of, source = _programs(plan, strings)
    for allocation in plan.allocations:
        row: JsonObject = {"kind": Kind.BUFFER, "bytes": allocation.bytes}
        if extent := allocation.extent:
            size = (extent.width, extent.height, extent.layers)
            channels = CHANNEL_TYPES[allocation.channels]
            row |= {"kind": Kind.IMAGE, "channel_type": channels, "image_size": size}
        rows[Section.ALLOCATIONS].append(row)
    for name, tensor in plan.weight_tensors.items():
        row = {"name": strings(name), "allocation": tensor.allocation}
        row |= {"offset": weights.offsets[name], "bytes": plan.weights[name].nbytes}
        rows[Section.WEIGHTS].append(row)
    for number, (name, array) in enumerate(plan.weights.items()):
        if (made := plan.made.get(name)) is not None:
            inner = prod(made.stored.shape[1:-1])
            if (matrix := made.transform) is not None:
                inner = made.stored.shape[1]
                how: JsonObject = {"made": len(rows[Section.MADE]), "side": len(matrix)}
                how["rows"] = np.resize(matrix.ravel(), 18)
                rows[Section.TRANSFORMED].append(how)
            row = {"weight": number, "element_bytes": array.itemsize, "inner": inner}
            row |= {"from_lanes": made.stored.shape[-1], "to_lanes": made.lanes}
            row |= {"from_bytes": made.stored.nbytes, "steps": made.steps}
            rows[Section.MADE].append(row | {"form": made.form, "axes": made.axes})
    for launch in plan.launches:
        rows[Section.LAUNCHES].append(
            {
                "program": program_of[launch.kernel],
                "kernel": strings(launch.kernel),
                "function": strings(launch.function),
                "first_argument": len(rows[Section.ARGUMENTS]),
                "arguments": len(launch.arguments),
                "dimensions": len(launch.global_size),
                "global": (*launch.global_size, 1, 1)[:3],
                "local": (*launch.local_size, 1, 1)[:3],
            }
        )
        for argument in launch.arguments:
            if isinstance(argument, bytes):
                value = np.frombuffer(argument.ljust(8, b"\0"), np.uint8)
                row = {"kind": ArgumentKind.VALUE, "bytes": len(argument), "value": value}
            else:
                row = {"kind": ArgumentKind.MEMORY, "allocation": argument.tensor.allocation}
            rows[Section.ARGUMENTS].append(row)
    for section, interfaces in ((Section.INPUTS, plan.inputs), (Section.OUTPUTS, plan.outputs)):
        for interface in interfaces:
            rows[section].append(_interface(interface, strings, rows[Section.REGIONS]))
    for picture in plan.pictures:
        kernels = {key: strings(getattr(picture, key)) for key in ("kernel", "image_kernel")}
        row = {**picture.record(), **kernels, "program": program_of[picture.kernel]}
        rows[Section.PICTURES].append(row)
    for boxes in plan.boxes:
        row = {**asdict(boxes), "form": BOX_FORMS.index(boxes.form), "unit": int(boxes.unit)}
        rows[Section.BOXES].append(row)
    counts = plan.shapes or [len(plan.launches)]
    ends = itertools.accumulate(counts, initial=0)
    rows[Section.SHAPES] = [
        {"first_launch": first, "launches": count}
        for first, count in zip(ends, counts, strict=False)
    ]
    rows[Section.TEST_INPUTS] = [asdict(test) for test in plan.test_inputs]
    first = 0
    for test in plan.test_outputs:
        row = asdict(test)
        row |= {"first_value": first, "count": len(row.pop("values"))}
        rows[Section.TEST_OUTPUTS].append(row)
        first += len(test.values)
    sections: dict[Section, bytes | np.ndarray] = {
        section: records(section, listed) for section, listed in rows.items()
    }
    sections[Section.EXTENSIONS] = np.array([strings(e) for e in plan.extensions], "<u4")
    sections[Section.TEST_VALUES] = np.concatenate(
        [np.zeros(0), *(test.values for test in plan.test_outputs)]
    ).astype("<f8")
    sections[Section.METADATA] = json.dumps(plan.metadata, separators=(",", ":")).encode() + b"\0"
    sections[Section.STRINGS] = strings.content
    return encode_plan(sections, source, weights.digest, weights.bytes)


#: Programs that a driver may build at the same time, and the least source that is worth one.
_PROGRAMS = 4
_PROGRAM_BYTES = 128 << 10


def _programs(plan: Plan, strings: Strings) -> tuple[list[JsonObject], dict[str, int], bytes]:
    """Divide kernels into programs: their records, the number of each kernel's, their source.

    A driver spends a fixed time on each program (PoCL 90 ms for OpenCL's own declarations), and
    some drivers build several at the same time: a small network is one program, a large one a
    few of about the same size.  Their number does not grow with the network, as caches have
    an entry for each.
    """
    total = sum(map(len, plan.sources.values()))
    defined: defaultdict[int, set[str]] = defaultdict(set)
    texts = [""] * min(max(1, min(_PROGRAMS, total // _PROGRAM_BYTES)), len(plan.sources))
    program_of: dict[str, int] = {}
    together = {p.image_kernel: p.kernel for p in plan.pictures if p.image_kernel}
    # The largest first, each to the least that there is.
    for name, text in sorted(plan.sources.items(), key=lambda item: -len(item[1])):
        beside = together.get(name, name)
        number = program_of.get(beside, texts.index(min(texts, key=len)))
        program_of[name] = program_of[beside] = number
        texts[number] += minify(text, defined[number])
    source, rows = b"", []
    for text in texts:
        options, size = strings(BUILD_OPTIONS), len(text.encode())
        rows.append({"offset": len(source), "bytes": size, "options": options})
        source += text.encode()
    return rows, program_of, source


def _interface(interface: Interface, strings: Strings, regions: list[JsonObject]) -> JsonObject:
    info, tensor = interface.info, interface.tensor
    found = _regions(info) if tensor.is_image else []
    row = {
        "name": strings(info.name),
        "layout": strings(info.layout or ""),
        "dtype": DTYPES[info.dtype],
        "dimensions": len(info.shape),
        "shape": (*info.shape, *[0] * MAX_DIMENSIONS)[:MAX_DIMENSIONS],
        "bytes": info.size_bytes,
        "allocation": tensor.allocation,
        "half": int(tensor.scope is not None and is_half(tensor.scope)),
        "first_region": len(regions),
        "regions": len(found),
    }
    regions += found
    return row


def _regions(info: TensorInfo) -> list[JsonObject]:
    """Parts that the image of a blocked tensor ``[N, C', H, W, 4]`` is copied in.

    The rows of each follow each other in the host's data, from an element on.  With one panel the
    image has the order of the data; with more, each block of channels is a rectangle.
    """
    n, blocks, height, width, lanes = info.shape
    panels = panels_of(info.scope)
    if panels == 1:
        return [{"size": (width, n * blocks * height, 1)}]
    below = -(-blocks // panels)
    regions = []
    for number in range(n * blocks):
        picture, block = divmod(number, blocks)
        row = (picture * below + block // panels) * height
        place = {"element": number * height * width * lanes, "size": (width, height, 1)}
        regions.append({**place, "origin": (block % panels * width, row, 0)})
    return regions
