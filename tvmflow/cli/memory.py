"""The memory plan of a module: as tables, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError
from .formats import bytes_text, facts, print_section, shape_text, table

if TYPE_CHECKING:
    from rich.console import Console


def memory_plan(path: Path, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan in a module's metadata.

    Raises
    ------
    ArtifactError
        If the module is older than plans with steps.
    """
    plan = metadata.get("memory")
    if not isinstance(plan, Mapping) or "steps" not in plan:
        raise ArtifactError(
            f"Showing the memory plan of {path} failed: the module holds none.",
            remedy="Compile the model again.",
        )
    return plan


def print_memory(console: Console, plan: Mapping[str, Any]) -> None:
    """Print sizes, blocks and tensors."""
    peak, bound = plan["peak_bytes"], plan["lower_bound_bytes"]
    sizes = [
        ("peak", f"{bytes_text(peak)} in {len(plan['blocks'])} blocks"),
        ("lower bound", f"{bytes_text(bound)}, the most that lives at one time"),
        ("ratio", f"{peak / bound:.3f}" if bound else "-"),
        ("steps", f"{len(plan['steps'])} calls"),
    ]
    print_section(console, "Memory of intermediate tensors", facts(sizes))
    tenants = [[t["name"] for t in plan["tensors"] if t["block"] == n] for n in _numbers(plan)]
    blocks = [
        (
            str(number),
            "image" if block["image"] else "buffer",
            _times(block["image"]),
            bytes_text(block["bytes"]),
            str(len(tenants[number])),
        )
        for number, block in enumerate(plan["blocks"])
    ]
    columns = [">block", "kind", "extent", ">size", ">tensors"]
    print_section(console, "Blocks", table(columns, blocks))
    tensors = [
        (
            t["name"],
            t["storage"],
            t["stored_as"],
            t["layout"],
            shape_text(t["shape"]),
            _times(t["image"]),
            bytes_text(t["bytes"]),
            "result" if t["block"] is None else str(t["block"]),
            f"{t['first']}–{t['last']}",
            t["producer"] or "-",
            ", ".join(t["readers"]) or "-",
        )
        for t in plan["tensors"]
    ]
    columns = [
        "tensor", "storage", "dtype", "layout", "shape", "image", ">size", ">block", ">steps",
        "written by", "read by",
    ]  # fmt: skip
    print_section(console, "Tensors", table(columns, tensors))


def print_placements(console: Console, placements: list[Mapping[str, Any]]) -> None:
    """Print where each tensor is kept, and why."""
    rows = [
        (
            p["tensor"],
            shape_text(p["shape"]),
            p["stored_as"],
            p["storage"],
            _times(p["image"]),
            p["scope"] or "",
            p["reason"],
        )
        for p in placements
    ]
    columns = ["tensor", "shape", "dtype", "storage", "image", "scope", "why"]
    print_section(console, "Placements", table(columns, rows))


def write_picture(plan: Mapping[str, Any], name: str, path: Path) -> None:
    """Write the plan as SVG."""
    from ..module.files import write_file
    from ..module.memory_svg import memory_svg

    write_file(path, memory_svg(plan, name))


def _numbers(plan: Mapping[str, Any]) -> range:
    return range(len(plan["blocks"]))


def _times(extent: str | None) -> str:
    return (extent or "").replace("x", "×")
