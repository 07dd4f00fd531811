"""Modules of a model for the shapes that were asked for: from memory, the disk, or the compiler."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import _versions
from ..compiler.options import CompileOptions
from ..frontend.shapes import batch_shapes, with_open_batch
from ..frontend.source import Source, external_files
from ..module.module import Module
from ..module.shapes import counts
from ..runtime.json_types import JsonMapping
from .store import Shape, Store, find_folder

if TYPE_CHECKING:
    from ..frontend.batch import BatchProof

Shapes = Mapping[str, Shape]

#: Most parts in which a batch is run; it is compiled if it would take more.
MOST_PARTS = 4
#: Held while a module is found or compiled: the compiler serves one thread at a time.
_lock = threading.RLock()


def _reset_lock() -> None:
    """Replace the lock in a forked child, where the thread that holds it does not exist."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_reset_lock)


class Modules:
    """The modules of one model and its options, by the shapes of its inputs."""

    def __init__(self, source: Source, options: CompileOptions) -> None:
        self.source, self.options = source, options
        self.names = [value.name for value in source.inputs]
        #: Modules that someone holds.
        self._live: weakref.WeakValueDictionary[tuple[Shape, ...], Module]
        self._live = weakref.WeakValueDictionary()
        #: Verdicts on batches, by the shapes without the batch.
        self._proofs: dict[tuple[Shape, ...], BatchProof] = {}

    @cached_property
    def store(self) -> Store:
        """Return the modules on the disk."""
        folder = find_folder()
        return Store(folder, key_of(self.source, self.options) if folder else "")

    def find(self, shapes: Shapes) -> Module | None:
        """Return the opened module for these shapes, if one was compiled."""
        key = self._key(shapes)
        with _lock:
            module = self._live.get(key) or self.store.load(key)
            if module is not None:
                self._live[key] = module
        return module

    def get(self, shapes: Shapes) -> Module:
        """Return the opened module for these shapes, compiled if need be."""
        key = self._key(shapes)
        with _lock, self.store.locked(key):
            module = self.find(shapes)
            if module is None:
                module = self._live[key] = self.store.save(self._compile(shapes).open(), key)
        return module

    def parts(self, shapes: Shapes) -> tuple[list[Module], JsonMapping] | None:
        """Return compiled modules whose batches add up to this one, and the proof that they may.

        ``None`` if there are none, it would take more than `MOST_PARTS` runs, or the samples of a
        batch are not proven to be independent of each other.
        """
        batched = with_open_batch(self.source.inputs)
        if not batched or len({shapes[name][0] for name in batched}) > 1:
            return None
        batch, first = shapes[batched[0]][0], self.names.index(batched[0])
        known = {*self._live, *self.store.shapes(len(self.names))}
        sizes = {
            key[first][0] for key in known if key == self._key(self._at(shapes, key[first][0]))
        }
        needed = counts(batch, tuple(sorted(sizes, reverse=True))) if sizes else None
        if needed is None or len(needed) > MOST_PARTS or not self._proof(shapes).proven:
            return None
        modules = [self.get(self._at(shapes, size)) for size in dict.fromkeys(needed)]
        return modules, self._proof(shapes).report()

    def _proof(self, shapes: Shapes) -> BatchProof:
        from ..frontend.batch import prove_independence

        two, three = (self._at(shapes, batch) for batch in (2, 3))
        key = self._key(two)
        if key not in self._proofs:
            self._proofs[key] = prove_independence(self.source, [(two, three)])
        return self._proofs[key]

    def _at(self, shapes: Shapes, batch: int) -> dict[str, Shape]:
        """Return the shapes at another batch."""
        return {**shapes, **batch_shapes(self.source.inputs, shapes, batch)}

    def _key(self, shapes: Shapes) -> tuple[Shape, ...]:
        return tuple(shapes[name] for name in self.names)

    def _compile(self, shapes: Shapes) -> Module:
        # Imported here, because a process that finds all modules on the disk does not need it.
        from ..compiler.pipeline import compile

        # The model declares which inputs are empty.
        left_out = {*self.options.inputs, *(name for name, s in shapes.items() if 0 in s)}
        wanted = {name: shape for name, shape in shapes.items() if name not in left_out}
        return compile(self.source, options=replace(self.options, shapes=wanted))


def key_of(source: Source, options: CompileOptions) -> str:
    """Return the key of everything but the shapes that a compilation depends on."""
    calibration = options.calibrate if isinstance(options.calibrate, Mapping) else {}
    parts = [
        _content(source),
        json.dumps(options.to_json(), sort_keys=True, default=str),
        repr(options.resolve()),
        _processor() if options.target == "llvm" or options.fallback else "",
        _package(),
        *(f"{name}:{hash_of(np.asarray(array).tobytes())}" for name, array in calibration.items()),
        *(hash_of(Path(path).read_bytes()) for path in options.journals),
    ]
    return hash_of("\0".join(parts).encode())[:32]


def hash_of(content: bytes) -> str:
    """Return the SHA-256 of bytes as a hexadecimal number."""
    return hashlib.sha256(content).hexdigest()


def _content(source: Source) -> str:
    """Return the digest of a model and its external data."""
    digest = hashlib.sha256(source.model.SerializeToString(deterministic=True))
    for path in external_files(source):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@cache
def _package() -> str:
    """Return the version of this package, and a digest of its files' sizes and times."""
    folder = Path(__file__).parents[1]
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            found = os.stat(os.path.join(place, name))
            files.append((os.path.relpath(place, folder), name, found.st_size, found.st_mtime_ns))
    return f"{_versions.__version__} {_versions.installed_tvm()} {hash_of(repr(files).encode())}"


@cache
def _processor() -> str:
    """Return the processor's name and features, as Linux describes them."""
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))
