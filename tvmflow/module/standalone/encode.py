"""A plan as bytes: see `native/standalone/plan.h` for what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...ir.scope import is_half
from ...ir.tensors import TensorInfo
from ..kept import panels_of
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
from .plan import CHANNEL_TYPES, Interface, Plan
from .weights import WrittenWeights

#: As for modules that run in Python (native/opencl/program.cc).
BUILD_OPTIONS = "-cl-mad-enable"


@dataclass(frozen=True)
class Region:
    """A part of an image whose rows follow each other in the host's data."""

    element: int
    origin: tuple[int, int, int]
    size: tuple[int, int, int]


def encode(plan: Plan, weights: WrittenWeights) -> bytes:
    """The bytes of a plan, whose weights were written to a file."""
    strings = Strings()
    programs, program_of, source = _programs(plan, strings)
    rows: dict[Section, list[dict[str, Any]]] = {
        Section.ALLOCATIONS: [
            {
                "kind": Kind.BUFFER if a.extent is None else Kind.IMAGE,
                "channel_type": CHANNEL_TYPES[a.channels] if a.extent else 0,
                "image_size": (a.extent.width, a.extent.height, a.extent.layers)
                if a.extent
                else (0, 0, 0),
                "bytes": a.bytes,
            }
            for a in plan.allocations
        ],
        Section.WEIGHTS: [
            {
                "name": strings(name),
                "allocation": tensor.allocation,
                "offset": weights.offsets[name],
                "bytes": weights.sizes[name],
            }
            for name, tensor in plan.weight_tensors.items()
        ],
        Section.PROGRAMS: programs,
        Section.LAUNCHES: [],
        Section.ARGUMENTS: [],
        Section.INPUTS: [],
        Section.OUTPUTS: [],
        Section.REGIONS: [],
        Section.TEST_INPUTS: [
            {"seed": t.seed, "low": t.low, "high": t.high} for t in plan.test_inputs
        ],
        Section.TEST_OUTPUTS: [],
    }
    for launch in plan.launches:
        rows[Section.LAUNCHES].append(
            {
                "program": program_of[launch.kernel],
                "kernel": strings(launch.kernel),
                "function": strings(launch.function),
                "first_argument": len(rows[Section.ARGUMENTS]),
                "arguments": len(launch.arguments),
                "dimensions": len(launch.global_size),
                "global": _three(launch.global_size),
                "local": _three(launch.local_size),
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
    values = [t.values for t in plan.test_outputs]
    first = 0
    for test in plan.test_outputs:
        rows[Section.TEST_OUTPUTS].append(
            {
                "output": test.output,
                "first_value": first,
                "count": len(test.values),
                "stride": test.stride,
                "rtol": test.rtol,
                "atol": test.atol,
            }
        )
        first += len(test.values)
    sections: dict[Section, bytes | np.ndarray] = {
        section: records(section, listed) for section, listed in rows.items()
    }
    sections[Section.EXTENSIONS] = np.array([strings(e) for e in plan.extensions], "<u4")
    sections[Section.TEST_VALUES] = np.concatenate([np.zeros(0), *values]).astype("<f8")
    sections[Section.METADATA] = json.dumps(plan.metadata, separators=(",", ":")).encode() + b"\0"
    sections[Section.STRINGS] = strings.content
    return encode_plan(sections, source, weights.digest, weights.bytes)


def _three(sizes: Iterable[int]) -> tuple[int, ...]:
    return (*sizes, 1, 1)[:3]


#: Programs that a driver may build at the same time, and the least source that is worth one.
_PROGRAMS = 4
_PROGRAM_BYTES = 128 << 10


def _programs(plan: Plan, strings: Strings) -> tuple[list[dict[str, Any]], dict[str, int], bytes]:
    """Programs, the number of each kernel's, and their source.

    A driver spends a fixed time on each program (PoCL 90 ms for OpenCL's own declarations), and
    some drivers build several at the same time: a small network is one program, a large one a
    few of about the same size.  Their number does not grow with the network, as caches have
    an entry for each.
    """
    total = sum(map(len, plan.sources.values()))
    count = max(1, min(_PROGRAMS, total // _PROGRAM_BYTES, len(plan.sources)))
    bins: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    # The largest first, each to the least that there is.
    for name in sorted(plan.sources, key=lambda name: -len(plan.sources[name])):
        smallest = sizes.index(min(sizes))
        bins[smallest].append(name)
        sizes[smallest] += len(plan.sources[name])
    source, rows = b"", []
    program_of: dict[str, int] = {}
    for number, names in enumerate(bins):
        text = "".join(plan.sources[name] for name in names).encode()
        options = strings(BUILD_OPTIONS)
        rows.append({"offset": len(source), "bytes": len(text), "options": options})
        program_of |= dict.fromkeys(names, number)
        source += text
    return (rows if plan.sources else []), program_of, source


def _interface(
    interface: Interface, strings: Strings, regions: list[dict[str, Any]]
) -> dict[str, Any]:
    info, tensor = interface.info, interface.tensor
    found = regions_of(info) if tensor.is_image else []
    row = {
        "name": strings(info.name),
        "layout": strings(info.layout or ""),
        "dtype": DTYPES[info.dtype],
        "dimensions": len(info.shape),
        "shape": info.shape + (0,) * (MAX_DIMENSIONS - len(info.shape)),
        "bytes": info.size_bytes,
        "allocation": tensor.allocation,
        "half": int(tensor.scope is not None and is_half(tensor.scope)),
        "first_region": len(regions),
        "regions": len(found),
    }
    regions += [{"element": r.element, "origin": r.origin, "size": r.size} for r in found]
    return row


def regions_of(info: TensorInfo) -> list[Region]:
    """How the image of a kept tensor ``[N, C', H, W, 4]`` is made of the host's data.

    With one panel the image has the order of the data; with more, each block of channels is a
    rectangle.
    """
    n, blocks, height, width, lanes = info.shape
    panels = panels_of(info.scope)
    if panels == 1:
        return [Region(0, (0, 0, 0), (width, n * blocks * height, 1))]
    below = -(-blocks // panels)
    regions = []
    for number in range(n * blocks):
        picture, block = divmod(number, blocks)
        row = (picture * below + block // panels) * height
        origin = (block % panels * width, row, 0)
        element = number * prod((height, width, lanes))
        regions.append(Region(element, origin, (width, height, 1)))
    return regions
