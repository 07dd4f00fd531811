"""HTML of modules and tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ..ir.units import bytes_text
from .memory_svg import memory_svg

if TYPE_CHECKING:
    from ..ir.tensors import TensorInfo
    from ..runtime.json_types import JsonMapping


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table of texts and numbers; ``None`` is an empty cell."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = (
        "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row)
        for row in rows
    )
    lines = (f"<tr>{row}</tr>" for row in (head, *body))
    return f"<table>{''.join(lines)}</table>"


def module_html(
    about: JsonMapping, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], shapes: int
) -> str:
    """Return a module's inputs, outputs, target and, if it has one, the picture of its memory plan.

    ``about`` is its metadata, ``shapes`` the number of its shapes.
    """
    tensors = [
        *(_row("input", info) for info in inputs),
        *(_row("output", info) for info in outputs),
    ]
    plan = about.get("memory")
    facts = [f"{about['target']} ({about['device']}) on {about['host']}"]
    if plan is not None:
        facts.append(f"{bytes_text(plan['peak_bytes'])} of intermediate memory")
    if shapes > 1:
        facts.append(f"{shapes} shapes, of which this is the first")
    parts = [
        f"<p><b>{escape(str(about['name']))}</b>: {escape(', '.join(facts))}</p>",
        html_table(("", "name", "dtype", "shape"), tensors),
    ]
    if plan is not None and plan["blocks"]:
        parts.append(memory_svg(plan, str(about["name"])))
    return "".join(parts)


def _row(kind: str, info: TensorInfo) -> tuple[str, str, str, str]:
    return kind, info.name, info.dtype, "×".join(map(str, info.shape)) or "scalar"
