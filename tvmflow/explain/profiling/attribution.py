"""Which primary function, which call of it, and which ONNX nodes a launch belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .counting import Count


@dataclass(frozen=True)
class Place:
    """Where a launch belongs."""

    function: str
    #: Which of the function's kernels it is; ``None`` where all are measured as one.
    number: int | None
    #: Names of ONNX nodes.
    nodes: tuple[str, ...]


def places(names: Sequence[str], metadata: Mapping[str, Any]) -> list[Place]:
    """Where each launch of a run belongs.

    Parameters
    ----------
    names
        Kernels, or primary functions on targets where these are measured, in launch order.
    metadata
        Of the module.
    """
    kernels = {k["name"]: k["function"] for k in metadata.get("kernels", ())}
    functions = [kernels.get(name, name) for name in names]
    calls = Counter(metadata.get("memory", {}).get("steps", ()))
    written = _written(metadata)
    launches = Counter(functions)
    seen: Counter[str] = Counter()
    found = []
    for name, function in zip(names, functions, strict=True):
        # A function launches as many kernels, and writes as many tensors, in each of its calls.
        call = calls[function] * seen[function] // launches[function]
        own = written.get(function, [])
        tensors = len(own) // calls[function] if calls[function] else 0
        nodes = [n for names in own[call * tensors : (call + 1) * tensors] for n in names]
        seen[function] += 1
        number = _number(name) if name in kernels else None
        found.append(Place(function, number, tuple(dict.fromkeys(nodes))))
    return found


def count_at(place: Place, name: str, counts: Sequence[Count] | None) -> Count | None:
    """What of a function's counts is a launch's."""
    if counts is None:
        return None
    if place.number is not None and name != place.function:
        return counts[place.number] if place.number < len(counts) else None
    whole = Count()
    for count in counts:
        whole.flops.update(count.flops)
        whole.bytes_read += count.bytes_read
        whole.bytes_written += count.bytes_written
        whole.reads_texture |= count.reads_texture
    return whole


def _number(kernel: str) -> int:
    """``f_kernel`` is a function's first kernel, ``f_kernel_1`` its second."""
    found = re.search(r"_kernel(?:_(\d+))?$", kernel)
    return int(found[1] or 0) if found else 0


def _written(metadata: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Nodes of the tensors that each function writes, in the order of its calls."""
    nodes = metadata.get("nodes", {})
    found: dict[str, list[list[str]]] = {}
    for tensor in metadata.get("memory", {}).get("tensors", ()):
        found.setdefault(tensor["producer"], []).append(nodes.get(tensor["name"], []))
    return found
