"""The bytes of an execution plan and of its weights, as `native/standalone/plan.h` has them.

Records are NumPy structures with the same fields as the C structures; `tests/standalone` compares
offsets and sizes with what a C compiler says.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

PLAN_MAGIC = b"TVMFPLAN"
WEIGHTS_MAGIC = b"TVMFWGTS"
VERSION = 1
#: Each weight begins at a multiple of this: drivers take such memory without a copy.
WEIGHT_ALIGNMENT = 128
#: Of an input or output, as in `native/bindings/tvmflow.h`.
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


class Kind(IntEnum):
    """Kinds of memory objects."""

    BUFFER = 0
    IMAGE = 1


class ArgumentKind(IntEnum):
    """Kinds of kernel arguments."""

    MEMORY = 0
    VALUE = 1


#: Codes of `tvmflow_dtype` by NumPy's names.
DTYPES = {
    "float32": 0,
    "float16": 1,
    "float64": 2,
    "bfloat16": 3,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "uint8": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
    "bool": 12,
}


def _record(*fields: Any) -> np.dtype:
    return np.dtype(list(fields), align=True)


#: Layout of the records of each section; bytes where there is none.
RECORDS: dict[Section, np.dtype] = {
    Section.EXTENSIONS: np.dtype("<u4"),
    Section.ALLOCATIONS: _record(
        ("kind", "<u4"),
        ("channel_type", "<u4"),
        ("image_size", "<u4", 3),
        ("reserved", "<u4"),
        ("bytes", "<u8"),
    ),
    Section.WEIGHTS: _record(
        ("name", "<u4"), ("allocation", "<u4"), ("offset", "<u8"), ("bytes", "<u8")
    ),
    Section.PROGRAMS: _record(
        ("offset", "<u4"), ("bytes", "<u4"), ("options", "<u4"), ("reserved", "<u4")
    ),
    Section.LAUNCHES: _record(
        ("program", "<u4"),
        ("kernel", "<u4"),
        ("function", "<u4"),
        ("first_argument", "<u4"),
        ("arguments", "<u4"),
        ("dimensions", "<u4"),
        ("global", "<u4", 3),
        ("local", "<u4", 3),
    ),
    Section.ARGUMENTS: _record(
        ("kind", "<u4"),
        ("allocation", "<u4"),
        ("bytes", "<u4"),
        ("reserved", "<u4"),
        ("value", "u1", 8),
    ),
    Section.INPUTS: _record(
        ("name", "<u4"),
        ("layout", "<u4"),
        ("dtype", "<u4"),
        ("dimensions", "<u4"),
        ("shape", "<i8", MAX_DIMENSIONS),
        ("bytes", "<u8"),
        ("allocation", "<u4"),
        ("half", "<u4"),
        ("first_region", "<u4"),
        ("regions", "<u4"),
    ),
    Section.REGIONS: _record(("element", "<u8"), ("origin", "<u4", 3), ("size", "<u4", 3)),
    Section.TEST_INPUTS: _record(("seed", "<u8"), ("low", "<f8"), ("high", "<f8")),
    Section.TEST_OUTPUTS: _record(
        ("output", "<u4"),
        ("first_value", "<u4"),
        ("count", "<u4"),
        ("reserved", "<u4"),
        ("stride", "<u8"),
        ("rtol", "<f8"),
        ("atol", "<f8"),
    ),
    Section.TEST_VALUES: np.dtype("<f8"),
}
RECORDS[Section.OUTPUTS] = RECORDS[Section.INPUTS]

HEADER = _record(
    ("magic", "S8"),
    ("version", "<u4"),
    ("sections", "<u4"),
    ("bytes", "<u8"),
    ("source_bytes", "<u8"),
    ("weight_bytes", "<u8"),
    ("weights_id", "u1", 32),
    ("checksum", "u1", 32),
    ("section", [("offset", "<u4"), ("count", "<u4")], len(Section)),
)
WEIGHTS_HEADER = _record(
    ("magic", "S8"),
    ("version", "<u4"),
    ("reserved", "<u4"),
    ("bytes", "<u8"),
    ("id", "u1", 32),
    ("checksum", "<u8"),
    ("padding", "u1", 64),
)


class Strings:
    """Texts of a plan, each once; the empty one is at offset 0."""

    def __init__(self) -> None:
        self._bytes = bytearray(b"\0")
        self._offsets = {"": 0}

    def __call__(self, text: str) -> int:
        """Offset of a text, which is added if it is new."""
        if text not in self._offsets:
            self._offsets[text] = len(self._bytes)
            self._bytes += text.encode() + b"\0"
        return self._offsets[text]

    @property
    def content(self) -> bytes:
        """All texts, each ended by a zero byte."""
        return bytes(self._bytes)


def records(section: Section, rows: Iterable[dict[str, Any]]) -> np.ndarray:
    """Rows with the fields of a section's records; fields that a row lacks are zero."""
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
    """Bytes of a plan.

    Parameters
    ----------
    sections
        Content of each section but `Section.SOURCES`; those left out are empty.
    source
        OpenCL C of all programs, one after the other.
    weights_id, weight_bytes
        Of the weights that belong to it, see `weights_header`.
    """
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = {**sections, Section.SOURCES: deflate.compress(source) + deflate.flush()}
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


def weights_header(content_id: bytes, content_bytes: int, checksum: int) -> bytes:
    """What stands before the weights: SHA-256, size and XXH64 of what follows."""
    header = np.zeros((), WEIGHTS_HEADER)
    header["magic"], header["version"] = WEIGHTS_MAGIC, VERSION
    header["bytes"] = WEIGHTS_HEADER.itemsize + content_bytes
    header["id"] = np.frombuffer(content_id, np.uint8)
    header["checksum"] = checksum
    return header.tobytes()
