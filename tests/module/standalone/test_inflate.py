"""Kernels' text as libraries store it: the C runtime inflates what zlib deflates."""

from __future__ import annotations

import struct
import subprocess
import zlib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support import runtime_build
from support.small_plans import ADD

#: A DEFLATE stream, and the size of its text.
Stream = tuple[bytes, int]
Inflate = Callable[[Sequence[Stream]], list[bytes | None]]

LEVELS = range(10)
STRATEGIES = {
    "default": zlib.Z_DEFAULT_STRATEGY,
    "filtered": zlib.Z_FILTERED,
    "huffman": zlib.Z_HUFFMAN_ONLY,
    "rle": zlib.Z_RLE,
    "fixed": zlib.Z_FIXED,
}


def deflate(text: bytes, level: int = 9, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 8, strategy)
    return packer.compress(text) + packer.flush()


@pytest.fixture(scope="module")
def inflate(tmp_path_factory) -> Inflate:
    """Return a function that inflates streams in C, under sanitizers; ``None``: refused."""
    folder = tmp_path_factory.mktemp("inflate")
    source = Path(__file__).with_name("inflate_streams.c")
    program = runtime_build.program(folder / "inflate_streams", source, b"")

    def run(streams: Sequence[Stream]) -> list[bytes | None]:
        file = folder / "streams"
        file.write_bytes(b"".join(struct.pack("<II", len(s), n) + s for s, n in streams))
        done = subprocess.run([program, file], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        texts: list[bytes | None] = []
        at = 0
        for _, size in streams:
            taken = done.stdout[at]
            texts.append(done.stdout[at + 1 : at + 1 + size] if taken else None)
            at += 1 + (size if taken else 0)
        assert at == len(done.stdout)
        return texts

    return run


def texts() -> list[bytes]:
    rng = np.random.default_rng(0)
    code = b"".join(path.read_bytes() for path in sorted(runtime_build.NATIVE.glob("*.c")))
    few = rng.choice(np.frombuffer(b"abcdefgh", np.uint8), 70_000, p=np.ones(8) / 8)
    skewed = rng.geometric(0.5, 70_000).astype(np.uint8)
    repeated = [b"x" * n for n in (1, 3, 257, 258, 259, 260, 70_000)]
    far = rng.bytes(32_768)
    return [b"", *repeated, bytes(range(256)) * 9, far + far[:300], few.tobytes(),
            skewed.tobytes(), rng.bytes(70_000), code]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_streams_of_zlib_give_their_text(inflate, strategy):
    cases = list(product(texts(), LEVELS))
    streams = [(deflate(text, level, strategy), len(text)) for text, level in cases]
    if strategy == zlib.Z_DEFAULT_STRATEGY:
        # Blocks of all kinds: stored, with fixed codes, and with dynamic codes.
        assert {stream[0] >> 1 & 3 for stream, _ in streams} == {0, 1, 2}
    found = inflate(streams)
    wrong = [i for i, (text, _) in enumerate(cases) if found[i] != text]
    assert not wrong


def test_streams_that_are_cut_short_or_go_on_are_refused(inflate):
    text = ADD.encode() * 3
    stream = deflate(text)
    cut = [(stream[:i], len(text)) for i in range(len(stream))]
    others = [(stream + b"\0", len(text)), (stream, len(text) - 1), (stream, len(text) + 1)]
    assert not any(map(bool, inflate([*cut, *others])))
    assert inflate([(stream, len(text))]) == [text]


def damaged(stream: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(stream)
    for _ in range(rng.integers(1, 4)):
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def what_zlib_takes(stream: bytes, size: int) -> bytes | None:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        text = unpacker.decompress(stream, size + 1)
    except zlib.error:
        return None
    whole = unpacker.eof and not unpacker.unused_data and len(text) == size
    return text if whole else None


def test_damaged_streams_are_refused_or_give_what_zlib_makes_of_them(inflate):
    """Sanitizers check that no access is out of bounds."""
    rng = np.random.default_rng(1)
    text = ADD.encode() * 3 + bytes(range(32, 127)) + b"0" * 700
    streams: list[Stream] = []
    for level, strategy in product((0, 1, 9), STRATEGIES.values()):
        whole = deflate(text, level, strategy)
        streams += [(damaged(whole, rng), len(text)) for _ in range(1000)]
    streams += [(rng.bytes(int(rng.integers(1, 200))), 500) for _ in range(5000)]
    found = inflate(streams)
    expected = [what_zlib_takes(*stream) for stream in streams]
    different = [
        i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if b is not None and a != b
    ]
    assert not different
    taken = sum(text is not None for text in found)
    assert 0.02 * len(found) < taken < 0.5 * len(found)
