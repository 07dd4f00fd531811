"""HTML page of a lab: times, tiles, code and findings of each step.

Tiles are read from the schedule.  In the block that runs most often, each loop over the result
divides the tile of the loop around it; the page draws them in the order of the first iterations.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import prod

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.sym import Analyzer
from tvm.tirx import IterVar

from ..devices.target import TargetSpec, resolve
from ..ir.expressions import nodes_in, substitute_vars, uses
from ..ir.units import ratio_text
from ..module.files import write_file
from ..module.functions import tir_text
from ..runtime.load import disturbance
from ..schedules.lab import lab_of, steps_of, with_blocks
from ..tuning.building import lower
from .lab import LabResult, StepResult

#: Largest side, and smallest side, of a picture of tiles in pixels.
_SIDE, _THIN = 190, 26
#: Smallest side of a tile in pixels.
_LINE = 7
#: Number of tiles that are drawn along an axis, and number of labelled tiles.
_DRAWN, _NUMBERED = 24, 12
_STYLE = """
:root { color-scheme: light dark;
  --ink: #17202a; --soft: #5a6672; --paper: #fff; --raised: #f4f6f8;
  --line: #d9dfe5; --accent: #1d5fb4; --tile: #dbe8f8; --first: #ffd666 }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ed; --soft: #9ba7b3; --paper: #12171c;
  --raised: #1b2229; --line: #303a44; --accent: #7db2f5; --tile: #1f344d; --first: #7a6212 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 0 auto; padding: 1.2rem 1.2rem 4rem }
section { border-top: 1px solid var(--line); margin-top: 1.6rem }
h2 { margin: .8rem 0 .2rem } p { margin: .3rem 0 } .soft, figcaption { color: var(--soft) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem;
  border-bottom: 1px solid var(--line); text-align: right }
td:first-child, th:first-child { text-align: left }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem 1.6rem;
  align-items: flex-start; margin: .8rem 0 }
figure { margin: 0; max-width: 15rem } figcaption { font-size: 12.5px }
svg { display: block } rect { fill: var(--tile); stroke: var(--accent); stroke-width: .6 }
rect.first { fill: var(--first) } text { font-size: 11px; fill: var(--ink); text-anchor: middle }
pre { background: var(--raised); padding: .8rem; overflow: auto; max-height: 30rem;
  font: 12px/1.45 ui-monospace, monospace; border-radius: 6px }
