"""Weights in the safetensors format, written as a stream and read as memory maps.

A file is an 8-byte little-endian length, a JSON header of that length that gives
dtype, shape and byte range of every tensor, and the tensors' bytes, which must
follow each other without gaps.  Format: https://github.com/huggingface/safetensors.

Weights can be larger than memory: they are written piece by piece, and only
mapped when read.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import xxhash

from ..runtime.json_types import JsonObject
from .schema import MOST_BYTES, SchemaError, list_of, named, one_of, parse, record, text, whole

#: Bytes that are converted and written at once.
PIECE_BYTES = 16 << 20
#: TVM's kernels may assume this alignment of a tensor's first byte.
ALIGN_BYTES = 64

_DIGEST_KEY = "tvmflow.sha256"
_DTYPES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16",
}  # fmt: skip
#: NumPy's names of the element types that there are.
DTYPE_NAMES = tuple(_DTYPES)
#: More dimensions are no tensor: NumPy has 32 in some versions.
MOST_DIMENSIONS = 32
_NUMPY_NAMES = {code: name for name, code in _DTYPES.items()}


#: NumPy multiplies extents also where one of them is 0.
_MOST_ELEMENTS = 2**58
_ENTRY = record(
    {
        "dtype": one_of(_NUMPY_NAMES),
        "shape": list_of(whole(0), most=MOST_DIMENSIONS),
        "data_offsets": list_of(whole(), most=2),
    }
)
_HEADER = record({}, {"__metadata__": named(text)})


class WeightsError(ValueError):
    """The bytes are not a weights file, or are damaged."""


class WeightLike(Protocol):
    """Anything that can be written as a weight: a NumPy array, a memory map or a `LazyWeight`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        ...


@dataclass(frozen=True)
class LazyWeight:
    """A weight that is computed when it is written.

    Parameters
    ----------
    shape, dtype
        What the weight will be.
    evaluate
        Returns the array, or yields it in pieces: arrays whose elements, one
        piece after the other in C order, are the weight's.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    evaluate: Callable[[], np.ndarray | Iterable[np.ndarray]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))


@dataclass(frozen=True)
class WeightsLayout:
    """The header of a weights file, and where each tensor's bytes go."""

    header: bytes
    order: tuple[str, ...]
    data_bytes: int

    @property
    def total_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + self.data_bytes


@dataclass(frozen=True)
class Digests:
    """Digests of the bytes that were written."""

    #: Against any change; slow to compute.
    sha256: str
    #: Against damage; quick to compute, for each time that a module is loaded.
    xxh64: str


