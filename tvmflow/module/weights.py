"""Weights in the safetensors format, written as a stream and read through memory maps.

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
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash

from ..ir.limits import MOST_DIMENSIONS
from ..ir.tensors import dtype_from_name
from ..runtime.json_types import JsonObject
from ..runtime.regular_files import open_file
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
#: NumPy's names of the supported element types.
DTYPE_NAMES = tuple(_DTYPES)
_NUMPY_NAMES = {code: name for name, code in _DTYPES.items()}
#: Limit of the product of a weight's extents, with 1 for 0: NumPy refuses larger products.
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
    """Raised for bytes that are no weights file, or a damaged one."""


class WeightsLayout(NamedTuple):
    """Layout of a weights file: its header, the order of its tensors, and its total size."""

    header: bytes
    order: list[str]
    total_bytes: int


def plan_weights(weights: Mapping[str, np.ndarray]) -> WeightsLayout:
    """Plan the layout of a weights file.

    Tensors whose size is a multiple of `ALIGN_BYTES` come first: they are then aligned,
    and mapped memory can be used without a copy.  The format allows no gaps that would
    align the others.  Raises `WeightsError` if the format does not have a weight's dtype,
    or reserves its name.
    """
    order = sorted(weights, key=lambda name: weights[name].nbytes % ALIGN_BYTES != 0)
    # The digest is known only after writing; zeros take its place until then.
    header: JsonObject = {"__metadata__": {"format": "np", _DIGEST_KEY: "0" * 64}}
    offset = 0
    for name in order:
        weight = weights[name]
        code = _DTYPES.get(weight.dtype.name)
        if code is None or name == "__metadata__":
            raise WeightsError(f"weight {name} of dtype {weight.dtype} cannot be stored")
        offsets = [offset, offset := offset + weight.nbytes]
        header[name] = {"dtype": code, "shape": list(weight.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN_BYTES)
    return WeightsLayout(struct.pack("<Q", len(text)) + text, order, 8 + len(text) + offset)


def write_weights(
    file: BinaryIO, weights: Mapping[str, np.ndarray], layout: WeightsLayout
) -> JsonObject:
    """Write a weights file at the file's position, piece by piece.

    Returns digests of the tensors' bytes, as entries of a module's metadata; the header contains
    the SHA-256, too.
    """
    start = file.tell()
    file.write(layout.header)
    stream = WeightStream(file)
    for name in layout.order:
        stream.write_weight(weights[name])
    digest = stream.sha256.hexdigest()
    file.seek(start + layout.header.index(b"0" * 64))
    file.write(digest.encode())
    file.seek(0, os.SEEK_END)
    return {"weights_digest": digest, "weights_xxh64": stream.xxh64.hexdigest()}


class WeightStream:
    """Writer of weights to a file that computes digests of the written bytes."""

    def __init__(self, file: BinaryIO):
        self._file = file
        #: SHA-256 detects any change, but is slow; XXH64 detects damage, and is fast enough to be
        #: computed each time that a module is loaded.
        self.sha256, self.xxh64 = hashlib.sha256(), xxhash.xxh64()

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes at the file's position."""
        self._file.write(data)
        self.sha256.update(data)
        self.xxh64.update(data)

    def write_weight(self, weight: np.ndarray) -> None:
        """Write a weight's elements in C order, piece by piece."""
        for piece in pieces(weight):
            self.write(piece)


def map_weights(
    path: str | os.PathLike[str], offset: int, size: int
) -> tuple[dict[str, np.ndarray], str | None]:
    """Map the tensors of a weights file that starts at `offset` in another file.

    Returns the read-only tensors by name, and the SHA-256 of their bytes as the header states it.
    Raises `WeightsError` if the file is damaged, or a tensor lies outside of it.
    """
    with open_file(path) as file:
        available = min(size, file.seek(0, os.SEEK_END) - offset)
        if available < 8:
            raise WeightsError("it is cut short")
        file.seek(offset)
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(available - 8, MOST_BYTES):
            raise WeightsError("its header is cut short or damaged")
        data = offset + 8 + length
        entries, digest = _parse_header(file.read(length), available - 8 - length)
        if not entries:
            return {}, digest
        # Use one map for all tensors: the number of maps in a process is limited.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.ndarray(shape, dtype, *((content, data + begin) if math.prod(shape) else ()))
        for name, (dtype, shape, begin) in entries.items()
    }, digest


def content_digest(array: np.ndarray) -> bytes:
    """Return the SHA-256 of an array's elements in C order."""
    digest = hashlib.sha256()
    for piece in pieces(array):
        digest.update(piece)
    return digest.digest()


def pieces(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array's elements in C order, about `PIECE_BYTES` at a time.

    The pages of a mapped file are released after each piece, so that they do not fill the memory.
    """
    if array.ndim == 0 or array.nbytes <= PIECE_BYTES:
        yield memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return
    step = max(1, PIECE_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), step):
        part = array[start : start + step]
        yield from pieces(part if step > 1 else part[0])
        release_pages(part)


def release_pages(array: np.ndarray) -> None:
    """Release the memory pages of a read-only mapped array after it has been read.

    Other arrays are left alone: pages of a writable private map could hold changes.
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
    entries, covered = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = dtype_from_name(_NUMPY_NAMES[entry["dtype"]]), tuple(entry["shape"])
        if len(entry["data_offsets"]) != 2 or math.prod(e or 1 for e in shape) > _MOST_ELEMENTS:
            raise WeightsError(f"the bytes of weight {name} are nowhere")
        begin, end = entry["data_offsets"]
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise WeightsError(f"the size of weight {name} does not fit its shape")
        if end > room:
            raise WeightsError(f"weight {name} lies after the end of the file")
        if begin != covered:
            raise WeightsError(f"weights overlap or leave a gap at byte {covered}")
        entries[name], covered = (dtype, shape, begin), end
    if covered != room:
        raise WeightsError(f"it holds {room} bytes of weights where its header lists {covered}")
    return entries, about.get(_DIGEST_KEY)
