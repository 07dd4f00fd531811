"""Small execution plans, built by hand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from tvmflow.devices.host import Host
from tvmflow.module.standalone.format import (
    DTYPES,
    HEADER,
    WEIGHT_ALIGNMENT,
    AlternativeKind,
    ArgumentKind,
    Kind,
    Section,
    Strings,
    encode_plan,
    records,
)
from tvmflow.module.standalone.weights_file import weights_header

CHANNEL_TYPES = {"float32": 0x10DE, "float16": 0x10DD, "int8": 0x10D7, "int32": 0x10D9}


@dataclass
class Plan:
    """Plan that grows record by record; methods return the index of the added record."""

    source: str
    options: str = ""
    strings: Strings = field(default_factory=Strings)
    rows: dict[Section, list[Any]] = field(default_factory=lambda: {s: [] for s in Section})
    content: bytearray = field(default_factory=bytearray)
    sources: bytearray = field(default_factory=bytearray)
    values: list[float] = field(default_factory=list)
    tensor_values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.program(self.source, self.options)

    def _add(self, section: Section, **row: Any) -> int:
        self.rows[section].append(row)
        return len(self.rows[section]) - 1

    def program(self, source: str, options: str = "") -> int:
        """Add a program."""
        start = len(self.sources)
        self.sources += source.encode()
        options_at = self.strings(options)
        return self._add(Section.PROGRAMS, offset=start, bytes=len(source), options=options_at)

    def buffer(self, bytes: int) -> int:
        """Add a buffer."""
        return self._add(Section.ALLOCATIONS, kind=Kind.BUFFER, bytes=bytes)

    def image(self, width: int, height: int, layers: int = 1, dtype: str = "float32") -> int:
        """Add an image array of four channels."""
        texels = width * height * layers
        return self._add(
            Section.ALLOCATIONS,
            kind=Kind.IMAGE,
            channel_type=CHANNEL_TYPES[dtype],
            image_size=(width, height, layers),
            bytes=texels * 4 * np.dtype(dtype).itemsize,
        )

    def weight(self, allocation: int, array: np.ndarray, name: str = "weight") -> int:
        """Add a weight, the initial content of an allocation."""
        self.content += bytes(-len(self.content) % WEIGHT_ALIGNMENT)
        offset = 128 + len(self.content)
        self.content += array.tobytes()
        return self._add(
            Section.WEIGHTS,
            name=self.strings(name),
            allocation=allocation,
            offset=offset,
            bytes=array.nbytes,
        )

    def launch(
        self,
        kernel: str,
        arguments: list[int | np.generic],
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None = None,
        program: int = 0,
    ) -> int:
        """Add a launch: allocations are ``int``, values NumPy's scalars."""
        first = len(self.rows[Section.ARGUMENTS])
        for argument in arguments:
            if isinstance(argument, int):
                self._add(Section.ARGUMENTS, kind=ArgumentKind.MEMORY, allocation=argument)
                continue
            value = np.frombuffer(argument.tobytes().ljust(8, b"\0"), np.uint8)
            size = argument.dtype.itemsize
            self._add(Section.ARGUMENTS, kind=ArgumentKind.VALUE, bytes=size, value=value)
        ones = (1,) * (3 - len(global_size))
        return self._add(
            Section.LAUNCHES,
            program=program,
            kernel=self.strings(kernel),
            function=self.strings(f"fused_{kernel}"),
            first_argument=first,
            arguments=len(arguments),
            dimensions=len(global_size),
            **{
                "global": (*global_size, *ones),
                "local": (*(local_size or (1,) * len(global_size)), *ones),
            },
        )

    def interface(
        self,
        section: Section,
        name: str,
        shape: tuple[int, ...],
        allocation: int,
        dtype: str = "float32",
        half: bool = False,
        regions: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = (),
    ) -> int:
        """Add an input or output; regions are (element, origin, size)."""
        first = len(self.rows[Section.REGIONS])
        for element, origin, size in regions:
            self._add(Section.REGIONS, element=element, origin=origin, size=size)
        itemsize = {"bfloat16": 2}.get(dtype) or np.dtype(dtype).itemsize
        return self._add(
            section,
            name=self.strings(name),
            layout=0,
            dtype=DTYPES[dtype],
            dimensions=len(shape),
            shape=(*shape, *(0,) * (8 - len(shape))),
            bytes=int(np.prod(shape)) * itemsize,
            allocation=allocation,
            half=int(half),
            first_region=first,
            regions=len(regions),
        )

    def picture(self, kernel: str, image_kernel: str = "", **changes: Any) -> int:
        """Let the first input take unscaled pictures; ``changes`` are fields of `tf_picture`."""
        row = {"kernel": self.strings(kernel), "image_kernel": self.strings(image_kernel)}
        row |= {"channels": 3, "scale": (1, 1, 1)}
        return self._add(Section.PICTURES, **row | changes)

    def input(self, *arguments: Any, **options: Any) -> int:
        """Add an input."""
        return self.interface(Section.INPUTS, *arguments, **options)

    def output(self, *arguments: Any, **options: Any) -> int:
        """Add an output."""
        return self.interface(Section.OUTPUTS, *arguments, **options)

    def test(
        self,
        inputs: list[tuple[int, float, float]],
        expected: dict[int, np.ndarray],
        stride: int = 1,
        rtol: float = 1e-5,
        atol: float = 1e-6,
    ) -> None:
        """Add a self-test: seed, low and high of each input, and all elements of outputs."""
        for seed, low, high in inputs:
            self._add(Section.TEST_INPUTS, seed=seed, low=low, high=high)
        for output, array in expected.items():
            chosen = array.ravel()[::stride].astype(np.float64)
            first = len(self.values)
            self.values += list(chosen)
            self._add(
                Section.TEST_OUTPUTS,
                output=output,
                first_value=first,
                count=len(chosen),
                stride=stride,
                rtol=rtol,
                atol=atol,
            )

    def tensor(
        self, launch: int, allocation: int, values: np.ndarray, stride: int = 1, **changes: Any
    ) -> int:
        """Add a tensor that is compared after a launch."""
        first = sum(row["count"] for row in self.rows[Section.TEST_TENSORS])
        chosen = values.ravel()[::stride].astype("<f4")
        self.tensor_values += chosen.tolist()
        row = {"launch": launch, "allocation": allocation, "first_value": first}
        row |= {"count": len(chosen), "stride": stride, "rtol": 1e-5, "atol": 1e-6}
        row["nodes"] = self.strings(changes.pop("nodes", ""))
        return self._add(Section.TEST_TENSORS, **row | changes)

    def alternative(
        self, first: int, count: int, other: int, kind: AlternativeKind, calls: int = 1
    ) -> int:
        """Let the last launches, from ``other`` on, be an alternative of ``count`` others."""
        last = len(self.rows[Section.LAUNCHES])
        row = {"first": first, "count": count, "other_first": other, "other_count": last - other}
        return self._add(Section.ALTERNATIVES, **row, kind=kind, calls=calls)

    def weights(self) -> bytes:
        """Return the weights with their header."""
        content = bytes(self.content)
        digest, checksum = hashlib.sha256(content).digest(), xxhash.xxh64_intdigest(content)
        return weights_header(digest, len(content), checksum) + content

    def encode(self, host: Host | None = None) -> bytes:
        """Return the bytes of the plan, for a library of this machine or another one."""
        sections: dict[Section, bytes | np.ndarray] = {
            section: records(section, rows)
            for section, rows in self.rows.items()
            if rows and section != Section.EXTENSIONS
        }
        extensions = [self.strings(name) for name in self.rows[Section.EXTENSIONS]]
        sections[Section.EXTENSIONS] = np.array(extensions, "<u4")
        if not self.rows[Section.SHAPES]:
            others = sum(row["other_count"] for row in self.rows[Section.ALTERNATIVES])
            one = {"launches": len(self.rows[Section.LAUNCHES]) - others}
            sections[Section.SHAPES] = records(Section.SHAPES, [one])
        sections[Section.STRINGS] = self.strings.content
        triple = (host or Host.native()).triple
        metadata = {
            "name": "small", "target": "opencl", "device": "any", "host": triple,
            "tvmflow": "0", "tvm": "0", "options": {}, "stage_ms": {}, "memory_bytes": 0,
            "storage_summary": "by hand", "model": "small",
        }  # fmt: skip
        sections[Section.METADATA] = json.dumps(metadata).encode() + b"\0"
        sections[Section.TEST_VALUES] = np.array(self.values, "<f8")
        sections[Section.TENSOR_VALUES] = np.array(self.tensor_values, "<f4")
        has_weights = bool(self.rows[Section.WEIGHTS])
        return encode_plan(
            sections,
            bytes(self.sources),
            hashlib.sha256(bytes(self.content)).digest(),
            len(self.weights()) if has_weights else 0,
        )


