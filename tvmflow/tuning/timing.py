"""Timing of a kernel: alone, or in turn with the best one so far.

Costs that are minutes apart cannot be compared on a machine with other work or a phone that
throttles.  Two kernels timed in turn meet the same disturbances: only the ratio of each pair
counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Largest time relative to the best kernel's with which a kernel replaces it.
WORTH = 0.98
#: Fewest pairs for a decision, unless the candidate loses all of fewer pairs.
PAIRS = 9
#: Most pairs, while a candidate seems faster but is not significantly so.
MOST_PAIRS = 41
#: Lost pairs, without a won one, after which the comparison ends.
LOST = 3


@dataclass(frozen=True)
class StopRule:
    """Conditions that end a measurement."""

    #: A kernel alone is timed until half of the costs are within this share of their median …
    spread: float = 0.02
    #: … or for this many rounds.
    rounds: int = 5
    #: Costs in a round.
    repeats: int = 5
    #: A candidate this many times slower than the best one is not timed further.
    hopeless: float = 1.5
    #: Seconds after which only the necessary costs are taken.
    limit_s: float = 1.0


def time_alone(run: Callable[[int], Sequence[float]], rule: StopRule) -> tuple[float, ...]:
    """Return the costs of a kernel without a rival; ``run`` returns so many of them."""
    deadline = time.monotonic() + rule.limit_s
    costs: list[float] = []
    for _ in range(rule.rounds):
        costs += run(rule.repeats)
        low, middle, high = statistics.quantiles(costs, n=4)
        if high - low <= 2 * rule.spread * middle or time.monotonic() > deadline:
            break
    return tuple(costs)


def time_in_turn(
    run: Callable[[int], Sequence[float]],
    rival: Callable[[int], Sequence[float]],
    rule: StopRule,
) -> tuple[list[float], list[float]]:
    """Return the costs of a candidate and of its rival, pair by pair."""
    deadline = time.monotonic() + rule.limit_s
    costs: list[float] = []
    rivals: list[float] = []
    while len(costs) < MOST_PAIRS:
        # The second kernel may profit from the first, so the order alternates.
        for which in (0, 1) if len(costs) % 2 else (1, 0):
            (costs, rivals)[which].extend((run, rival)[which](1))
        ratios = [ours / theirs for ours, theirs in zip(costs, rivals, strict=True)]
        count, best = len(ratios), min(ratios)
        if (count > 1 and best > rule.hopeless) or (count >= LOST and best >= 1):
            break
        is_decided = is_faster(ratios) or statistics.median(ratios) >= WORTH
        if count >= PAIRS and (is_decided or time.monotonic() > deadline):
            break
    return costs, rivals


def is_faster(ratios: Sequence[float]) -> bool:
    """Return whether a candidate is significantly faster than its rival, enough to replace it.

    Each of two equal kernels wins half of the pairs.  Winning 1.5 √n more than that, three standard
    deviations, happens by chance once in 700 times; at least nine pairs are needed.
    """
    wins = sum(ratio < 1 for ratio in ratios)
    surely = wins >= len(ratios) / 2 + 1.5 * math.sqrt(len(ratios))
    return surely and statistics.median(ratios) < WORTH


def rated(ratios: Sequence[float], rival_cost: float) -> tuple[float, ...]:
    """Return the costs of a candidate relative to the cost of its rival.

    Their median is the rival's cost times the median ratio.  If that is less, but the candidate is
    not significantly faster, it is the rival's cost, so that a reader of the journal who takes the
    least cost chooses the same candidate as the tuner.
    """
    middle = statistics.median(ratios)
    scale = rival_cost
    if middle < 1 and not is_faster(ratios):
        # The factor keeps rounding from making it less.
        scale *= (1 + 1e-9) / middle
    return tuple(ratio * scale for ratio in ratios)
