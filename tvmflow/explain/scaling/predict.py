"""Throughput as it was measured, laws fitted to it, and what these predict.

With ``n`` threads, devices or samples of a batch, throughput is that of Gunther's universal
scalability law::

    X(n) = rate · n / (1 + contention · (n - 1) + coherency · n · (n - 1))

Without coherency it is Amdahl's law, whose serial part is the contention; without both it is
linear.  For batches, Amdahl's law says that a call takes a constant and a time for each sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ...ir.units import counted
from ...runtime.json_types import JsonObject
from ...runtime.timing import Spread

LINEAR, AMDAHL, USL = "linear", "Amdahl's law", "universal scalability law"
#: Measured points that the universal scalability law's three parameters need, and one to check.
_USL_POINTS = 4
#: Relative differences below this are those of arithmetic.
_EXACT = 1e-9
#: What throughput depends on.
AXES = ("batch", "threads", "devices")
#: Measured numbers that a law along an axis needs.
_LEAST = 2
#: A law that differs by more from what was measured predicts nothing.
_TRUSTED_ERROR = 0.25


@dataclass(frozen=True)
class Fit:
    """The model's parameters."""

    #: ``LINEAR``, ``AMDAHL`` or ``USL``.
    law: str
    #: Throughput with one.
    rate: float
    #: Part of the work that is done one after the other, and that each pair costs.
    contention: float
    coherency: float
    #: Root of the mean square of the model's relative differences from what was measured; ``None``
    #: where it meets the points exactly, because they are no more than parameters.
    error: float | None
    #: To how many it was fitted.
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

    There is throughput by number, at least one.
    """
    n, throughput = np.array(sorted(measured.items()), float).T
    # Time of `n` units of work is linear in the parameters, when they are divided by the rate.
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1) * (throughput / n)[:, None]
    parameters = 3 if len(n) >= _USL_POINTS else min(len(n), 2)
    law = (LINEAR, AMDAHL, USL)[parameters - 1]
    inverse, contention, coherency = _least_squares(columns[:, :parameters]).tolist()
    result = Fit(law, 1 / inverse, contention / inverse, coherency / inverse, None, len(n))
    predicted = np.array([result.at(int(number)) for number in n])
    error = float(np.sqrt(np.mean((predicted / throughput - 1) ** 2)))
    is_exact = len(n) <= parameters and error < _EXACT
    return replace(result, error=None if is_exact else error)


def _least_squares(columns: np.ndarray) -> np.ndarray:
    """Solve ``columns @ x = 1`` for ``x[0] > 0``, ``0 <= x[1] <= x[0]``, ``0 <= x[2]``.

    What would be negative, or more serial than all of the work, is noise or another effect.
    """
    count = columns.shape[1]
    # What is allowed are sums of these: no contention, all of the work, coherency.
    edges = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 1]])[:count]
    best, least = np.array([1.0, 0, 0]), np.inf
    for chosen in (list(c) for size in range(count) for c in combinations(range(count), size + 1)):
        reduced = columns @ edges[chosen, :count].T
        factors = np.linalg.lstsq(reduced, np.ones(len(columns)), rcond=None)[0]
        solution = factors @ edges[chosen]
        residual = float(np.sum((reduced @ factors - 1) ** 2))
        # More parameters than before are kept only for what is no rounding.
        if solution[0] > 0 and (factors >= 0).all() and residual < least - _EXACT**2:
            best, least = solution, residual
    return best


@dataclass(frozen=True)
class Point:
    """Throughput with one batch size, number of threads and number of devices."""

    #: Samples of a call on each device.
    batch: int
    #: Of the CPU; ``None`` where they were not asked for.
    threads: int | None
    #: How many, each with a batch.
    devices: int
    #: Whether it was, or else predicted.
    measured: bool
    #: Samples a second of all devices; ``None`` where too little was measured to predict it.
    items_per_s: float | None
    #: Measured: of the slowest and the fastest tenth of the calls.  Predicted: the least and the
    #: most that the laws give when one of their points is at either end of these.
    low_per_s: float | None = None
    high_per_s: float | None = None
    #: Of calls with copies; ``None`` where it was predicted.
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    #: What predicted it.
    laws: tuple[Law, ...] = ()
    #: Why nothing could.
    why_not: str = ""

    @classmethod
    def of_calls(cls, batch: int, threads: int | None, devices: int, times: Spread) -> Point:
        """Return what was measured."""
        ms = times.median_ms, times.p10_ms, times.p90_ms
        rate, high, low = (batch * devices / each * 1e3 for each in ms)
        return cls(batch, threads, devices, True, rate, low, high, *ms)

    @property
    def numbers(self) -> dict[str, Any]:
        """Batch, threads and devices by axis."""
        return {axis: getattr(self, axis) for axis in AXES}

    def described(self, laws: Sequence[Law]) -> JsonObject:
        """Return the facts as JSON has them; its laws are places in the list of all."""
        facts = {name: value for name, value in vars(self).items() if name != "laws"}
        return facts | {"laws": [laws.index(law) for law in self.laws]}


@dataclass(frozen=True)
class Law:
    """A model along one axis, with the numbers of the others, which stay."""

    #: Of `AXES`.
    axis: str
    #: The others' numbers.
    at: Mapping[str, int | None]
    #: The axis's numbers that were measured.
    fitted_to: tuple[int, ...]
    #: The model.
    fit: Fit
    #: What it is when one of the points is slower or faster, as its calls were.
    extremes: tuple[Fit, ...]

    @classmethod
    def along(cls, axis: str, points: Sequence[Point]) -> Law:
        """Fit a law to the measured points of a line."""
        line = {point.numbers[axis]: point.items_per_s or 0.0 for point in points}
        extremes = [
            fit({**line, point.numbers[axis]: rate})
            for point in points
            for rate in (point.low_per_s, point.high_per_s)
            if rate
        ]
        at = {other: n for other, n in points[0].numbers.items() if other != axis}
        return cls(axis, at, tuple(sorted(line)), fit(line), tuple(extremes))

    def rates(self, n: int, start: int | None = None) -> tuple[float, float, float]:
        """Throughput with `n`, or its ratio to `start`'s: by the model, the least, the most."""
        laws = (self.fit, *self.extremes)
        rates = [law.at(n) / (1 if start is None else law.at(start)) for law in laws]
        return rates[0], min(rates), max(rates)

    def described(self) -> JsonObject:
        """Return the facts as JSON has them."""
        fit = self.fit
        model = {name: getattr(fit, name) for name in ("law", "contention", "coherency", "error")}
        rates = {"rate_per_s": fit.rate, "limit_per_s": fit.limit}
        return {"axis": self.axis, **self.at, "fitted_to": list(self.fitted_to), **model, **rates}