def sealed(content: bytes) -> bytes:
    """Return a plan's bytes with the right digest."""
    header = np.frombuffer(content[: HEADER.itemsize], HEADER).copy()
    digest = hashlib.sha256(content[HEADER.itemsize : int(header[0]["bytes"])]).digest()
    header[0]["checksum"] = np.frombuffer(digest, np.uint8)
    return header.tobytes() + content[HEADER.itemsize :]


ADD = """
__kernel void add(__global const float* x, __global const float* w, __global float* y, float k) {
  int i = get_global_id(0);
  y[i] = k * x[i] + w[i];
}
"""


def named(name: str, text: str | None = None) -> str:
    """Return the source of `ADD`, or of another kernel of that name, under another name."""
    return (text or ADD).replace("void add", f"void {name}")


def add_plan(size: int = 64, scale: float = 2.0, seed: int = 1) -> tuple[Plan, np.ndarray]:
    """Return a plan of ``y = scale * x + w``, in groups of 16, and ``w``."""
    w = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    plan = Plan(ADD)
    x, weight, y = (plan.buffer(4 * size) for _ in range(3))
    plan.weight(weight, w)
    plan.launch("add", [x, weight, y, np.float32(scale)], (size,), (16,))
    plan.input("x", (size,), x)
    plan.output("y", (size,), y)
    return plan, w


