"""Damages the cache's entry in many ways; prints those that were not noticed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm
from modules import CacheStatistics, cache_statistics, first_device, scale_module

HEADER_BYTES = 88
X = tvm.runtime.tensor(np.ones(8, "float32"), first_device())
Y = tvm.runtime.tensor(np.zeros(8, "float32"), first_device())


def build(folder: Path, count: int = 3) -> tuple[Path, CacheStatistics]:
    """Load and run a module; return its entry and what the cache did for it."""
    known = set(folder.glob("*.program"))
    before = cache_statistics()
    module = scale_module(count)
    for number in range(1, count + 1):
        module[f"scale{number}"](X, Y, 1, 8)
    Y.numpy()
    after = cache_statistics()
    did = CacheStatistics(*(now - then for now, then in zip(after, before, strict=True)))
    new = set(folder.glob("*.program")) - known
    return (new.pop() if new else Path()), did


def flip(position: int) -> Callable[[bytes], bytes]:
    def damage(sound: bytes) -> bytes:
        changed = bytearray(sound)
        changed[position] ^= 0x10
        return bytes(changed)

    return damage


def damages(other: bytes) -> dict[str, Callable[[bytes], bytes]]:
    positions = [0, 7, 8, 11, 12, 15, 16, 47, 48, 55, 56, 87]
    positions += [HEADER_BYTES, HEADER_BYTES + 9, HEADER_BYTES + 100, -1]
    found = {f"byte {position} changed": flip(position) for position in positions}
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1):
        found[f"cut to {length} bytes"] = lambda sound, length=length: sound[:length]
    found["longer"] = lambda sound: sound + b"more"
    found["zeros"] = lambda sound: bytes(len(sound))
    found["of another program"] = lambda _sound: other
    return found


def main() -> None:
    folder = Path(os.environ["TVMFLOW_CACHE_DIR"])
    entry, did = build(folder)
    other, _ = build(folder, 2)
    unnoticed = [] if did == CacheStatistics(0, 1, 0, 1) else [f"fresh: {did}"]
    sound = entry.read_bytes()
    tried = damages(other.read_bytes())
    if "--few" in sys.argv:
        tried = dict(list(tried.items())[-6:])
    for name, damage in tried.items():
        entry.write_bytes(damage(sound))
        _, did = build(folder)
        if did != CacheStatistics(hits=0, misses=0, rebuilt=1, stored=1):
            unnoticed.append(f"{name}: {did}")
        # A real driver's binaries differ from build to build.
        if "--exact" in sys.argv and entry.read_bytes() != sound:
            unnoticed.append(f"{name}: the entry was not replaced by a sound one")
    for mode in (0o620, 0o602):
        entry.chmod(mode)
        _, did = build(folder)
        if did.rebuilt != 1:
            unnoticed.append(f"mode {mode:o}: {did}")
    entry.unlink()
    os.mkfifo(entry)
    _, did = build(folder)
    if did != CacheStatistics(0, 1, 0, 1):
        unnoticed.append(f"a FIFO: {did}")
    _, did = build(folder)
    if did != CacheStatistics(1, 0, 0, 0):
        unnoticed.append(f"sound: {did}")
    print(json.dumps({"tried": len(tried), "unnoticed": unnoticed}))


main()