def dtype_from_name(name: str) -> np.dtype:
    """Return the NumPy dtype of that name; ``bfloat16`` comes from ``ml_dtypes``."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def weight_bytes(weight: WeightLike) -> int:
    """Return the size of a weight in bytes."""
    return math.prod(weight.shape) * weight.dtype.itemsize


def as_bytes(array: np.ndarray) -> memoryview:
    """Return the elements in C order as bytes, copied only if they are not in that order."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def plan_weights(weights: Mapping[str, WeightLike]) -> WeightsLayout:
    """Lay out a weights file.

    Tensors whose size is a multiple of `ALIGN_BYTES` come first: they are aligned
    then, and mapped memory can be used without a copy.  The format allows no gaps
    that would align the others.

    Raises
    ------
    WeightsError
        If the format has no such dtype, or a name is reserved by the format.
    """
    order = sorted(weights, key=lambda name: weight_bytes(weights[name]) % ALIGN_BYTES != 0)
    # The digest is known only after writing: its place is filled with zeros until then.
    header: JsonObject = {"__metadata__": {"format": "np", _DIGEST_KEY: "0" * 64}}
    offset = 0
    for name in order:
        weight = weights[name]
        code = _DTYPES.get(weight.dtype.name)
        if code is None or name == "__metadata__":
            raise WeightsError(f"weight {name} of dtype {weight.dtype} cannot be stored")
        end = offset + weight_bytes(weight)
        header[name] = {
            "dtype": code,
            "shape": list(weight.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN_BYTES)
    return WeightsLayout(struct.pack("<Q", len(text)) + text, tuple(order), offset)


def write_weights(
    file: BinaryIO, weights: Mapping[str, WeightLike], layout: WeightsLayout
) -> Digests:
    """Write a weights file at the file's position, piece by piece.

    The digests are of the tensors' bytes; the SHA-256 is stored in the header too.

    Raises
    ------
    WeightsError
        If a weight yields other bytes than its shape and dtype promise.
    """
    start = file.tell()
    file.write(layout.header)
    stream = WeightStream(file)
    for name in layout.order:
        stream.write_weight(name, weights[name])
    end = file.tell()
    digests = Digests(stream.sha256.hexdigest(), stream.xxh64.hexdigest())
    file.seek(start + layout.header.index(b"0" * 64))
    file.write(digests.sha256.encode())
    file.seek(end)
    return digests


class WeightStream:
    """A file that weights are written to, and the digests of what was written."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.sha256, self.xxh64 = hashlib.sha256(), xxhash.xxh64()

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes at the file's position."""
        self._file.write(data)
        self.sha256.update(data)
        self.xxh64.update(data)

    def write_weight(self, name: str, weight: WeightLike) -> None:
        """Write a weight, piece by piece.

        Raises
        ------
        WeightsError
            If it yields other bytes than its shape and dtype promise.
        """
        expected, written = weight_bytes(weight), 0
        for piece in _weight_pieces(weight):
            if piece.dtype != weight.dtype:
                raise WeightsError(f"weight {name} has dtype {piece.dtype}, not {weight.dtype}")
            data = as_bytes(piece)
            self.write(data)
            written += data.nbytes
        if written != expected:
            raise WeightsError(f"weight {name} has {written} bytes where {expected} were promised")


def map_weights(
    path: str | os.PathLike[str], offset: int, size: int
) -> tuple[dict[str, np.ndarray], str | None]:
    """Map the tensors of a weights file that lies at `offset` in a file.

    Returned are the tensors by name (read-only), and the SHA-256 that the header promises
    for their bytes.

    Raises
    ------
    WeightsError
        If the header is damaged, or a tensor's bytes lie outside the file.
    """
    with open(path, "rb") as file:
        available = min(size, file.seek(0, os.SEEK_END) - offset)
        if available < 8:
            raise WeightsError("it is cut short")
        file.seek(offset)
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(available - 8, MOST_BYTES):
            raise WeightsError("its header is cut short or damaged")
        header = file.read(length)
        data = offset + 8 + length
        room = available - 8 - length
        entries, digest = _parse_header(header, room)
        if not entries:
            return {}, digest
        # One map for all tensors: a map for each would exhaust the limit on maps of a process.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors = {}
    for name, (dtype, shape, begin) in entries.items():
        where = (content, data + begin) if math.prod(shape) else ()
        tensors[name] = np.ndarray(shape, dtype, *where)
    return tensors, digest


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield an array's elements in C order, about `PIECE_BYTES` at a time.

    The memory of a mapped file is given back behind each piece.
    """
    if array.ndim == 0 or array.nbytes <= PIECE_BYTES:
        yield array
        return
    row_bytes = array.nbytes // len(array)
    if row_bytes > PIECE_BYTES:
        for row in array:
            yield from pieces(row)
        return
    step = max(1, PIECE_BYTES // row_bytes)
    for start in range(0, len(array), step):
        yield array[start : start + step]
        # A memory map's pages are not needed again; without this they fill the memory.
        release_pages(array[start : start + step])


def release_pages(array: np.ndarray) -> None:
    """Let the system take back the memory of a read-only mapped array after reading it.

    Nothing happens for other arrays: pages of a writable private map could hold
    changes, which would be lost.
    """
    if array.flags.writeable or not array.flags.c_contiguous:
        return
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        address = array.__array_interface__["data"][0]
        begin = address - np.frombuffer(base, np.uint8).__array_interface__["data"][0]
        page = mmap.PAGESIZE
        first = -(-begin // page) * page
        length = (begin + array.nbytes) // page * page - first
        if length > 0:
            base.madvise(mmap.MADV_DONTNEED, first, length)


def _parse_header(
    text: bytes, room: int
) -> tuple[dict[str, tuple[np.dtype, tuple[int, ...], int]], str | None]:
    """Return dtype, shape and first byte of every tensor, and the promised digest."""
    try:
        header = parse(text)
        _HEADER(header, "")
        about = header.pop("__metadata__", {})
        for name, entry in header.items():
            _ENTRY(entry, f"weight {name[:60]}")
    except SchemaError as error:
        raise WeightsError(f"its header is damaged: {error}") from error
    entries = {}
    ranges = []
    for name, entry in header.items():
        dtype = dtype_from_name(_NUMPY_NAMES[entry["dtype"]])
        shape = tuple(entry["shape"])
        if len(entry["data_offsets"]) != 2 or math.prod(e or 1 for e in shape) > _MOST_ELEMENTS:
            raise WeightsError(f"the bytes of weight {name} are nowhere")
        begin, end = entry["data_offsets"]
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise WeightsError(f"the size of weight {name} does not fit its shape")
        if end > room:
            raise WeightsError(f"weight {name} lies behind the end of the file")
        entries[name] = (dtype, shape, begin)
        ranges.append((begin, end))
    covered = 0
    for begin, end in sorted(ranges):
        if begin != covered:
            raise WeightsError(f"weights overlap or leave a gap at byte {covered}")
        covered = end
    if covered != room:
        raise WeightsError(f"it holds {room} bytes of weights where its header lists {covered}")
    return entries, about.get(_DIGEST_KEY)


def _weight_pieces(weight: WeightLike) -> Iterator[np.ndarray]:
    """Yield the elements of any kind of weight in C order."""
    if isinstance(weight, LazyWeight):
        value = weight.evaluate()
        for part in [value] if isinstance(value, np.ndarray) else value:
            yield from pieces(part)
    elif isinstance(weight, np.ndarray):
        yield from pieces(weight)
    else:
        yield from pieces(np.asarray(weight))