summary { cursor: pointer; color: var(--accent) } li { margin: .3rem 0 }
.wide { overflow-x: auto }
@media (max-width: 44rem) { td, th { padding: .2rem .3rem; font-size: 13px } }
"""


@dataclass(frozen=True)
class Level:
    """A loop over the result, and the tiles that it visits."""

    loop: str
    kind: str
    extent: int
    #: Rows and columns of the tile of the loop around it.
    whole: tuple[int, int]
    #: First row, first column, rows and columns of each drawn tile, in the order of iterations.
    tiles: tuple[tuple[int, int, int, int], ...]


def levels_of(
    function: tirx.PrimFunc,
) -> tuple[tuple[Level, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the loops over rows and columns of a scheduled function's result.

    Rows and columns are the last two axes of the block that runs most often; for blocked channels
    the two before the lanes.  The other results describe loops over other axes, and reductions.
    """
    sch = s_tir.Schedule(function)
    blocks = sch.get_child_blocks(sch.get_sblock("root", func_name="main"))
    loops_of = [[sch.get(loop) for loop in sch.get_loops(block)] for block in blocks]
    counts = [prod(int(loop.extent) for loop in loops) for loops in loops_of]
    chosen = counts.index(max(counts))
    loops, block = loops_of[chosen], sch.get(blocks[chosen])
    realize = next(
        r for r in nodes_in(function.body, s_tir.SBlockRealize) if r.block.same_as(block)
    )
    places = [
        (value, int(axis.dom.extent))
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if axis.iter_type == IterVar.DataPar
    ]
    # Five axes are NCHW{c}c; the parts of a sum may precede them.
    blocked = len(places) >= 5
    axes = places[-3:-1] if blocked else [(tirx.const(0, "int32"), 1), *places][-2:]

    def box(fixed: dict[tirx.Var, tirx.Expr]) -> tuple[int, int, int, int]:
        analyzer, bounds = Analyzer(), []
        for loop in loops:
            if loop.loop_var not in fixed:
                analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
        for value, extent in axes:
            bound = analyzer.const_int_bound(analyzer.simplify(substitute_vars(value, fixed)))
            bounds.append((int(bound.min_value), min(int(bound.max_value), extent - 1)))
        (top, bottom), (left, right) = bounds
        return top, left, max(0, bottom - top + 1), max(0, right - left + 1)

    tiled: list[Level] = []
    other: list[str] = []
    reductions: list[str] = []
    fixed: dict[tirx.Var, tirx.Expr] = {}
    for loop in loops:
        extent = int(loop.extent)
        before = box(fixed)
        drawn = [
            box({**fixed, loop.loop_var: tirx.const(i, "int32")})
            for i in range(min(extent, _DRAWN * _DRAWN))
        ]
        tag = loop.thread_binding
        kind = tirx.stmt.ForKind(loop.kind).name.lower() if tag is None else str(tag.thread_tag)
        if extent > 1 and any(tile != drawn[0] for tile in drawn):
            tiles = tuple(
                (top - before[0], left - before[1], rows, columns)
                for top, left, rows, columns in drawn
                if rows and columns
            )
            tiled.append(Level(loop.loop_var.name, kind, extent, before[2:], tiles))
        elif extent > 1:
            others = other if any(uses(v, loop.loop_var) for v, _ in places) else reductions
            others.append(f"{loop.loop_var.name}: {kind}, {extent:,} iterations")
        fixed[loop.loop_var] = loop.min
    return tuple(tiled), tuple(other), tuple(reductions)


def tiles_svg(level: Level) -> str:
    """Draw the tiles of a loop as SVG, with the first one highlighted."""
    rows, columns = level.whole
    # Cut a long side so that tiles stay visible.
    _, _, high, wide = level.tiles[0]
    rows, columns = min(rows, high * _DRAWN), min(columns, wide * _DRAWN)
    scale = _SIDE / max(rows, columns)
    # Adjacent lines need a minimum distance to be visible.
    width = max(_THIN, columns * scale, _LINE * columns / wide)
    height = max(_THIN, rows * scale, _LINE * rows / high)
    parts = []
    for number, (top, left, high, wide) in enumerate(level.tiles):
        if top >= rows or left >= columns:
            continue
        x, y = left * width / columns, top * height / rows
        w = min(wide, columns - left) * width / columns
        h = min(high, rows - top) * height / rows
        mark = ' class="first"' if number == 0 else ""
        parts.append(
            f'<rect{mark} x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}">'
            f"<title>{number + 1}: {high} × {wide} at {top}, {left}</title></rect>"
        )
        if number < _NUMBERED and w >= 13 and h >= 11:
            parts.append(f'<text x="{x + w / 2:.1f}" y="{y + h / 2 + 4:.1f}">{number + 1}</text>')
    size = f'width="{width + 2:.0f}" height="{height + 2:.0f}"'
    view = f'viewBox="-1 -1 {width + 2:.1f} {height + 2:.1f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>{"".join(parts)}</svg>'


