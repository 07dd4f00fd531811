"""What an analysis tells about a kernel, where, at which cost, and what to try."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something in a kernel that costs time and might be changed."""

    #: Name of the kernel.
    kernel: str
    #: Which analysis found it, ``coalescing`` for example.
    kind: str
    #: Buffer and index, or condition, as TVMScript.
    access: str
    #: Line in the text of the scheduled primary function, from 1; 0 where there is none.
    line: int
    #: What it costs in one run of the kernel, by unit: ``bytes``, ``cycles`` or ``lanes``.
    cost: Mapping[str, float]
    #: Of the kernel's traffic, cycles or lanes, from 0 to 1.
    share: float
    #: What is the case, with numbers.
    sentence: str
    #: What to try.
    remedy: str


_DECLARES = ("T.reads", "T.writes", "T.match_buffer", "def ")


def line_of(text: str, buffer: str, *, is_store: bool) -> int:
    """Line of the first access to a buffer in the text of a primary function, from 1.

    Lowering unrolls and splits statements, and keeps the names of tensors: the first statement
    that writes to, or reads from, the tensor of this name.

    Returns
    -------
    int
        0 where there is none.
    """
    # Names have letters that TVMScript's variables cannot have.
    name = re.sub(r"\W", "_", buffer)
    pattern = re.compile(rf"(?<!\w){name}\[")
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if code.startswith(_DECLARES):
            continue
        target, assigned, value = code.partition("] = ")
        found = pattern.match(target) if is_store else pattern.search(value if assigned else code)
        if found and (assigned or not is_store):
            return number
    return 0
