"""A model of throughput, fitted to what was measured.

With ``n`` threads, devices or samples of a batch, throughput is that of Gunther's universal
scalability law::

    X(n) = rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))

Without coherency it is Amdahl's law, whose serial part is the contention; without both it is
linear.  For batches, Amdahl's law says that a call takes a constant and a time for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

LINEAR, AMDAHL, USL = "linear", "Amdahl's law", "universal scalability law"
#: Measured points that the universal scalability law's three parameters need, and one to check.
_USL_POINTS = 4
#: Relative differences below this are those of arithmetic.
_EXACT = 1e-9


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
        ``None`` where it meets the points exactly, because they are no more than parameters.
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
            return self.rate / self.contention
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
    inverse, contention, coherency = _least_squares(columns[:, :parameters])
    result = Fit(law, 1 / inverse, contention / inverse, coherency / inverse, None, len(n))
    predicted = np.array([result.at(int(number)) for number in n])
    error = float(np.sqrt(np.mean((predicted / throughput - 1) ** 2)))
    if len(n) <= parameters and error < _EXACT:
        return result
    return replace(result, error=error)


def _least_squares(columns: np.ndarray) -> tuple[float, float, float]:
    """Solve ``columns @ x = 1`` for ``x[0] > 0``, ``0 <= x[1] <= x[0]``, ``0 <= x[2]``.

    What would be negative, or more serial than all of the work, is noise or another effect.
    """
    # The contention as it is fitted, nothing, or all of the work; with coherency and without.
    whole = np.array([[1.0, 1, 0], [0, 0, 1]])[:, : columns.shape[1]]
    free = np.eye(3)[: columns.shape[1], : columns.shape[1]]
    choices = [
        free[list(kept)] for kept in ((0,), (0, 1), (0, 2), (0, 1, 2)) if max(kept) < len(free)
    ]
    if len(free) > 1:
        choices += [whole[:count] for count in range(1, len(free))]
    best, least = np.array([1.0, 0, 0]), np.inf
    for basis in choices:
        reduced = columns @ basis.T
        factors = np.linalg.lstsq(reduced, np.ones(len(columns)), rcond=None)[0]
        solution = np.pad(basis.T @ factors, (0, 3 - columns.shape[1]))
        residual = float(np.sum((reduced @ factors - 1) ** 2))
        inside = solution[0] > 0 and (solution[1:] >= 0).all()
        # More parameters than before are kept only for what is no rounding.
        better = residual < least - _EXACT**2
        if inside and solution[1] <= solution[0] * (1 + _EXACT) and better:
            best, least = solution, residual
    inverse, contention, coherency = best.tolist()
    return inverse, contention, coherency
