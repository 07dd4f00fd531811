"""Report of a session: one self-contained HTML page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from ..module.files import write_file
from ..runtime.load import disturbance
from .session import Tuned
from .tuner import Progress

#: Size of a drawing in pixels, and its margins with the labels of both axes.
_WIDTH, _HEIGHT = 260, 90
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 8, 22
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1c2733; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #dde3ea }
th:first-child, td:first-child { text-align: left; font-family: ui-monospace, monospace;
  overflow-wrap: anywhere; min-width: 8rem }
.wide { overflow-x: auto }
.bar { background: #e8edf3; height: .9rem; min-width: 6rem }
.bar div { background: #2b6cb0; height: 100% }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 1rem }
svg text { font-size: 9px; fill: currentColor }
figure { margin: 0 } figcaption { font-size: 12px; overflow-wrap: anywhere }
.headline { font-size: 1.3rem }
@media (max-width: 44rem) { .spare { display: none } .bar { min-width: 2.5rem }
  th, td { padding: .25rem .3rem; font-size: 13px } }
@media (prefers-color-scheme: dark) { body { color: #d8e0e8; background: #11161c }
  th, td { border-color: #2a333d } .bar { background: #2a333d } }
"""


def write_report(path: Path, name: str, tuned: Tuned) -> None:
    """Write the page; `ArtifactError` if it cannot be written."""
    known = [p for p in tuned.progress if math.isfinite(p.best)]
    known.sort(key=lambda p: -p.time)
    title = f"Tuning of {escape(name)}"
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _headline(tuned, known),
        "<h2>Share of time</h2>",
        _tasks(known),
        _decisions(tuned),
        "<h2>Best so far</h2>",
        "<p>Time of one run: the best so far (line), each trial (dots; slow ones at the top), the",
        "heuristic (dashed); and the best knobs.</p>",
        '<div class="curves">',
        *map(_curve, known),
        "</div></body></html>",
    ]
    write_file(path, "\n".join(lines))


def _headline(tuned: Tuned, known: Sequence[Progress]) -> str:
    trials = sum(p.trials for p in tuned.progress)
    failures = sum(p.failures for p in tuned.progress)
    both = [p for p in known if math.isfinite(p.heuristic)]
    before, after = sum(p.task.calls * p.heuristic for p in both), sum(p.time for p in both)
    said = disturbance(tuned.others_share)

    def times(old: float, new: float) -> str:
        # Times that other programs disturbed are not compared.
        return "" if said else f", {old / new:.2f} times as fast"

    result = ""
    if tuned.comparison is not None:
        old, new = tuned.comparison.before_ms, tuned.comparison.after_ms
        result = (
            f'<p class="headline">The whole network: {old:.2f} ms before, {new:.2f} ms after'
            f"{times(old, new)}.</p>"
        )
    if said:
        result += f"<p><strong>{escape(said)}</strong></p>"
    result += f"<p>{trials} trials of {len(tuned.progress)} tasks, {failures} failed, "
    result += f"{tuned.seconds:.0f} s.</p>"
    devices = dict.fromkeys(" ".join(filter(None, (d.name, d.driver))) for d in tuned.measured_on)
    measured_on = f"Measured on {escape(', '.join(devices))}, " if devices else ""
    result += f"<p>{measured_on}{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}.</p>"
    if after:
        result += (
            f"<p>Sum of the kernels: {before * 1e3:.3f} ms with the heuristics, {after * 1e3:.3f} "
            f"ms with the best knobs{times(before, after)}.</p>"
        )
    return result


def _tasks(known: Sequence[Progress]) -> str:
    total = sum(p.time for p in known) or 1.0
    titles = ("task", "family", "calls", "trials", "heuristic, µs", "best, µs", "speed-up", "share")
    rows = []
    for p in known:
        share = p.time / total
        heuristic = f"{p.heuristic * 1e6:.1f}" if math.isfinite(p.heuristic) else "failed"
        cells = escape(p.task.label), escape(p.task.family.NAME), p.task.calls, p.trials, heuristic
        bar = f'<div class="bar"><div style="width:{share:.1%}"></div></div>'
        rows.append((*cells, f"{p.best * 1e6:.1f}", f"{p.speedup:.2f}", f"{share:.1%}", bar))
    return _table((*titles, ""), rows, spare=("family", "calls", "trials"))


def _decisions(tuned: Tuned) -> str:
    if not tuned.settled:
        return ""
    titles = ("decision", "of", "cost model", "measured", "cost")
    rows = [tuple(map(escape, decision.row)) for decision in tuned.settled]
    return f"<h2>Algorithms and storage</h2>{_table(titles, rows)}"


def _table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], spare: Container[str] = ()
) -> str:
    """Return a table; narrow windows leave out its spare columns."""
    marks = [' class="spare"' if title in spare else "" for title in titles]
    lines = [
        "".join(f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, row, strict=True))
        for tag, row in (("th", titles), *(("td", row) for row in rows))
    ]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{table}</table></div>'


def _curve(progress: Progress) -> str:
    """Return costs over trials as a drawing; slow candidates are at its upper edge."""
    base = progress.heuristic if math.isfinite(progress.heuristic) else progress.best
    highest, lowest = 1.6 * base, 0.9 * progress.best

    def y(cost: float) -> float:
        part = (min(cost, highest) - lowest) / (highest - lowest)
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)

    def x(index: int) -> float:
        part = index / max(1, progress.trials - 1)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    costs = [point.cost for point in progress.points]
    measured = ((x(index), y(cost)) for index, cost in enumerate(costs) if math.isfinite(cost))
    dots = "".join(f'<circle cx="{a}" cy="{b}" r="1.6" fill="#8aa0b5"/>' for a, b in measured)
    fastest = enumerate(itertools.accumulate(costs, min))
    line = " ".join(f"{x(index)},{y(cost)}" for index, cost in fastest if math.isfinite(cost))
    caption = f"{progress.task.label}: {progress.speedup:.2f} times as fast"
    best = progress.best_knobs.items()
    knobs = escape(" ".join(f"{name}={str(value).lower()}" for name, value in best) or "-")
    texts = [
        *((_LEFT - 4, y(cost) + 3, "end", f"{cost * 1e6:.3g} µs") for cost in (highest, lowest)),
        *((x(index), _HEIGHT - 12, "middle", index + 1) for index in {0, progress.trials - 1}),
        ((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 2, "middle", "trial"),
    ]
    labels = "".join(
        f'<text x="{a}" y="{b}" text-anchor="{anchor}">{text}</text>'
        for a, b, anchor, text in texts
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(caption)}">'
        f'{labels}<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(base)}" '
        f'y2="{y(base)}" stroke="#b0562b" stroke-dasharray="4 3"/>{dots}'
        f'<polyline points="{line}" fill="none" stroke="#2b6cb0" stroke-width="1.6"/>'
        f"</svg><figcaption>{escape(caption)}<br><code>{knobs}</code></figcaption></figure>"
    )
