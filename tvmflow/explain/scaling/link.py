"""Predict what a link between a host and several devices costs.

The host sends each device its samples and receives the results, one transfer after the other in
each direction, while the devices compute.  A call on ``n`` devices then takes::

    input + call + output + (n - 1) · max(input, output)
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...module.load import load

if TYPE_CHECKING:
    from ...runtime.json_types import JsonObject
    from .measure import Scaling
    from .sources import Network

#: Numbers of devices that are predicted.
COUNTS = (1, 2, 4, 8, 16, 32, 64)
_UNITS = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


@dataclass(frozen=True)
class Link:
    """A connection; each of its directions has the whole bandwidth."""

    bytes_per_s: float
    latency_s: float

    def __str__(self) -> str:
        """Describe the link: ``10 Gbit/s, 20 µs``."""
        bits = 8 * self.bytes_per_s
        size, unit = next(((s, u) for u, s in _UNITS.items() if bits >= s), (1.0, ""))
        return f"{bits / size:.3g} {unit}bit/s, {1e6 * self.latency_s:.3g} µs"

    @classmethod
    def parse(cls, text: str, latency_us: float) -> Link:
        """Parse a bandwidth per second, ``10Gbit`` or ``500MB``; `InputError` for other texts."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)(bit|B)(?:/s)?", text)
        rate = float(found[1]) * _UNITS[found[2]] / (8 if found[3] == "bit" else 1) if found else 0
        if rate <= 0:
            raise InputError(
                f"The link {text!r} was not understood: a bandwidth above 0 was expected, in bits "
                "or bytes a second.",
                remedy="Write 10Gbit or 500MB, for example.",
            )
        return cls(rate, latency_us * 1e-6)

    def seconds(self, size_bytes: float) -> float:
        """Return the time of one transfer."""
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Prediction:
    """Prediction for several devices that share a link, from a call measured on one."""

    link: Link
    #: Samples per call.
    batch: int
    #: Time of a call without the link.
    call_s: float
    input_bytes: int
    output_bytes: int

    @classmethod
    def of(cls, network: Network, measured: Scaling, link: Link) -> Prediction:
        """Return a prediction from the largest batch measured on one device, and most threads."""
        alone = [point for point in measured.points if point.devices == 1]
        point = max(alone, key=lambda point: (point.batch, point.threads or 0))
        module = load(network.modules[point.batch])
        sizes = (sum(i.size_bytes for i in infos) for infos in (module.inputs, module.outputs))
        return cls(link, point.batch, 1e-3 * point.median_ms, *sizes)

    def efficiency(self, devices: int) -> float:
        """Return the ratio of throughput over the link to throughput without it, 0 to 1."""
        there, back = self.link.seconds(self.input_bytes), self.link.seconds(self.output_bytes)
        return self.call_s / (there + self.call_s + back + (devices - 1) * max(there, back))

    def items_per_s(self, devices: int) -> float:
        """Return the samples per second of a number of devices."""
        return devices * self.batch / self.call_s * self.efficiency(devices)

    def described(self) -> JsonObject:
        """Return the prediction as a JSON object, with a row for each number of devices."""
        rows = [
            {"devices": n, "items_per_s": self.items_per_s(n), "efficiency": self.efficiency(n)}
            for n in COUNTS
        ]
        return {**asdict(self), "predicted": rows}
