"""What the analyses find in a module: in its graph, and in its kernels, the slowest first."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from .record import Finding, Kernel

if TYPE_CHECKING:
    from ...devices.target import TargetSpec

#: Functions are analysed until this much time is spent.  It is enough for networks of hundreds of
#: layers, of which many are one function.
BUDGET_S = 30.0


def found_in(
    functions: Mapping[str, Any],
    kernels: Sequence[Kernel],
    target: TargetSpec,
    notes: list[str],
    *,
    budget_s: float = BUDGET_S,
) -> tuple[Finding, ...]:
    """Findings of the functions that were launched, each of them analysed once.

    Parameters
    ----------
    functions
        Scheduled primary functions by name.
    kernels
        With their times.
    notes
        Gets a sentence for whatever was not analysed.
    """
    from ..analysis import OutOfTimeError, findings

    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.function in functions:
            times[kernel.function] += kernel.median_us
    found: list[Finding] = []
    total_us = left_us = sum(times.values())
    until = time.monotonic() + budget_s
    for function, us in sorted(times.items(), key=lambda item: -item[1]):
        try:
            found += findings(functions[function], target, until=until)
        except OutOfTimeError as error:
            found += error.found
            left = left_us / total_us if total_us else 1.0
            notes.append(
                f"After {budget_s:.0f} s of analysis, functions that take {left:.1%} of the "
                f"kernels' time have no findings, or not all: {function} is the first."
            )
            break
        except Exception as error:  # noqa: BLE001 (what was measured is not lost for it)
            notes.append(f"{function} could not be analysed: {error}")
        left_us -= us
    return tuple(found)


def fusion_in(
    left: Iterable[Mapping[str, Any]], kernels: Sequence[Kernel], functions: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """Fusion that is left in a module's graph, as findings of the kernels that read the tensors.

    Parameters
    ----------
    left
        As from :func:`~.stored.fusion_left`.
    kernels
        With their counts.
    functions
        Scheduled primary functions by name.
    """
    from ...graph.missed_fusion import Fusion
    from ...module.functions import tir_text
    from ..analysis.fusion_findings import fusion_finding
    from ..analysis.lines import line_of

    found = []
    names = [field.name for field in fields(Fusion)]
    for pair in (Fusion(**{name: entry[name] for name in names}) for entry in left):
        calls = [kernel for kernel in kernels if kernel.function == pair.consumer]
        if not calls:
            continue
        # A share of the time of all launches, of which one reads this tensor.
        launches = [kernel for kernel in calls if kernel.name == calls[0].name]
        moved = sum((k.bytes_read or 0) + (k.bytes_written or 0) for k in launches)
        share = min(pair.saved_bytes / moved, 1 / len(launches)) if moved else pair.share
        text = tir_text(functions[pair.consumer]) if pair.consumer in functions else ""
        line = line_of(text, pair.parameter, is_store=False) if pair.parameter else 0
        found.append(replace(fusion_finding(pair), kernel=calls[0].name, share=share, line=line))
    return tuple(found)
