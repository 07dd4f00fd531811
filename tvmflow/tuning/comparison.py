"""The whole network before and after tuning, measured in turn."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..module.module import Module, load
from ..module.samples import random_inputs
from .timing import is_faster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .progress import Knobs
    from .session import Network

#: Runs of each module.
COMPARED_RUNS = 30


@dataclass(frozen=True)
class Comparison:
    """The whole network with the heuristics' knobs and with those found, in turn."""

    before_ms: float
    after_ms: float
    #: Whether it is surely slower with the knobs found, whatever disturbed single runs.
    is_slower: bool = False


def compare(
    before: Network, after: Network, knobs: Mapping[str, Knobs], device_index: int = 0
) -> Comparison:
    """Measure a network as it was, and as it is with knobs, in turn on the same device."""
    with ExitStack() as stack:
        old, new = (
            _running(stack, network, chosen, device_index)
            for network, chosen in ((before, {}), (after, knobs))
        )
        inputs = random_inputs(old, 0)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(COMPARED_RUNS):
            for module, found in zip((old, new), times, strict=True):
                started = time.perf_counter()
                module(inputs)
                found.append((time.perf_counter() - started) * 1e3)
    # The first calls build kernels.
    earlier, later = (found[3:] for found in times)
    is_slower = is_faster([a / b for a, b in zip(earlier, later, strict=True)])
    return Comparison(statistics.median(earlier), statistics.median(later), is_slower)


def _running(
    stack: ExitStack, network: Network, knobs: Mapping[str, Knobs], device_index: int
) -> Module:
    compiled = stack.enter_context(network.compile(knobs))
    return stack.enter_context(load(compiled.path, device=device_index))
