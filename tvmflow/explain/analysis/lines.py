"""Where in the text of a primary function a finding is."""

from __future__ import annotations

import re

#: An axis of work-groups or work-items: a loop, or a statement that launches.
_BINDS = re.compile(r"\"(blockIdx|threadIdx)\.[xyz]\"")
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


def binding_above(text: str, line: int) -> int:
    """The nearest line above a line that binds an axis of a launch; 0 where there is none."""
    lines = text.splitlines()
    return next((n for n in range(line - 1, 0, -1) if _BINDS.search(lines[n - 1])), 0)
