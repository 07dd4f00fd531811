"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..ir.units import bytes_text as bytes_text
from ..ir.units import counted as counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..ir.tensors import TensorInfo


def ms_text(ms: float) -> str:
    """Return a time in the unit that suits it: ``0.4 µs``, ``820 µs``, ``12.3 ms``, ``4.56 s``."""
    if ms < 1:
        return f"{ms * 1e3:.0f} µs" if ms >= 0.01 else f"{ms * 1e3:.1f} µs"
    if ms < 1000:
        return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"
    return f"{ms / 1e3:.2f} s"


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape: ``1×3×224×224``, or ``scalar``."""
    return "×".join(map(str, shape)) or "scalar"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table; columns whose title begins with ``>`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        right = column.startswith(">")
        result.add_column(column.lstrip(">"), justify="right" if right else "left")
    for row in rows:
        # As text, not markup: names of tensors may contain brackets.
        result.add_row(*(Text(cell) for cell in row))
    return result


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values, without a head."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(style="dim")
    result.add_column()
    for name, value in rows:
        result.add_row(name, Text(value))
    return result


def print_section(console: Console, title: str, content: Table) -> None:
    """Print a table below its title, with an empty line behind it."""
    from rich.text import Text

    console.print(Text(title, style="bold"))
    console.print(content)
    console.print()


def tensors_table(infos: Sequence[TensorInfo]) -> Table:
    """Inputs or outputs; with their layouts where the ONNX model's is not theirs."""
    columns = ["name", "dtype", "shape"]
    rows: list[tuple[str, ...]] = [(i.name, i.dtype, shape_text(i.shape)) for i in infos]
    if any(info.layout for info in infos):
        columns += ["layout", "logical shape", "image", "scope"]
        more = [
            (
                info.layout or "as in ONNX",
                shape_text(info.logical_shape or info.shape),
                (info.image or "").replace("x", "×"),
                info.scope or "",
            )
            for info in infos
        ]
        rows = [(*row, *extra) for row, extra in zip(rows, more, strict=True)]
    return table(columns, rows)


def option_text(name: str, value: Any) -> str:
    """Return an option of a compilation: ``dtype=fp16``."""
    if isinstance(value, list):
        return f"{name}={','.join(map(str, value))}"
    if not isinstance(value, dict):
        return f"{name}={value}"
    nouns = {"algorithms": "convolutions", "knobs": "functions", "shapes": "inputs"}
    return f"{name} for {len(value)} {nouns.get(name, 'tensors')}"