def counted_along(axis: str, number: int) -> str:
    """``batch 4``, ``1 thread``, ``2 devices``."""
    return f"batch {number}" if axis == "batch" else counted(number, axis.removesuffix("s"))


def find_laws(points: Sequence[Point]) -> list[Law]:
    """Fit a law to each line of measured points along an axis.

    One point makes no law; but devices, which share nothing, add up at most.
    """
    laws: list[Law] = []
    for axis in AXES:
        lines: defaultdict[tuple[int | None, ...], list[Point]] = defaultdict(list)
        for point in points:
            if point.numbers[axis] is not None:
                lines[tuple(n for other, n in point.numbers.items() if other != axis)].append(point)
        least = 1 if axis == "devices" else _LEAST
        laws += [Law.along(axis, line) for line in lines.values() if len(line) >= least]
    return laws


def predict(
    numbers: tuple[int, int | None, int], points: Sequence[Point], laws: Sequence[Law]
) -> Point:
    """Predict throughput: from a measured point along one axis after the other.

    Where several axes leave what was measured, their factors are multiplied.
    """
    nothing = Point(*numbers, measured=False, items_per_s=None)
    wanted = nothing.numbers

    # What differs in fewest numbers, and then is nearest to what is wanted, is known best.
    def distance(at: Mapping[str, int | None]) -> tuple[int, int]:
        pairs = [(number or 0, wanted[axis] or 0) for axis, number in at.items()]
        return sum(a != b for a, b in pairs), sum(abs(a - b) for a, b in pairs)

    start = min(points, key=lambda point: distance(point.numbers))
    here = start.numbers
    changed = [axis for axis in AXES if here[axis] != wanted[axis]]
    used = []
    for axis in changed:
        found = [law for law in laws if law.axis == axis]
        number = "batch" if axis == "batch" else f"number of {axis}"
        if not found:
            why_not = f"only one {number} was measured, and a law needs {_LEAST}"
            return replace(nothing, why_not=why_not)
        # Rather one of more points elsewhere than a line of one.
        law = min(found, key=lambda law: (law.fit.law == LINEAR, *distance(law.at)))
        if (law.fit.error or 0) > _TRUSTED_ERROR:
            why_not = (
                f"{law.fit.law} differs by more than {100 * _TRUSTED_ERROR:.0f} % from what was "
                f"measured over {axis}; measure longer, on an idle machine"
            )
            return replace(nothing, why_not=why_not)
        used.append(law)
    rates = start.items_per_s or 0.0, start.low_per_s or 0.0, start.high_per_s or 0.0
    if len(used) == 1 and used[0].at == {axis: here[axis] for axis in used[0].at}:
        rates = used[0].rates(wanted[changed[0]])
    else:
        for axis, law in zip(changed, used, strict=True):
            factors = law.rates(wanted[axis], here[axis])
            rates = rates[0] * factors[0], rates[1] * factors[1], rates[2] * factors[2]
    rate, low, high = rates
    return replace(nothing, items_per_s=rate, low_per_s=low, high_per_s=high, laws=tuple(used))
