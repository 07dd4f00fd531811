"""What a writer does beside appending: definitions, compressed blocks, and the index."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator

from ..errors import JournalError
from .appending import Appender
from .definitions import (
    SHORT,
    definition,
    pack_event,
    pack_trial,
    skeleton_of,
    toolchain_data,
)
from .frames import BLOCK, DEFINITION, EVENT, INDEX, TRIAL
from .packing import pack_block
from .records import Event, Keyed, Trial, digest
from .store import Store

#: An index is written when so many bytes follow the last one, and that is small beside them.
INDEX_EVERY_BYTES = 1 << 16
INDEX_SHARE = 16
#: Records of a compressed block, at most, and their bytes: what is lost with it.
BLOCK_ITEMS = 64
BLOCK_BYTES = 1 << 16


#: Definitions that are not in the file yet: kind and data by key.
New = dict[bytes, tuple[str, bytes]]


class Writer:
    """Appends to a journal that was opened and locked.

    Parameters
    ----------
    store
        What is in the file; what is appended is taken up in its table.
    fd
        The file.
    """

    def __init__(self, store: Store, fd: int):
        if not all(map(store.definition, store.table.definitions)):
            # There may be copies; what is lost is written again when a trial needs it.
            store.read_all()
        self._store = store
        self._appender = Appender(store.path, fd)
        #: Contexts of appended trials by what they refer to.
        self._contexts: dict[tuple, bytes] = {}
        #: Frames of definitions that stand in the file only once.
        self._uncopied: list[tuple[int, bytes]] = []
        if store.tail is not None:
            details = {"offset": store.tail.offset, "bytes": store.tail.length}
            self.append(Event("recovered", time.time(), None, details))

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event.

        Raises
        ------
        JournalError
            If it is not what a journal holds, or the system refuses.
        """
        new: New = {}
        try:
            if isinstance(record, Event):
                if record.device is not None:
                    self._need(new, keyed(record.device))
                kind, payload = EVENT, pack_event(record)
            else:
                kind, payload = TRIAL, self._encode(record, new)
        except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise self._refused(error) from error
        frames = [(DEFINITION, definition(*one, pack=True)) for one in new.values()]
        *offsets, offset = self._write([*frames, (kind, payload)])
        for key, at in zip(new, offsets, strict=True):
            self._store.table.definitions[key[:SHORT]] = at
        self._uncopied += frames
        if isinstance(record, Event):
            self._store.table.events += 1
        else:
            self._count(record, offset, 0)
        unindexed = self._appender.end - self._store.indexed_to
        if unindexed > max(INDEX_EVERY_BYTES, INDEX_SHARE * self._index_bytes):
            self._write_index()

    def append_compressed(self, trials: Iterable[Trial]) -> None:
        """Append trials in blocks, behind blocks of the definitions that they need.

        Raises
        ------
        JournalError
            As :meth:`append`.
        """
        new: New = {}
        kept = list(trials)
        try:
            payloads = [self._encode(trial, new) for trial in kept]
        except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise self._refused(error) from error
        definitions = [(DEFINITION, definition(*one, pack=False)) for one in new.values()]
        shorts = iter(key[:SHORT] for key in new)
        for items in blocks(definitions):
            frame = (BLOCK, pack_block(items))
            (offset,) = self._write([frame])
            self._uncopied.append(frame)
            for _, short in zip(items, shorts, strict=False):
                self._store.table.definitions[short] = offset
        rest = iter(kept)
        for items in blocks([(TRIAL, payload) for payload in payloads]):
            (offset,) = self._write([(BLOCK, pack_block(items))])
            for slot, trial in zip(range(len(items)), rest, strict=False):
                self._count(trial, offset, slot)

    def _refused(self, error: Exception) -> JournalError:
        return JournalError(
            f"A record could not be appended to {self._store.path}: {error}.",
            remedy="Records hold numbers, truth values, texts, and lists and dictionaries of them.",
        )

    def _encode(self, trial: Trial, new: New) -> bytes:
        """The payload of a trial; definitions that the file lacks go to ``new``."""
        numbers: list = []
        skeleton = skeleton_of(trial, numbers)
        toolchain = tuple(trial.toolchain.items())
        shared = (trial.workload, trial.target, trial.device)
        memo = (*(part.key for part in shared), toolchain, skeleton)
        if (short := self._contexts.get(memo)) is None:
            parts = [keyed(part) for part in shared]
            parts += [("toolchain", toolchain_data(trial)), ("skeleton", skeleton.encode())]
            keys = [self._need(new, part) for part in parts]
            short = self._need(new, ("context", b"".join(keys)))[:SHORT]
            self._contexts[memo] = short
        return pack_trial(short, trial, numbers)

    def _need(self, new: New, part: tuple[str, bytes]) -> bytes:
        key = digest(*part)
        if key[:SHORT] not in self._store.table.definitions:
            new[key] = part
        return key

    def _count(self, trial: Trial, offset: int, slot: int) -> None:
        workload = trial.workload
        entry = self._store.table.entry(workload.kin, workload.key, trial.target.kin)
        entry.add(trial.cost, offset, slot)

    def _write(self, frames: list[tuple[int, bytes]]) -> list[int]:
        try:
            return self._appender.write(*frames)
        except JournalError:
            # Definitions of these contexts may not have been written.
            self._contexts.clear()
            raise

    @property
    def _index_bytes(self) -> int:
        return self._store.indexed_to - self._store.index_at

    def _copy_definitions(self) -> None:
        """Write new definitions once more: thousands of trials may hang on a few bytes."""
        if self._uncopied:
            self._write(self._uncopied)
            self._uncopied = []

    def _write_index(self) -> None:
        store = self._store
        self._copy_definitions()
        (offset,) = self._write([(INDEX, store.table.pack(store.index_at))])
        store.index_at, store.indexed_to = offset, self._appender.end

    def sync(self) -> None:
        """Force everything to the disk."""
        self._appender.sync()

    def finish(self) -> None:
        """Write what is needed to read the file fast and safely, and force it to the disk."""
        self._copy_definitions()
        if self._appender.end - self._store.indexed_to > self._index_bytes:
            self._write_index()
        self._appender.sync()


def keyed(part: Keyed) -> tuple[str, bytes]:
    """Kind and data of a workload, target or device."""
    return type(part).__name__.lower(), part.data


def blocks(items: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Items of blocks that are not too large."""
    block: list[tuple[int, bytes]] = []
    size = 0
    for item in items:
        if block and (len(block) == BLOCK_ITEMS or size + len(item[1]) > BLOCK_BYTES):
            yield block
            block, size = [], 0
        block.append(item)
        size += len(item[1])
    if block:
        yield block
