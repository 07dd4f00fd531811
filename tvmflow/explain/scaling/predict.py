"""Points of throughput, the laws along each axis of them, and what these predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir.units import counted
from ...runtime.timing import Spread
from .fit import LINEAR, Fit, fit

#: What throughput depends on.
AXES = ("batch", "threads", "devices")
#: Measured numbers that a law along an axis needs.
_LEAST = 2
#: A law that differs by more from what was measured predicts nothing.
_TRUSTED_ERROR = 0.25


@dataclass(frozen=True)
class Point:
    """Throughput with one batch size, number of threads and number of devices.

    Parameters
    ----------
    batch
        Samples of a call on each device.
    threads
        Of the CPU; ``None`` where they were not asked for.
    devices
        How many, each with a batch.
    measured
        Whether it was, or else predicted.
    items_per_s
        Samples a second of all devices; ``None`` where too little was measured to predict it.
    low_per_s, high_per_s
        Measured: of the slowest and the fastest tenth of the calls.  Predicted: the least and the
        most that the laws give when one of their points is at either end of these.
    median_ms, p10_ms, p90_ms
        Of calls with copies; ``None`` where it was predicted.
    laws
        What predicted it.
    why_not
        Why nothing could.
    """

    batch: int
    threads: int | None
    devices: int
    measured: bool
    items_per_s: float | None
    low_per_s: float | None = None
    high_per_s: float | None = None
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    laws: tuple[Law, ...] = ()
    why_not: str = ""

    @classmethod
    def of_calls(cls, batch: int, threads: int | None, devices: int, times: Spread) -> Point:
        """Return what was measured."""

        def rate(ms: float) -> float:
            return batch * devices / ms * 1e3

        return cls(
            batch,
            threads,
            devices,
            measured=True,
            items_per_s=rate(times.median_ms),
            low_per_s=rate(times.p90_ms),
            high_per_s=rate(times.p10_ms),
            median_ms=times.median_ms,
            p10_ms=times.p10_ms,
            p90_ms=times.p90_ms,
        )

    @property
    def place(self) -> tuple[int, int | None, int]:
        """Batch, threads and devices."""
        return self.batch, self.threads, self.devices

    @property
    def numbers(self) -> dict[str, int | None]:
        """The same by axis."""
        return dict(zip(AXES, self.place, strict=True))

    def described(self, laws: Sequence[Law]) -> dict[str, Any]:
        """Return the facts as JSON has them; its laws are places in the list of all."""
        facts = {name: value for name, value in vars(self).items() if name != "laws"}
        return facts | {"laws": [laws.index(law) for law in self.laws]}


@dataclass(frozen=True)
class Law:
    """A model along one axis, with the numbers of the others, which stay.

    Parameters
    ----------
    axis
        Of `AXES`.
    at
        The others' numbers.
    fitted_to
        The axis's numbers that were measured.
    fit
        The model.
    extremes
        What it is when one of the points is slower or faster, as its calls were.
    """

    axis: str
    at: Mapping[str, int | None]
    fitted_to: tuple[int, ...]
    fit: Fit
    extremes: tuple[Fit, ...]

    @classmethod
    def along(cls, axis: str, points: Sequence[Point]) -> Law:
        """Fit a law to the measured points of a line."""
        line = {_number(point.numbers, axis): _rate(point) for point in points}
        ends = {
            _number(point.numbers, axis): (point.low_per_s, point.high_per_s) for point in points
        }
        extremes = [
            fit({**line, number: rate}) for number, pair in ends.items() for rate in pair if rate
        ]
        at = {other: n for other, n in points[0].numbers.items() if other != axis}
        return cls(axis, at, tuple(sorted(line)), fit(line), tuple(extremes))

    def factors(self, start: int, n: int) -> tuple[float, float, float]:
        """Throughput with `n` by that with `start`: by the model, the least, the most."""
        ratios = [law.at(n) / law.at(start) for law in (self.fit, *self.extremes)]
        return ratios[0], min(ratios), max(ratios)

    def rates(self, n: int) -> tuple[float, float, float]:
        """Throughput with `n`: by the model, the least, the most."""
        rates = [law.at(n) for law in (self.fit, *self.extremes)]
        return rates[0], min(rates), max(rates)

    def described(self) -> dict[str, Any]:
        """Return the facts as JSON has them."""
        return {
            "axis": self.axis,
            **self.at,
            "fitted_to": list(self.fitted_to),
            "law": self.fit.law,
            "rate_per_s": self.fit.rate,
            "contention": self.fit.contention,
            "coherency": self.fit.coherency,
            "error": self.fit.error,
            "limit_per_s": self.fit.limit,
        }


def counted_along(axis: str, number: int) -> str:
    """``batch 4``, ``1 thread``, ``2 devices``."""
    return f"batch {number}" if axis == "batch" else counted(number, axis.removesuffix("s"))


def find_laws(points: Sequence[Point]) -> list[Law]:
    """Fit a law to each line of measured points along an axis.

    One point makes no law; but devices, which share nothing, add up at most.
    """

    def lines() -> Iterator[Law]:
        for axis in AXES:
            by_place: dict[tuple[int | None, ...], list[Point]] = {}
            for point in points:
                if point.numbers[axis] is not None:
                    others = tuple(n for other, n in point.numbers.items() if other != axis)
                    by_place.setdefault(others, []).append(point)
            for line in by_place.values():
                if len(line) >= _LEAST or axis == "devices":
                    yield Law.along(axis, line)

    return list(lines())


def predict(
    place: tuple[int, int | None, int], points: Sequence[Point], laws: Sequence[Law]
) -> Point:
    """Throughput by the laws: from a measured point along one axis after the other.

    Where several axes leave what was measured, their factors are multiplied.
    """
    wanted: Mapping[str, int | None] = dict(zip(AXES, place, strict=True))
    nothing = Point(*place, measured=False, items_per_s=None)

    # What differs in fewest numbers, and then is nearest to what is asked, is known best.
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
            return replace(
                nothing, why_not=f"only one {number} was measured, and a law needs {_LEAST}"
            )
        # Rather one of more points elsewhere than a line of one.
        law = min(found, key=lambda law: (law.fit.law == LINEAR, *distance(law.at)))
        if (law.fit.error or 0) > _TRUSTED_ERROR:
            return replace(
                nothing,
                why_not=f"{law.fit.law} differs by more than {100 * _TRUSTED_ERROR:.0f} % from "
                f"what was measured over {axis}; measure longer, on an idle machine",
            )
        used.append(law)
    rates = _rate(start), start.low_per_s or 0.0, start.high_per_s or 0.0
    if len(used) == 1 and used[0].at == {axis: here[axis] for axis in used[0].at}:
        rates = used[0].rates(_number(wanted, changed[0]))
    else:
        for axis, law in zip(changed, used, strict=True):
            factors = law.factors(_number(here, axis), _number(wanted, axis))
            rates = rates[0] * factors[0], rates[1] * factors[1], rates[2] * factors[2]
    return Point(*place, False, *rates, laws=tuple(used))


def _number(numbers: Mapping[str, int | None], axis: str) -> int:
    number = numbers[axis]
    assert number is not None
    return number


def _rate(point: Point) -> float:
    assert point.items_per_s is not None
    return point.items_per_s
