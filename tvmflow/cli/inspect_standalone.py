"""``tvmflow inspect`` of a standalone library: what its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .formats import (
    bytes_text,
    facts,
    ms_text,
    option_text,
    print_section,
    table,
    tensors_table,
)
from .session import note, out_console, print_json

if TYPE_CHECKING:
    from ..module.standalone.read import EncodedPlan


@dataclass(frozen=True)
class Asked:
    """What is shown besides the summary."""

    kernels: bool
    weights: bool
    memory: bool
    check: bool
    as_json: bool


def inspect_standalone(path: Path, plan: EncodedPlan, asked: Asked) -> None:
    """Print what a library says of itself; nothing of it is run or loaded."""
    from ..module.standalone.read import describe, find_weights

    weights = find_weights(path, plan)
    if asked.check:
        weights.check()
    about = {"path": str(path), **describe(path, plan, weights), "checked": asked.check}
    if asked.as_json:
        print_json(about)
        return
    _print(about, asked)
    if asked.check:
        note(("Every byte of plan and weights is what was written.", "green"))


def _print(about: dict[str, Any], asked: Asked) -> None:
    from ..module.artifact import tensor_infos

    console = out_console()
    print_section(console, about["path"], facts(_facts(about)))
    for title in ("inputs", "outputs"):
        print_section(console, title.title(), tensors_table(tensor_infos(about[title])))
    rows: list[tuple[str, ...]]
    if asked.kernels:
        rows = [
            (k["name"], k["function"], _sizes(k["global"]), _sizes(k["local"]), str(k["program"]))
            for k in about["launches"]
        ]
        columns = ["kernel", "primary function", "work-items", "group", ">program"]
        print_section(console, "Launches", table(columns, rows))
    if asked.weights:
        rows = [(w["name"], w["storage"], bytes_text(w["bytes"])) for w in about["weights"]]
        print_section(console, "Weights", table(["name", "storage", ">size"], rows))
    if asked.memory:
        rows = [
            (str(a["number"]), a["role"], a["storage"], bytes_text(a["bytes"]))
            for a in about["allocations"]
        ]
        columns = [">number", "role", "storage", ">size"]
        print_section(console, "Memory objects", table(columns, rows))


def _facts(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    sizes = about["sizes"]
    yield "network", about["name"]
    yield "form", "standalone library"
    yield "target", f"{about['target']} ({about['device']})"
    yield "host", about["host"]
    yield "size", f"{bytes_text(sizes['file'])}, plan {bytes_text(sizes['plan'])}"
    where = f"beside it in {about['weights_file']}" if about["weights_file"] else "in the file"
    yield "weights", f"{len(about['weights'])} {where}, {bytes_text(sizes['weights'])}"
    programs = f"{about['programs']} program" + ("s" if about["programs"] != 1 else "")
    source = bytes_text(sizes["source"])
    yield "kernels", f"{len(about['launches'])} launches, {programs} of {source} of source"
    if precompiled := about["precompiled"]:
        yield "precompiled", _precompiled(precompiled)
    yield "storage", about["storage_summary"]
    yield "memory", f"{bytes_text(about['memory_bytes'])} on the device, besides the weights"
    if about["extensions"]:
        yield "needs", ", ".join(about["extensions"])
    yield "self-test", about["self_test"]
    versions = about["tvmflow"], about["tvm"], about["plan_version"]
    yield "versions", "tvmflow {}, TVM {}, plan {}".format(*versions)
    yield "options", ", ".join(option_text(k, v) for k, v in about["options"].items()) or "none"
    yield "compiled in", ms_text(sum(about["stage_ms"].values()))


def _precompiled(about: dict[str, Any]) -> str:
    count = len(about["devices"])
    parts = [f"for {count} device{'s' * (count != 1)} in {about['file']}"]
    parts += [f"{d['device']} ({d['driver']}): {bytes_text(d['bytes'])}" for d in about["devices"]]
    if about["of_other_sources"]:
        parts.append(f"{about['of_other_sources']} programs of other sources")
    if about["damaged_bytes"]:
        parts.append(f"{bytes_text(about['damaged_bytes'])} damaged")
    return "; ".join(parts)


def _sizes(extents: list[int]) -> str:
    return "×".join(map(str, extents))
