"""Bar charts and curves as SVG, with nothing to install."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import ceil, floor, log10

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
    return "\n".join([*_frame(title, _WIDTH, y), *lines, "</svg>"]) + "\n"


_HUES = ("#1f6f8b", "#c0562b", "#5b8c2a", "#7a4fa3", "#99a8b2", "#b8912f", "#444444", "#c23b74")


def curves(title: str, axes: tuple[str, str], series: Mapping[str, Mapping[float, float]]) -> str:
    """Draw ``y`` over ``x`` for each name, both axes logarithmic; ``axes`` are their titles."""
    xs = [x for points in series.values() for x in points]
    ys = [y for points in series.values() for y in points.values()]
    left, top, width, height = 70, 40, 440, 320
    low, high = floor(log10(min(ys))), max(ceil(log10(max(ys))), floor(log10(min(ys))) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        span = log10(max(xs) / min(xs)) or 1
        along, up = log10(x / min(xs)) / span, (log10(y) - low) / (high - low)
        return left + width * along, top + height * (1 - up)

    lines = []
    for power in range(low, high + 1):
        _, y = place(min(xs), 10.0**power)
        lines.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#dddddd"/>')
        text = f"{10.0**power:g}"
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for x in sorted(set(xs)):
        at, _ = place(x, 10.0**low)
        lines.append(
            f'<text x="{at:.1f}" y="{top + height + 18}" text-anchor="middle">{x:g}</text>'
        )
    for index, (name, points) in enumerate(series.items()):
        colour = _HUES[index % len(_HUES)]
        way = [place(x, y) for x, y in sorted(points.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in way)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in way]
        y = top + 10 + 20 * index
        lines.append(f'<rect x="{left + width + 16}" y="{y - 9}" width="12" height="10" '
                     f'fill="{colour}"/>')  # fmt: skip
        lines.append(f'<text x="{left + width + 34}" y="{y}">{escape(name)}</text>')
    lines.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">'
                 f"{escape(axes[0])}</text>")  # fmt: skip
    lines.append(f'<text x="{left}" y="{top - 8}">{escape(axes[1])}</text>')
    return "\n".join([*_frame(title, _WIDTH, top + height + 50), *lines, "</svg>"]) + "\n"


def _frame(title: str, width: int, height: int) -> list[str]:
    """The head of a picture, its background and its title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return [head, background, f'<text x="8" y="20" font-size="15">{escape(title)}</text>']
