"""Numbers as text, beside those of `ir.units`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def ms_text(ms: float) -> str:
    """Return a time in the unit that suits it: ``0.4 µs``, ``820 µs``, ``12.3 ms``, ``4.56 s``."""
    if ms < 1:
        return f"{ms * 1e3:.0f} µs" if ms >= 0.01 else f"{ms * 1e3:.1f} µs"
    if ms < 1000:
        return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"
    return f"{ms / 1e3:.2f} s"


def escape_controls(text: str) -> str:
    r"""Return text in which what no terminal shows is written as JSON does: ``\u001b``.

    Line ends stay.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    # Characters beyond 16 bits are two units in JSON.
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def plain_text(text: str) -> str:
    """Return a docstring's first paragraph without markup, in one line."""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.sub(r":\w+:`[~.]*([^`]*)`", r"\1", first).replace("`", "")


def knobs_text(knobs: Mapping[str, object]) -> str:
    """Return knobs: ``tile_h=4 stage_input=true``, or ``-``."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in knobs.items()) or "-"


def times_text(extents: Sequence[int | str]) -> str:
    """Return extents: ``1×3×224×224``."""
    return "×".join(map(str, extents))


def shape_text(shape: Sequence[int | str]) -> str:
    """Return a shape: ``1×3×224×224``, or ``scalar``."""
    return times_text(shape) or "scalar"