def cpu_plan(
    kernel: str = "add", w: np.ndarray | None = None, needs: str = "", size: int = 64
) -> Plan:
    """Return a plan of ``y = 2 * x + w``, by a function of cpu_kernels.c."""
    plan = Plan(" ")
    x, at, y = (plan.buffer(4 * size) for _ in range(3))
    plan.weight(at, add_plan(size)[1] if w is None else w)
    plan.launch(kernel, [x, at, y], (1,))
    plan.input("x", (size,), x)
    plan.output("y", (size,), y)
    if needs:
        plan.rows[Section.EXTENSIONS].append(needs)
    return plan


ADD_IMAGES = """
__kernel void add_i(__read_only image2d_array_t x, __read_only image2d_array_t w,
                    __write_only image2d_array_t y, float k) {
  int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_imagef(y, at, k * read_imagef(x, at) + read_imagef(w, at));
}
"""


def uniform(seed: int, count: int, low: float = -1, high: float = 1) -> np.ndarray:
    """Return a self-test's input before it is rounded, see docs/standalone.md."""
    mask = 0xFFFFFFFFFFFFFFFF
    values = []
    for index in range(count):
        z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        values.append(((z ^ z >> 31) >> 40) * 2.0**-24)
    return low + (high - low) * np.array(values)


def plan_of_two_shapes(size: int = 64) -> tuple[Plan, np.ndarray]:
    """Return such a plan for vectors of two lengths, the second half as long, and ``w``."""
    plan, w = add_plan(size)
    plan.launch("add", [0, 1, 2, np.float32(2)], (size // 2,), (16,))
    plan.input("x", (size // 2,), 0)
    plan.output("y", (size // 2,), 2)
    plan.rows[Section.SHAPES] += [{"first_launch": n, "launches": 1} for n in (0, 1)]
    return plan, w


_RNG = np.random.default_rng(7)


def values(*shape, dtype="float32"):
    """Return random numbers, different ones at each call."""
    return _RNG.normal(size=shape).astype(dtype)


COPY_IMAGE = """
__constant sampler_t at = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
__kernel void twice(read_only image2d_array_t x, write_only image2d_array_t y) {
  int4 i = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_imagef(y, i, 2.0f * read_imagef(x, at, i));
}
"""


def image_plan(dtype="float32", half=False):
    """Return a plan of ``y = 2 x`` on 5 by 4 texels in 3 layers; each layer is a region."""
    plan = Plan(COPY_IMAGE)
    x, y = (plan.image(5, 4, 3, dtype=dtype) for _ in range(2))
    plan.launch("twice", [x, y], (5, 4, 3))
    # The host's data has the layers in reverse order, and the first one in two parts.
    layer = 5 * 4 * 4
    regions = [
        (0, (0, 0, 2), (5, 4, 1)),
        (layer, (0, 0, 1), (5, 4, 1)),
        (2 * layer, (0, 0, 0), (5, 1, 1)),
        (2 * layer + 20, (0, 1, 0), (5, 3, 1)),
    ]
    kind = "float32" if half else dtype
    plan.input("x", (3, 4, 5, 4), x, dtype=kind, half=half, regions=regions)
    plan.output("y", (3, 4, 5, 4), y, dtype=kind, half=half, regions=regions)
    return plan
