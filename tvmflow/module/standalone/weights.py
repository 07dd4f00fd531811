"""The weights of a standalone module: one file, which the library includes or has beside it.

Weights can be larger than memory: they are written piece by piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ..weights import WeightLike, as_bytes, weight_bytes, weight_pieces
from .format import WEIGHT_ALIGNMENT, WEIGHTS_HEADER, weights_header


@dataclass(frozen=True)
class WrittenWeights:
    """Where each weight lies in the file, from its begin."""

    offsets: dict[str, int]
    sizes: dict[str, int]
    #: SHA-256 of all that follows the header.
    digest: bytes
    #: Of the whole file.
    bytes: int


def write_weights(path: Path, weights: Mapping[str, WeightLike]) -> WrittenWeights:
    """Write weights behind their header, each at a multiple of `WEIGHT_ALIGNMENT`.

    Without any weights there is no file.
    """
    if not weights:
        return WrittenWeights({}, {}, bytes(32), 0)
    offsets, sizes = {}, {}
    digest, checksum = hashlib.sha256(), xxhash.xxh64()
    with open(path, "wb") as file:
        file.write(bytes(WEIGHTS_HEADER.itemsize))
        for name, weight in weights.items():
            padding = bytes(-file.tell() % WEIGHT_ALIGNMENT)
            file.write(padding)
            digest.update(padding)
            checksum.update(padding)
            offsets[name], sizes[name] = file.tell(), weight_bytes(weight)
            for piece in weight_pieces(weight):
                data = as_bytes(piece)
                file.write(data)
                digest.update(data)
                checksum.update(data)
        end = file.tell()
        file.seek(0)
        size = end - WEIGHTS_HEADER.itemsize
        file.write(weights_header(digest.digest(), size, checksum.intdigest()))
    return WrittenWeights(offsets, sizes, digest.digest(), end)
