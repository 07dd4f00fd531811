"""Binary layout of an execution plan and its weights, declared in C by `native/standalone/plan.h`.

Records are NumPy structures with the same fields as the C structures;
`tests/module/standalone/test_format.py` compares offsets and sizes with a C compiler's.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np

PLAN_MAGIC = b"TVMFPLAN"
WEIGHTS_MAGIC = b"TVMFWGTS"
#: Versions of the layouts of plans and weights.  Each library contains the runtime for its own
#: plan, so only the current layout is read here, and every change increments the number.
VERSION = 3
WEIGHTS_VERSION = 1
#: Largest factor by which a DEFLATE stream can grow (native/standalone/plan.h).
INFLATE_RATIO = 1032
#: Alignment of each weight in bytes: drivers use memory of this alignment without a copy.
WEIGHT_ALIGNMENT = 128
#: Maximum number of dimensions of an input or output, as in `native/bindings/tvmflow.h`.
MAX_DIMENSIONS = 8


class Section(IntEnum):
    """Sections of a plan, in their order."""

    STRINGS = 0
    METADATA = 1
    EXTENSIONS = 2
    ALLOCATIONS = 3
    WEIGHTS = 4
    SOURCES = 5
    PROGRAMS = 6
    LAUNCHES = 7
    ARGUMENTS = 8
    INPUTS = 9
    OUTPUTS = 10
    REGIONS = 11
    TEST_INPUTS = 12
    TEST_OUTPUTS = 13
    TEST_VALUES = 14
    SHAPES = 15
    DERIVED = 16
    PICTURES = 17
    BOXES = 18
    TRANSFORMED = 19
    DIGESTS = 20
    TEST_TENSORS = 21
    TENSOR_VALUES = 22
    ALTERNATIVES = 23


class Kind(IntEnum):
    """Kinds of memory objects."""

    BUFFER = 0
    IMAGE = 1


class AlternativeKind(IntEnum):
    """Purposes of alternatives, with the numbers of `tf_alternative_kind`."""

    PLAIN = 0  #: For drivers that compute other kernels wrongly.
    CHOICE = 1  #: For devices on which it is faster.


class ArgumentKind(IntEnum):
    """Kinds of kernel arguments."""

    MEMORY = 0
    VALUE = 1


#: Codes of `tvmflow_dtype` by NumPy's names.
DTYPES = {
    "float32": 0, "float16": 1, "float64": 2, "bfloat16": 3, "int8": 4, "int16": 5, "int32": 6,
    "int64": 7, "uint8": 8, "uint16": 9, "uint32": 10, "uint64": 11, "bool": 12,
}  # fmt: skip


def _record(**fields: str | tuple[str | np.dtype, int]) -> np.dtype:
    """Lay out fields, each a NumPy type or a pair of a type and a count."""
    pairs = [(name, *(f if isinstance(f, tuple) else (f,))) for name, f in fields.items()]
    return np.dtype(pairs, align=True)


_U4, _I8, _U8, _F4, _F8 = "<u4", "<i8", "<u8", "<f4", "<f8"
_THREE = (_U4, 3)
_INTERFACE = _record(
    name=_U4, layout=_U4, dtype=_U4, dimensions=_U4, shape=(_I8, MAX_DIMENSIONS), bytes=_U8,
    allocation=_U4, half=_U4, first_region=_U4, regions=_U4,
)  # fmt: skip

#: Layout of the records in each section; other sections are bytes.
RECORDS: dict[Section, np.dtype] = {
    Section.EXTENSIONS: np.dtype(_U4),
    Section.ALLOCATIONS: _record(
        kind=_U4, channel_type=_U4, image_size=_THREE, reserved=_U4, bytes=_U8
    ),
    Section.WEIGHTS: _record(name=_U4, allocation=_U4, offset=_U8, bytes=_U8),
    Section.PROGRAMS: _record(offset=_U4, bytes=_U4, options=_U4, reserved=_U4),
    Section.LAUNCHES: _record(
        program=_U4, kernel=_U4, function=_U4, first_argument=_U4, arguments=_U4, dimensions=_U4,
        **{"global": _THREE, "local": _THREE},
    ),
    Section.ARGUMENTS: _record(kind=_U4, allocation=_U4, bytes=_U4, reserved=_U4, value=("u1", 8)),
    Section.INPUTS: _INTERFACE,
    Section.OUTPUTS: _INTERFACE,
    Section.REGIONS: _record(element=_U8, origin=_THREE, size=_THREE),
    Section.TEST_INPUTS: _record(seed=_U8, low=_F8, high=_F8),
    Section.TEST_OUTPUTS: _record(
        output=_U4, first_value=_U4, count=_U4, reserved=_U4, stride=_U8, rtol=_F8, atol=_F8
    ),
    Section.TEST_VALUES: np.dtype(_F8),
    Section.SHAPES: _record(first_launch=_U4, launches=_U4),
    Section.DERIVED: _record(
        weight=_U4, element_bytes=_U4, from_lanes=_U4, to_lanes=_U4, inner=_U8, from_bytes=_U8,
        form=_U4, axes=_U4, steps=_U8,
    ),
    Section.PICTURES: _record(
        input=_U4, format=_U4, fit=_U4, rotation=_U4, width=_U4, height=_U4, program=_U4,
        kernel=_U4, image_kernel=_U4, arrangement=_U4, channels=_U4, swapped=_U4, video=_U4,
        padding=_F4, scale=(_F4, 3), shift=(_F4, 3),
    ),
    Section.BOXES: _record(output=_U4, picture=_U4, form=_U4, unit=_U4),
    Section.TRANSFORMED: _record(derived=_U4, side=_U4, rows=(_F8, 18)),
    Section.DIGESTS: np.dtype("V32"),
    Section.TEST_TENSORS: _record(
        launch=_U4, allocation=_U4, dtype=_U4, size=(_U4, 2), first_value=_U4, count=_U4,
        stride=_U4, nodes=_U4, rtol=_F4, atol=_F4,
    ),
    Section.TENSOR_VALUES: np.dtype(_F4),
    Section.ALTERNATIVES: _record(
        first=_U4, count=_U4, other_first=_U4, other_count=_U4, kind=_U4, calls=_U4
    ),
}  # fmt: skip

HEADER = _record(
    magic="S8", version=_U4, sections=_U4, bytes=_U8, source_bytes=_U8, weight_bytes=_U8,
    weights_id=("u1", 32), checksum=("u1", 32),
    section=(np.dtype([("offset", _U4), ("count", _U4)]), len(Section)),
)  # fmt: skip
WEIGHTS_HEADER = _record(
    magic="S8", version=_U4, reserved=_U4, bytes=_U8, id=("u1", 32), checksum=_U8,
    padding=("u1", 64),
)  # fmt: skip


class Strings:
    """Pool of a plan's texts, each stored once; the empty text is at offset 0."""

    def __init__(self) -> None:
        self._bytes = bytearray(b"\0")
        self._offsets = {"": 0}

    def __call__(self, text: str) -> int:
        """Return the offset of a text, adding it if it is new."""
        if text not in self._offsets:
            self._offsets[text] = len(self._bytes)
            self._bytes += text.encode() + b"\0"
        return self._offsets[text]

    @property
    def content(self) -> bytes:
        """Return all texts, each ended by a zero byte."""
        return bytes(self._bytes)


