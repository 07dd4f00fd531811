"""Curves as SVG, with nothing to install."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import ceil, floor, log10

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
    size = f'width="760" height="{top + height + 50}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="20" font-size="15">{escape(title)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"
