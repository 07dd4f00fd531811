"""What links between devices cost: the efficiency of 1 to 64 devices, predicted.

Each scheme does as many samples as its devices would do without links:

- *data parallel*: one host sends each device its samples and receives its results, one transfer
  after the other in each direction.
- *all-reduce*: data parallel with local samples, and a sum of as many bytes as the weights have
  behind each call, as in training, by the ring algorithm (P. Patarasuk and X. Yuan, "Bandwidth
  optimal all-reduce algorithms for clusters of workstations", 2009).
- *pipeline*: the network's kernels are split into stages, one a device, that calls go through one
  behind the other (Y. Huang and others, "GPipe", 2019).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

import numpy as np

from ...errors import FarmError, InputError
from ...runtime.json_types import JsonObject

DATA_PARALLEL, ALL_REDUCE, PIPELINE = SCHEMES = ("data parallel", "all-reduce", "pipeline")
#: Devices that are predicted.
COUNTS = (1, 2, 4, 8, 16, 32, 64)
_UNITS = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


@dataclass(frozen=True)
class Link:
    """A connection; each of its directions has the whole bandwidth."""

    bytes_per_s: float
    latency_s: float

    def __str__(self) -> str:
        """``10 Gbit/s, 20 µs``."""
        bits = 8 * self.bytes_per_s
        size, unit = next(((s, u) for u, s in _UNITS.items() if bits >= s), (1.0, ""))
        return f"{bits / size:.3g} {unit}bit/s, {1e6 * self.latency_s:.3g} µs"

    @classmethod
    def parse(cls, text: str, latency_us: float) -> Link:
        """Read ``10Gbit`` or ``500MB``, a second; `InputError` if it is neither."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)(bit|B)(?:/s)?", text)
        rate = float(found[1]) * _UNITS[found[2]] / (8 if found[3] == "bit" else 1) if found else 0
        if rate <= 0:
            raise InputError(
                f"The link {text!r} was not understood: a bandwidth above 0 was expected, in bits "
                "or bytes a second.",
                remedy="Write 10Gbit or 500MB, for example.",
            )
        return cls(rate, latency_us * 1e-6)

    @classmethod
    def of_transfers(cls, small: tuple[int, float], large: tuple[int, float]) -> Link:
        """The line through two transfers, each bytes and seconds.

        `FarmError` if the large one was not slower.
        """
        (few, short_s), (many, long_s) = small, large
        if long_s <= short_s:
            raise FarmError(
                f"Measuring the link failed: {many} bytes took {1e3 * long_s:.3g} ms, "
                f"{few} bytes {1e3 * short_s:.3g} ms; more bytes were expected to take longer.",
                remedy="Measure again when nobody else uses the network, or give its bandwidth.",
            )
        bytes_per_s = (many - few) / (long_s - short_s)
        return cls(bytes_per_s, max(0.0, short_s - few / bytes_per_s))

    def seconds(self, size_bytes: float) -> float:
        """Time of one transfer."""
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Work:
    """A call on one device."""

    #: Of the call, in seconds.
    call_s: float
    input_bytes: int
    output_bytes: int
    weights_bytes: int
    #: Parts of the call that kernels take, in their order; they are scaled to sum up to it.
    layers: tuple[float, ...]
    #: What goes from each layer to those behind it; one less than layers.
    between_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Efficiency:
    """Samples a second of some devices, over those of as many devices without links."""

    scheme: str
    devices: int
    #: From 0 to 1; ``None`` for a pipeline with more stages than layers.
    efficiency: float | None


def data_parallel_s(work: Work, link: Link, devices: int) -> float:
    """Time of a call on each device, from the first input's departure to the last result."""
    there, back = link.seconds(work.input_bytes), link.seconds(work.output_bytes)
    return there + work.call_s + back + (devices - 1) * max(there, back)


def all_reduce_s(size_bytes: float, link: Link, devices: int) -> float:
    """Time of the ring algorithm: 2 (n - 1) steps, each with an n-th of the bytes."""
    return 2 * (devices - 1) * link.seconds(size_bytes / devices)


def pipeline_s(stages: Sequence[float], transfers: Sequence[float], microbatches: int) -> float:
    """Time of so many calls through stages, with a transfer between each two.

    Equal calls wait for the slowest stage or transfer only: filling and draining take all of them
    once.
    """
    every = [*stages, *transfers]
    return sum(every) + (microbatches - 1) * max(every)