def records(section: Section, rows: Iterable[Mapping[str, object]]) -> np.ndarray:
    """Pack rows with the fields of a section's records; fields that a row lacks are zero."""
    rows = list(rows)
    found = np.zeros(len(rows), RECORDS[section])
    for index, row in enumerate(rows):
        for field, value in row.items():
            found[field][index] = value
    return found


def encode_plan(
    sections: dict[Section, bytes | np.ndarray],
    source: bytes,
    weights_id: bytes = bytes(32),
    weight_bytes: int = 0,
) -> bytes:
    """Return the bytes of a plan from its sections, which are empty if left out, and its source.

    ``source`` is OpenCL C of all programs, one after the other, which becomes the sections of
    sources and digests; ``weights_id`` and ``weight_bytes`` are SHA-256 and size of the weights.
    """
    programs = np.asarray(sections.get(Section.PROGRAMS, np.zeros(0, RECORDS[Section.PROGRAMS])))
    digests = np.frombuffer(digests_of(programs, source), RECORDS[Section.DIGESTS])
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(source) + deflate.flush()
    content = {**sections, Section.SOURCES: packed, Section.DIGESTS: digests}
    header = np.zeros((), HEADER)
    body = bytearray()
    for section in Section:
        body += bytes(-(HEADER.itemsize + len(body)) % 8)
        found = content.get(section, b"")
        count = len(found)
        header["section"][section] = (HEADER.itemsize + len(body), count)
        body += found.tobytes() if isinstance(found, np.ndarray) else found
    header["magic"], header["version"], header["sections"] = PLAN_MAGIC, VERSION, len(Section)
    header["bytes"] = HEADER.itemsize + len(body)
    header["source_bytes"], header["weight_bytes"] = len(source), weight_bytes
    header["weights_id"] = np.frombuffer(weights_id, np.uint8)
    header["checksum"] = np.frombuffer(hashlib.sha256(body).digest(), np.uint8)
    return header.tobytes() + bytes(body)


def digests_of(programs: np.ndarray, source: bytes) -> bytes:
    """Return the SHA-256 digests of all programs' texts."""
    places = zip(programs["offset"].tolist(), programs["bytes"].tolist(), strict=True)
    return b"".join(hashlib.sha256(source[at : at + size]).digest() for at, size in places)
