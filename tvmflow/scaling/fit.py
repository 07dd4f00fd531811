"""A model of throughput, fitted to what was measured.

With ``n`` threads, devices or samples of a batch, throughput is that of Gunther's universal
scalability law::

    X(n) = rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))

Without coherency it is Amdahl's law, whose serial part is the contention; without both it is
linear.  For batches, Amdahl's law says that a call takes a constant and a time for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LINEAR, AMDAHL, USL = "linear", "Amdahl's law", "universal scalability law"
#: Measured points that the universal scalability law's three parameters need, and one to check.
_USL_POINTS = 4


@dataclass(frozen=True)
class Fit:
    """The model's parameters.

    Parameters
    ----------
    law
        ``LINEAR``, ``AMDAHL`` or ``USL``.
    rate
        Throughput with one.
    contention, coherency
        Part of the work that is done one after the other, and that each pair costs.
    error
        Root of the mean square of the model's relative differences from what was measured;
        ``None`` where there are no more points than parameters, which the model meets exactly.
    points
        To how many it was fitted.
    """

    law: str
    rate: float
    contention: float
    coherency: float
    error: float | None
    points: int

    def at(self, n: int) -> float:
        """Return the throughput with ``n``."""
        slowed = 1 + self.contention * (n - 1) + self.coherency * n * (n - 1)
        return self.rate * n / slowed

    @property
    def limit(self) -> float | None:
        """The most that any number reaches; ``None`` without one."""
        if self.coherency > 0:
            peak = max((1 - self.contention) / self.coherency, 1.0) ** 0.5
            return max(self.at(int(peak)), self.at(int(peak) + 1))
        if self.contention > 0:
            # More do not help where all of the work is done one after the other.
            return max(self.rate / self.contention, self.rate)
        return None


def fit(measured: Mapping[int, float]) -> Fit:
    """Fit the law that so many points allow: linear to one, Amdahl's to two or three.

    Parameters
    ----------
    measured
        Throughput by number, at least one.
    """
    n = np.array(sorted(measured), float)
    throughput = np.array([measured[int(number)] for number in n])
    # Time of `n` units of work is linear in the parameters, when they are divided by the rate.
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1) * (throughput / n)[:, None]
    law = USL if len(n) >= _USL_POINTS else AMDAHL if len(n) > 1 else LINEAR
    parameters = (LINEAR, AMDAHL, USL).index(law) + 1
    inverse, contention, coherency = _not_negative(columns[:, :parameters])
    result = Fit(law, 1 / inverse, contention / inverse, coherency / inverse, None, len(n))
    if len(n) <= parameters:
        return result
    predicted = np.array([result.at(int(number)) for number in n])
    error = float(np.sqrt(np.mean((predicted / throughput - 1) ** 2)))
    return Fit(law, result.rate, result.contention, result.coherency, error, len(n))


def _not_negative(columns: np.ndarray) -> tuple[float, float, float]:
    """Least squares of ``columns @ x = 1``; what would be negative (noise) is nothing."""
    best, least = (1.0, 0.0, 0.0), np.inf
    others = range(1, columns.shape[1])
    for count in range(columns.shape[1]):
        for chosen in combinations(others, count):
            kept = [0, *chosen]
            solution = np.linalg.lstsq(columns[:, kept], np.ones(len(columns)), rcond=None)[0]
            residual = float(np.sum((columns[:, kept] @ solution - 1) ** 2))
            if solution[0] > 0 and (solution >= 0).all() and residual < least:
                values = dict(zip(kept, solution.tolist(), strict=True))
                best = (values[0], values.get(1, 0.0), values.get(2, 0.0))
                least = residual
    return best
