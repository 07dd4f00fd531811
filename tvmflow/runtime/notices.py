"""Notices about slow steps, logged on the level `NOTICE` while they run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Level between INFO and WARNING; commands print it unless asked to be quiet.
NOTICE = 25
#: Seconds after which a notice is due.
PATIENCE_S = 5.0

logging.addLevelName(NOTICE, "NOTICE")
_told: set[str] = set()


@contextmanager
def told_if_slow(logger: logging.Logger, sentence: str) -> Iterator[None]:
    """Log a sentence, once per process, if the block takes longer than `PATIENCE_S`."""

    def tell() -> None:
        if sentence not in _told:
            _told.add(sentence)
            logger.log(NOTICE, "%s", sentence)

    timer = threading.Timer(PATIENCE_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
