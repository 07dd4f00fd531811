"""The file of a library's weights: a header, then each weight at an aligned offset.

The format is not safetensors, as in modules for TVM's runtime, for two reasons: the C runtime has
no JSON parser, and safetensors allows no gaps, but drivers avoid a copy only at multiples of
`WEIGHT_ALIGNMENT`.  The plan holds the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..weights import WeightStream
from .format import WEIGHT_ALIGNMENT, WEIGHTS_HEADER, WEIGHTS_MAGIC, WEIGHTS_VERSION


def weights_header(content_id: bytes, content_bytes: int, checksum: int) -> bytes:
    """Return the header of a weights file; the digests cover the bytes after it."""
    header = np.zeros((), WEIGHTS_HEADER)
    header["magic"], header["version"] = WEIGHTS_MAGIC, WEIGHTS_VERSION
    header["bytes"] = WEIGHTS_HEADER.itemsize + content_bytes
    header["id"] = np.frombuffer(content_id, np.uint8)
    header["checksum"] = checksum
    return header.tobytes()


@dataclass(frozen=True)
class WrittenWeights:
    """Offsets, digest and size of a written file of weights."""

    offsets: dict[str, int]  #: Offset of each weight from the beginning of the file.
    digest: bytes  #: SHA-256 of the bytes after the header.
    bytes: int  #: Size of the whole file.


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> WrittenWeights:
    """Write a header and the weights after it, each at a multiple of `WEIGHT_ALIGNMENT`.

    Without any weights, no file is written.
    """
    if not weights:
        return WrittenWeights({}, bytes(32), 0)
    offsets = {}
    with open(path, "wb") as file:
        file.write(bytes(WEIGHTS_HEADER.itemsize))
        stream = WeightStream(file)
        for name, weight in weights.items():
            stream.write(bytes(-file.tell() % WEIGHT_ALIGNMENT))
            offsets[name] = file.tell()
            stream.write_weight(weight)
        end = file.tell()
        file.seek(0)
        digest = stream.sha256.digest()
        size = end - WEIGHTS_HEADER.itemsize
        file.write(weights_header(digest, size, stream.xxh64.intdigest()))
    return WrittenWeights(offsets, digest, end)
