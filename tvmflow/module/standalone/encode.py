"""Encode an execution plan as the bytes that the C runtime reads (`.format`)."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import asdict
from math import prod

import numpy as np

from ...ir.results import BOX_FORMS
from ...ir.scope import is_half
from ...ir.tensors import TensorInfo
from ...runtime.json_types import JsonObject
from ..blocked_layout import panels_of
from .format import (
    DTYPES,
    MAX_DIMENSIONS,
    ArgumentKind,
    Kind,
    Section,
    Strings,
    encode_plan,
    records,
)
from .minify import minify
from .plan import Interface, Launch, Plan
from .weights_file import WrittenWeights

_STORED = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")
#: Channel types of OpenCL's images from `CL_SIGNED_INT8` to `CL_FLOAT`, by the elements' dtype.
CHANNEL_TYPES = {dtype: code for code, dtype in enumerate(_STORED, 0x10D7)}
#: Options of the OpenCL compiler, as for modules that run in Python (native/opencl/program.cc).
BUILD_OPTIONS = "-cl-mad-enable"
#: A further one of programs with dot products (native/standalone/dot_products.h).
HAS_DOTS = "-DTVMFLOW_DOTS"
#: Prefix of the functions for these (`tvmflow.ir.dot_products`, which needs TVM).
DOT_FUNCTION = "tvmflow_dot4_"


def encode(plan: Plan, weights: WrittenWeights) -> bytes:
    """Return the bytes of a plan whose weights were written to a file."""
    strings = Strings()
    rows: defaultdict[Section, list[JsonObject]] = defaultdict(list)
    if plan.code:
        # The program is empty: the library finds machine code by the functions' names.
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
        offset = weights.offsets[plan.stored_names.get(name, name)]
        row |= {"offset": offset, "bytes": plan.weights[name].nbytes}
        rows[Section.WEIGHTS].append(row)
    for number, (name, array) in enumerate(plan.weights.items()):
        if (derived := plan.derived.get(name)) is not None:
            inner = prod(derived.stored.shape[1:-1])
            if (matrix := derived.transform) is not None:
                inner = derived.stored.shape[1]
                how: JsonObject = {"derived": len(rows[Section.DERIVED]), "side": len(matrix)}
                how["rows"] = np.resize(matrix.ravel(), 18)
                rows[Section.TRANSFORMED].append(how)
            steps = weights.offsets[derived.steps] if derived.steps else 0
            row = {"weight": number, "element_bytes": array.itemsize, "inner": inner}
            row |= {"from_lanes": derived.stored.shape[-1], "to_lanes": derived.lanes}
            row |= {"from_bytes": derived.stored.nbytes, "steps": steps}
            rows[Section.DERIVED].append(row | {"form": derived.form, "axes": derived.axes})
    for launch in plan.launches:
        _add_launch(launch, program_of, strings, rows)
    for alternative in plan.alternatives:
        begin = plan.calls[alternative.call]
        end = plan.calls[alternative.call + alternative.calls - 1]
        row = {"first": begin.first, "count": end.first + end.count - begin.first}
        row |= {"other_first": len(rows[Section.LAUNCHES])}
        row |= {"other_count": len(alternative.launches)}
        row |= {"kind": alternative.kind, "calls": alternative.calls}
        rows[Section.ALTERNATIVES].append(row)
        for launch in alternative.launches:
            _add_launch(launch, program_of, strings, rows)
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
    first = 0
    for expected in plan.test_tensors:
        call, count = plan.calls[expected.call], len(expected.values)
        row = {"launch": call.first + call.count - 1, "first_value": first, "count": count}
        row |= {"allocation": expected.tensor.allocation, "dtype": DTYPES[expected.dtype]}
        row |= {"nodes": strings(", ".join(expected.nodes))}
        row |= {name: getattr(expected, name) for name in ("size", "stride", "rtol", "atol")}
        rows[Section.TEST_TENSORS].append(row)
        first += count
    sections: dict[Section, bytes | np.ndarray] = {
        section: records(section, listed) for section, listed in rows.items()
    }
    sections[Section.EXTENSIONS] = np.array([strings(e) for e in plan.extensions], "<u4")
    sections[Section.TEST_VALUES] = np.concatenate(
        [np.zeros(0), *(test.values for test in plan.test_outputs)]
    ).astype("<f8")
    sections[Section.TENSOR_VALUES] = np.concatenate(
        [np.zeros(0), *(expected.values for expected in plan.test_tensors)]
    ).astype("<f4")
    sections[Section.METADATA] = json.dumps(plan.metadata, separators=(",", ":")).encode() + b"\0"
    sections[Section.STRINGS] = strings.content
    return encode_plan(sections, source, weights.digest, weights.bytes)


def _add_launch(
    launch: Launch,
    program_of: dict[str, int],
    strings: Strings,
    rows: defaultdict[Section, list[JsonObject]],
) -> None:
    """Append the record of a launch, and those of its arguments."""
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
            row: JsonObject = {"kind": ArgumentKind.VALUE, "bytes": len(argument), "value": value}
        else:
            row = {"kind": ArgumentKind.MEMORY, "allocation": argument.tensor.allocation}
        rows[Section.ARGUMENTS].append(row)


#: Maximum number of programs, which a driver may build concurrently, and the size of source that
#: justifies another one.
_PROGRAMS = 4
_PROGRAM_BYTES = 128 << 10


def _programs(plan: Plan, strings: Strings) -> tuple[list[JsonObject], dict[str, int], bytes]:
    """Divide kernels into programs; return these' records, each kernel's program, and their source.

    A driver spends a fixed time on each program (PoCL 90 ms for OpenCL's own declarations), and
    some drivers build several at the same time: a small network is one program, a large one is
    several of about the same size.  Their number is limited, because caches have an entry for
    each.
    """
    total = sum(map(len, plan.sources.values()))
    defined: defaultdict[int, set[str]] = defaultdict(set)
    texts = [""] * min(max(1, min(_PROGRAMS, total // _PROGRAM_BYTES)), len(plan.sources))
    program_of: dict[str, int] = {}
    leaders = {p.image_kernel: p.kernel for p in plan.pictures if p.image_kernel}
    # Add the largest kernels first, each to the program that is the smallest so far.
    for name, text in sorted(plan.sources.items(), key=lambda item: -len(item[1])):
        leader = leaders.get(name, name)
        number = program_of.get(leader, texts.index(min(texts, key=len)))
        program_of[name] = program_of[leader] = number
        texts[number] += minify(text, defined[number])
    # Kernels that few devices need are built one function at a time.
    for kernels in plan.alternative_sources:
        program_of |= dict.fromkeys(kernels, len(texts))
        declared: set[str] = set()
        texts.append("".join(minify(text, declared) for text in kernels.values()))
    source, rows = b"", []
    for text in texts:
        has_dots, size = DOT_FUNCTION in text, len(text.encode())
        options = strings(f"{BUILD_OPTIONS} {HAS_DOTS}" if has_dots else BUILD_OPTIONS)
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
    """Return the parts in which the image of a blocked tensor ``[N, C', H, W, 4]`` is copied.

    The rows of a part are contiguous in the host's data, starting at an element.  With one panel,
    the image has the order of the data; with more, each block of channels is a rectangle.
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
