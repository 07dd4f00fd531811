"""Timing a kernel until it is enough: alone, or in turn with the best one so far.

Costs that are minutes apart cannot be compared on a machine with other work or a phone that
throttles.  Two kernels in turn meet the same disturbances: of each pair only the ratio counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A kernel that takes more than this part of the best one's time does not replace it.
WORTH = 0.98
#: So many pairs decide at least; fewer where the candidate loses all of them.
PAIRS = 9
#: So many at most, while a candidate seems faster and is not surely so.
MOST_PAIRS = 41
#: So many lost pairs, and no won one, end the comparison.
LOST = 3


@dataclass(frozen=True)
class StopRule:
    """When a measurement has been repeated often enough."""

    #: A kernel alone is timed until half of the costs are within this part of their median …
    spread: float = 0.02
    #: … or for so many rounds.
    rounds: int = 5
    #: Costs of a round.
    repeats: int = 5
    #: A candidate this many times slower than the best one is only looked at.
    hopeless: float = 1.5
    #: After so long neither takes more costs than it must.
    limit_s: float = 1.0


def time_alone(run: Callable[[], float], rule: StopRule) -> tuple[float, ...]:
    """Costs of a kernel that nothing is known of yet."""
    deadline = time.monotonic() + rule.limit_s
    costs: list[float] = []
    for _ in range(rule.rounds):
        costs += [run() for _ in range(rule.repeats)]
        low, middle, high = statistics.quantiles(costs, n=4)
        if high - low <= 2 * rule.spread * middle or time.monotonic() > deadline:
            break
    return tuple(costs)


def time_in_turn(
    run: Callable[[], float], rival: Callable[[], float], rule: StopRule
) -> tuple[list[float], list[float]]:
    """Costs of a candidate and of its rival, pair by pair."""
    deadline = time.monotonic() + rule.limit_s
    costs: list[float] = []
    rivals: list[float] = []
    while len(costs) < MOST_PAIRS:
        # Whoever is second may profit from the first: they take turns in that, too.
        for which in (0, 1) if len(costs) % 2 else (1, 0):
            (costs, rivals)[which].append((run, rival)[which]())
        ratios = [ours / theirs for ours, theirs in zip(costs, rivals, strict=True)]
        count, best = len(ratios), min(ratios)
        if (count > 1 and best > rule.hopeless) or (count >= LOST and best >= 1):
            break
        is_decided = is_faster(ratios) or statistics.median(ratios) >= WORTH
        if count >= PAIRS and (is_decided or time.monotonic() > deadline):
            break
    return costs, rivals


def is_faster(ratios: Sequence[float]) -> bool:
    """Tell whether a candidate is surely faster than its rival, by enough to replace it.

    Of two equal kernels each wins half of the pairs.  One that wins 1.5 √n more than that, three
    standard deviations, does so by chance once in 700 times; at least nine pairs are needed.
    """
    wins = sum(ratio < 1 for ratio in ratios)
    surely = wins >= len(ratios) / 2 + 1.5 * math.sqrt(len(ratios))
    return surely and statistics.median(ratios) < WORTH


def rated(ratios: Sequence[float], rival_cost: float) -> tuple[float, ...]:
    """Costs of a candidate by those of its rival.

    Their median is the rival's cost times the median ratio.  Where that is less, and the
    candidate not surely faster, it is the rival's cost: whoever takes the least cost, a journal's
    reader as well, takes the same that the tuner does.
    """
    middle = statistics.median(ratios)
    scale = rival_cost
    if middle < 1 and not is_faster(ratios):
        # Rounding must not make it less.
        scale *= (1 + 1e-9) / middle
    return tuple(ratio * scale for ratio in ratios)