def split(work: Work, link: Link, stages: int) -> tuple[list[float], list[float]] | None:
    """Split layers so that the slowest stage or transfer is as fast as it can be.

    Returns seconds of stages and of transfers between them; ``None`` if there are fewer layers.
    """
    count = len(work.layers)
    if stages > count:
        return None
    ends = np.concatenate([[0.0], np.cumsum(work.layers)])
    ends *= work.call_s / ends[-1]
    cut = np.array([0.0, *(link.seconds(size) for size in work.between_bytes), 0.0])
    place = np.arange(count + 1)
    # Row: where a stage begins, with the transfer before it; column: where it ends.
    cost = np.maximum(ends[None, :] - ends[:, None], cut[:, None])
    cost[place[:, None] >= place[None, :]] = np.inf
    best, choices = cost[0], []
    for _ in range(stages - 1):
        slowest = np.maximum(best[:, None], cost)
        choices.append(slowest.argmin(0))
        best = slowest.min(0)
    bounds = [count]
    for choice in reversed(choices):
        bounds.insert(0, int(choice[bounds[0]]))
    bounds.insert(0, 0)
    return np.diff(ends[bounds]).tolist(), cut[bounds[1:-1]].tolist()


def predict_efficiency(
    work: Work, link: Link, microbatches: int, counts: Sequence[int] = COUNTS
) -> list[Efficiency]:
    """Predict each scheme with each number of devices."""
    found = []
    for n in counts:
        reduced_s = work.call_s + all_reduce_s(work.weights_bytes, link, n)
        parts = split(work, link, n)
        piped = None
        if parts is not None:
            piped = microbatches * work.call_s / (n * pipeline_s(*parts, microbatches))
        rates = (work.call_s / data_parallel_s(work, link, n), work.call_s / reduced_s, piped)
        found += [Efficiency(s, n, rate) for s, rate in zip(SCHEMES, rates, strict=True)]
    return found


@dataclass(frozen=True)
class Communication:
    """A prediction for one module: its call, the link, and calls that go through a pipeline."""

    work: Work
    link: Link
    microbatches: int
    #: Samples of a call.
    batch: int

    def efficiency(self) -> list[Efficiency]:
        """Predict each scheme with 1 to 64 devices."""
        return predict_efficiency(self.work, self.link, self.microbatches)

    def plot(self, title: str) -> str:
        """Draw it as SVG."""
        return plot(title, self.efficiency())

    def described(self) -> JsonObject:
        """Return the facts as JSON has them."""
        return {**asdict(self), "efficiency": [asdict(each) for each in self.efficiency()]}


# -- the plot ------------------------------------------------------------------------------------

_WIDE, _HIGH, _LEFT, _TOP = 520, 300, 60, 40
#: Told apart with any one kind of colour blindness, and by their dashes.
_LOOKS = {
    DATA_PARALLEL: ("#1f6f8b", ""),
    ALL_REDUCE: ("#c65d00", "7 4"),
    PIPELINE: ("#6a3d9a", "2 3"),
}


def plot(title: str, found: Sequence[Efficiency]) -> str:
    """Draw efficiency over the number of devices as SVG, a curve for each scheme."""
    counts = sorted({each.devices for each in found})
    steps = max(1.0, np.log2(counts[-1] / counts[0]))

    def x(devices: int) -> float:
        return float(_LEFT + _WIDE * np.log2(devices / counts[0]) / steps)

    def y(efficiency: float) -> float:
        return _TOP + _HIGH * (1 - efficiency)

    width, height = _LEFT + _WIDE + 130, _TOP + _HIGH + 50
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
    )
    lines = [
        head,
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = y(part)
        lines.append(f'<path d="M{_LEFT} {at}h{_WIDE}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{part:.0%}</text>')
    for n in counts:
        at = _TOP + _HIGH + 20
        lines.append(f'<text x="{x(n):.1f}" y="{at}" text-anchor="middle">{n}</text>')
    lines.append(
        f'<text x="{_LEFT + _WIDE / 2}" y="{height - 8}" text-anchor="middle">devices</text>'
    )
    for rank, (scheme, (colour, dashes)) in enumerate(_LOOKS.items()):
        own = [e for e in found if e.scheme == scheme and e.efficiency is not None]
        places = " ".join(f"{x(e.devices):.1f},{y(e.efficiency or 0):.1f}" for e in own)
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        lines.append(f'<polyline points="{places}" fill="none" {style}/>')
        at = _TOP + 16 + 22 * rank
        lines.append(f'<path d="M{_LEFT + _WIDE + 12} {at - 4}h24" {style}/>')
        lines.append(f'<text x="{_LEFT + _WIDE + 42}" y="{at}">{scheme}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