def page_text(result: LabResult) -> str:
    """Return the page of a lab's results; its steps are scheduled and compiled again."""
    target, lab = resolve(result.target, result.device), lab_of(result.lab)
    title = f"{result.lab}, {result.size:,} {lab.counts}{result.of_batch}"
    rows = "".join(
        f'<tr><td><a href="#{escape(s.step)}">{escape(s.step)}</a></td>'
        f"<td>{s.times.median_ms:.3f}</td><td>{s.speedup:.1f}</td><td>{s.gflops:.1f}</td>"
        f"<td>{s.gbps:.1f}</td><td>{ratio_text(s.of_numpy)}</td><td>{s.error:.1e}</td></tr>"
        for s in result.steps
    )
    heads = ["step", "median ms", "speed-up", "GFLOP/s", "GB/s", "of NumPy", "difference"]
    head = "".join(f"<th>{name}</th>" for name in heads)
    # All steps at once: those without blocks stay as they are.
    chosen = steps_of(lab, target, [step.step for step in result.steps])
    chosen = with_blocks(lab, chosen, result.size, result.block, target.device)
    functions = [lab.schedule(step, result.size, target) for step in chosen]
    pairs = zip(result.steps, functions, strict=True)
    sections = "".join(_section(step, function, target) for step, function in pairs)
    said = disturbance(result.others_share)
    disturbed = f"<p><strong>{escape(said)}</strong></p>" if said else ""
    where = f"{result.target} for {result.device} on {result.device_name}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Lab {escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p>{escape(lab.summary)}</p><p class="soft">{escape(where)}, alongside '
        f"{escape(result.numpy)}: {result.numpy_times.median_ms:.3f} ms.</p>"
        f'{disturbed}<div class="wide"><table><tr>{head}</tr>{rows}</table></div>{sections}'
        "</body></html>\n"
    )


def write_page(path: str | os.PathLike[str], result: LabResult) -> None:
    """Write the page of a lab; `ArtifactError` if it cannot be written."""
    write_file(path, page_text(result))


def _section(step: StepResult, function: tirx.PrimFunc, target: TargetSpec) -> str:
    """Return the section of a step: summary, tiles, loops, findings and code."""
    removes = f"<p>Removes: {escape(step.removes)}</p>" if step.removes else ""
    tiled, other, reductions = levels_of(function)
    figures = "".join(map(_figure, tiled))
    inside = "".join(
        f'<p class="soft">{head}: {escape("; ".join(loops))}.</p>'
        for head, loops in (("Along other axes", other), ("Sums up", reductions))
        if loops
    )
    found = "".join(
        f"<li><b>{escape(f.kind)}</b>{f', line {f.line}' if f.line else ''}: {escape(f.sentence)}"
        f"{' <i>Not in the next step.</i>' if f in step.removed else ''}</li>"
        for f in step.found
    )
    findings = f"<ul>{found}</ul>" if found else '<p class="soft">Nothing is found.</p>'
    return (
        f'<section id="{escape(step.step)}"><h2>{escape(step.step)}</h2>'
        f"<p>{escape(step.summary)}</p>{removes}"
        f'<div class="tiles">{figures}</div>{inside}<h3>Findings</h3>{findings}'
        f"<details open><summary>Loop nest</summary><pre>{_numbered(tir_text(function))}</pre>"
        "</details><details><summary>Generated code</summary>"
        f"<pre>{escape(code_of(function, target))}</pre></details></section>"
    )


def _figure(level: Level) -> str:
    _, _, high, wide = level.tiles[0]
    rows, columns = level.whole
    text = (
        f"{level.loop}, {level.kind}: {level.extent:,} tiles of {high:,} × {wide:,} "
        f"in {rows:,} × {columns:,}"
    )
    cut = rows > high * _DRAWN or columns > wide * _DRAWN
    more = "; the first ones are drawn" if cut or level.extent > len(level.tiles) else ""
    return f"<figure>{tiles_svg(level)}<figcaption>{escape(text + more)}</figcaption></figure>"


def _numbered(text: str) -> str:
    """Number the lines, because findings refer to them."""
    return "\n".join(
        f'<span class="soft">{n:4}</span>  {escape(line)}'
        for n, line in enumerate(text.splitlines(), 1)
    )


def code_of(function: tirx.PrimFunc, target: TargetSpec) -> str:
    """Return the kernels' source, or assembly on ``llvm``."""
    with target.tvm_target:
        library = lower(function, target)
    if not target.is_gpu_kernel:
        return str(library.inspect_source("asm"))
    modules: Sequence[object] = library.imports
    return "\n".join(str(module.inspect_source()) for module in modules)  # type: ignore[attr-defined]
