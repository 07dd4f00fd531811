"""Bar charts as SVG, with nothing to install."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_WIDTH, _LABEL, _BAR, _GAP = 760, 170, 18, 6
_COLOURS = ("#1f6f8b", "#99a8b2")


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draw a group of horizontal bars for each network, scaled to its own longest one.

    Bars whose name begins with ``tvmflow`` have a colour of their own.
    """
    lines: list[str] = []
    y = 34
    for group, values in groups.items():
        lines.append(f'<text x="8" y="{y + 12}" font-weight="bold">{escape(group)}</text>')
        y += _BAR + _GAP
        longest = max(values.values(), default=1.0)
        for name, value in sorted(values.items(), key=lambda item: item[1]):
            length = max(1.0, (_WIDTH - _LABEL - 90) * value / longest)
            colour = _COLOURS[not name.startswith("tvmflow")]
            lines.append(
                f'<text x="{_LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
            )
            lines.append(
                f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            lines.append(f'<text x="{_LABEL + length + 6:.1f}" y="{y + 13}">{value:.1f}</text>')
            y += _BAR + _GAP
        y += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{_WIDTH}" height="{y}" fill="white"/>'
    heading = f'<text x="8" y="20" font-size="15">{escape(title)}</text>'
    return "\n".join([head, background, heading, *lines, "</svg>"]) + "\n"
