"""Notices: what takes long is said while it does, on the level `NOTICE` of loggers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Between INFO and WARNING: commands print it unless they are to be quiet.
NOTICE = 25
#: Seconds without which nobody wonders.
PATIENCE_S = 5.0

logging.addLevelName(NOTICE, "NOTICE")
_told: set[str] = set()


@contextmanager
def told_if_slow(logger: logging.Logger, sentence: str) -> Iterator[None]:
    """Log a sentence, once in a process, if what is done within takes longer than a few seconds."""

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
