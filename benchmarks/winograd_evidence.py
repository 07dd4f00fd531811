"""Costs of Winograd's algorithm on Adreno, fitted to convolutions that were tuned both ways.

AutoTVM tuned them directly and with Winograd's algorithm; the side of its tiles is 4 if 8 divides
the height, else 2.  The costs of `tvmflow.graph.layout.algorithms` are fitted by random search, so
that the time of the chosen algorithm is least, as a geometric mean relative to the faster one's.
They do not determine the cost of a weight: with the others fitted to it, 1 to 20 choose alike
(1.056 to 1.058).  It is what reading a texel from memory costs by bandwidth (`WEIGHT`), which keeps
maps of 7×7 with 512 channels direct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import report
from phone_data import Array, Task, algorithms

from tvmflow.devices.presets import PRESETS, WinogradCost
from tvmflow.devices.target import Device
from tvmflow.graph.layout.algorithms import WORTH, Convolution, cost

ADRENO = PRESETS["adreno"]
#: Cost of reading a transformed weight: 16 bytes at 50 GB/s, in multiply-adds at 25 a nanosecond.
WEIGHT = 8.0
#: Random costs that are tried, and how many of the best are averaged.
DRAWN, KEPT = 3000, 40


@dataclass(frozen=True)
class Pair:
    """A convolution with the times of both algorithms, in microseconds."""

    task: Task
    direct: float
    winograd: float

    @property
    def algorithm(self) -> str:
        """Return the name of the form of Winograd's algorithm that AutoTVM tuned."""
        return "winograd4" if self.task.data[1] % 8 == 0 else "winograd2"

    @property
    def layer(self) -> Convolution:
        """Return the facts that the choice depends on."""
        outputs, inputs, *window = self.task.kernel
        return Convolution(
            *(1, inputs, outputs, self.task.height, self.task.width),
            kernel=tuple(window), strides=(1, 1), dilation=(1, 1), groups=1,
        )  # fmt: skip

    def chooses_winograd(self, device: Device) -> bool:
        """Return whether the device's costs choose Winograd's algorithm."""
        least = WORTH * cost(self.layer, "direct", device)
        return cost(self.layer, self.algorithm, device) <= least

    def regret(self, device: Device) -> float:
        """Return the time of the chosen algorithm over the faster one's."""
        chosen = self.winograd if self.chooses_winograd(device) else self.direct
        return chosen / min(self.winograd, self.direct)


def pairs(data: Path) -> list[Pair]:
    """Return the convolutions that were tuned with both algorithms."""
    return [
        Pair(both["conv2d"][0], both["conv2d"][1], both["winograd"][1]) for both in algorithms(data)
    ]


def judged(some: Sequence[Pair], device: Device) -> dict[str, Any]:
    """Return how well a device's costs choose."""
    regrets = [pair.regret(device) for pair in some]
    return {
        "convolutions": len(some),
        "right": round(sum(regret == 1 for regret in regrets) / len(some), 3),
        "time_of_best": round(float(np.exp(np.mean(np.log(regrets)))), 4),
    }


def _regrets(some: Sequence[Pair], drawn: Array) -> Array:
    """Return the mean logarithm of the regret for each drawn cost.

    The cost is linear in its four parts, each of which is evaluated once for a convolution.
    """
    total = np.zeros(len(drawn))
    nothing = {"product": 0.0, "tile": 0.0, "weight": 0.0, "launch": 0.0}
    for pair in some:
        each = np.array([
            cost(
                pair.layer,
                pair.algorithm,
                replace(ADRENO, winograd=WinogradCost(**nothing | {n: 1})),
            )
            for n in nothing
        ])  # fmt: skip
        chosen = drawn @ each <= WORTH * cost(pair.layer, "direct", ADRENO)
        best = min(pair.direct, pair.winograd)
        total += np.log(np.where(chosen, pair.winograd, pair.direct) / best)
    return total / len(some)


def fitted(some: Sequence[Pair], seed: int = 0) -> WinogradCost:
    """Return the costs with the least regret."""
    generator = np.random.default_rng(seed)
    low, high = np.log([[0.4, 10, WEIGHT, 1e4], [2, 400, WEIGHT, 1e6]])
    drawn = np.exp(generator.uniform(low, high, (DRAWN, 4)))
    order = np.argsort(_regrets(some, drawn), kind="stable")[:KEPT]
    mean = np.exp(np.log(drawn[order]).mean(0))
    return WinogradCost(*(float(f"{value:.2g}") for value in mean))


def judged_choices(data: Path) -> dict[str, Any]:
    """Judge the preset's costs, and costs fitted without each GPU and each network."""
    every = pairs(data)
    never = replace(ADRENO, winograd=WinogradCost(1e9, 1e9, 1e9))
    content: dict[str, Any] = {
        "preset": {"costs": asdict(ADRENO.winograd), **judged(every, ADRENO)},
        "always direct": judged(every, never),
        "fitted to all": asdict(fitted(every)),
    }
    kinds = {"GPU": lambda pair: pair.task.gpu.name, "network": lambda pair: pair.task.network}
    rows = [["preset, all", *judged(every, ADRENO).values()]]
    rows.append(["always direct, all", *judged(every, never).values()])
    for kind, of in kinds.items():
        regrets: list[float] = []
        folds = {}
        for name in sorted({of(pair) for pair in every}):
            left = [pair for pair in every if of(pair) == name]
            costs = fitted([pair for pair in every if of(pair) != name])
            device = replace(ADRENO, winograd=costs)
            folds[f"without {name}"] = {"costs": asdict(costs), **judged(left, device)}
            regrets += [pair.regret(device) for pair in left]
            rows.append([f"without {name}", *judged(left, device).values()])
        content[f"left out by {kind}"] = {
            "right": round(sum(regret == 1 for regret in regrets) / len(regrets), 3),
            "time_of_best": round(float(np.exp(np.mean(np.log(regrets)))), 4),
            "folds": folds,
        }
        rows.append([f"all, left out by {kind}", len(regrets),
                     *list(content[f"left out by {kind}"].values())[:2]])  # fmt: skip
    heads = ["costs", "convolutions", "right", "time / the faster's"]
    report("Winograd or direct", heads, rows)
    return content
