"""Text for numbers, in addition to `ir.units`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence


def ms_text(ms: float) -> str:
    """Return a time with a suitable unit: ``0.4 µs``, ``820 µs``, ``12.3 ms``, ``4.56 s``."""
    if ms < 1:
        return f"{ms * 1e3:.0f} µs" if ms >= 0.01 else f"{ms * 1e3:.1f} µs"
    if ms < 1000:
        return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"
    return f"{ms / 1e3:.2f} s"


def escape_controls(text: str) -> str:
    r"""Escape unprintable characters as JSON does: ``\u001b``.

    Line ends are kept.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    # JSON writes characters beyond 16 bits as two units.
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def plain_text(text: str) -> str:
    """Return a docstring's first paragraph without markup, in one line."""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.sub(r":\w+:`[~.]*([^`]*)`", r"\1", first).replace("`", "")


def knobs_text(knobs: Mapping[str, object]) -> str:
    """Return knobs as ``tile_h=4 stage_input=true``, or ``-`` if there are none."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in knobs.items()) or "-"


def times_text(extents: Sequence[int | str]) -> str:
    """Return extents as ``1×3×224×224``."""
    return "×".join(map(str, extents))


def shape_text(shape: Sequence[int | str]) -> str:
    """Return a shape as ``1×3×224×224``, or ``scalar``."""
    return times_text(shape) or "scalar"


#: Lines of prose at least this long were wrapped by hand.
_LONG = 60


def folded(text: str, width: int) -> str:
    """Fold the text below a command's options to the width of the terminal.

    Prose is filled; commands are continued with backslashes; other lines, such as rows of a table,
    continue below their last column.
    """
    joined: list[str] = []
    for line in text.split("\n"):
        last = joined[-1] if joined else ""
        is_prose = [
            one.strip() and not re.search(r"\S  |^\s*tvmflow ", one) for one in (last, line)
        ]
        if all(is_prose) and len(last) >= _LONG and _indent(last) == _indent(line):
            joined[-1] = f"{last} {line.strip()}"
        else:
            joined.append(line)
    return "\n".join(part for line in joined for part in _fold(line, width))


def _fold(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent, body, end = " " * _indent(line), line.strip(), ""
    further = indent
    if body.startswith("tvmflow "):
        further, end = indent + "    ", " \\"
        # Keep an option and its value on one line.
        body = re.sub(r"(--?[a-z][\w-]*) (?=[^-\s])", "\\1\0", body)
    elif (row := re.match(r"\S+  +", body)) is not None:
        further = indent + " " * row.end()
    parts = textwrap.wrap(
        body, max(width - len(end), len(further) + 20), initial_indent=indent,
        subsequent_indent=further, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    parts = [part.replace("\0", " ") for part in parts]
    return [part + end for part in parts[:-1]] + parts[-1:]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
