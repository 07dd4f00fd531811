"""Times of TFLite's GPU delegate for single operators on phones, and the nearest of them.

``tflite_gpu.csv`` has a row for each operator and shape, with the median of equal operators;
README.md has its source and licence.  A layer is compared with the measured operator of the same
kind, window and stride whose sizes are nearest: channels, in blocks of four, and positions of the
map.  The distance of two operators is the sum of ``|log2|`` of the ratios of their sizes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from typing import TypeAlias

#: The engine, as each result names it.
ENGINE = "TFLite's GPU delegate in 16 bits"
#: GPUs by the names of their columns.
GPUS = {"adreno640_us": "Adreno 640", "adreno616_us": "Adreno 616", "mali_g76_us": "Mali-G76"}
NOTE = (
    "Times of another engine on other devices: TFLite's GPU delegate, in 16 bits, on a Pixel 4 "
    "(Adreno 640), a Mi 8 SE (Adreno 616) and a Galaxy S10 (Mali-G76). They are the times of the "
    "measured operator; nothing is scaled to the layer."
)
#: Largest distance that is reported: together, the sizes differ by a factor of two.
LIMIT = 1.0
#: Channels of a block, in both engines.
_BLOCK = 4

#: Medians in µs, by the names of GPUs.
Times: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Operator:
    """An operator on one sample, with square windows."""

    #: ``conv2d``, ``grouped``, ``depthwise``, ``pooling``, ``mean`` (of whole maps), ``dense`` or
    #: ``concat``.
    kind: str
    #: Channels of the input (for ``concat`` of the first one) and of the output.
    inputs: int
    outputs: int
    #: Extents of the output's map, for ``mean`` of the input's; 1 for ``dense``.
    height: int = 1
    width: int = 1
    #: Rows of the window, and the step from one to the next.
    window: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def sizes(self) -> tuple[float, ...]:
        """Return the sizes by which operators of one kind are compared."""
        inputs, outputs = (-(-channels // _BLOCK) for channels in (self.inputs, self.outputs))
        area = self.height * self.width
        if self.kind == "grouped":
            return inputs, outputs, area, self.inputs / self.groups
        if self.kind in ("conv2d", "dense"):
            return inputs, outputs, area
        return outputs, area

    @property
    def flops(self) -> int:
        """Return the operations on elements: a product and a sum are two, moves are none."""
        if self.kind == "concat":
            return 0
        elements = self.outputs * self.height * self.width * self.window**2
        if self.kind in ("pooling", "mean"):
            return elements
        return 2 * elements * (1 if self.kind == "depthwise" else self.inputs // self.groups)

    def __str__(self) -> str:
        parts = [self.kind]
        if self.kind in ("conv2d", "grouped", "depthwise", "pooling"):
            parts.append(f"{self.window}×{self.window}")
        if self.stride > 1:
            parts.append(f"stride {self.stride}")
        if self.groups > 1:
            parts.append(f"{self.groups} groups")
        has_inputs = self.kind in ("conv2d", "grouped", "dense")
        channels = f"{self.inputs} → {self.outputs}" if has_inputs else f"{self.outputs}"
        place = "" if self.kind == "dense" else f", {self.height}×{self.width}"
        return f"{' '.join(parts)}, {channels}{place}"


@dataclass(frozen=True)
class Yardstick:
    """Times that another engine took for an operator, or for the nearest one that was measured.

    Times and rates are those of :attr:`measured`; nothing is scaled.
    """

    #: :data:`ENGINE`.
    engine: str
    #: The layer's operator, and the one that was measured.
    operator: Operator
    measured: Operator
    #: Their distance, at most :data:`LIMIT`; 0 for the same shape.
    distance: float
    #: Times and rates by the names of GPUs; there are no rates for ``concat``.
    us: Times
    gflops: Mapping[str, float]
    #: Time of the layer's launches in a profile.
    own_us: float | None = None

    @property
    def own_gflops(self) -> float | None:
        """Return the layer's rate in the profile; ``None`` without a time."""
        return self.operator.flops / self.own_us / 1e3 if self.own_us else None

    @property
    def measured_text(self) -> str:
        """Return the description of the measured operator, or that it is the layer's own."""
        return "the same" if self.distance == 0 else str(self.measured)


def yardstick_of(
    operator: Operator, known: Mapping[Operator, Times] | None = None
) -> Yardstick | None:
    """Return the times of the nearest measured operator; ``None`` if it is beyond :data:`LIMIT`.

    ``known`` are the measured operators, by default those of the package.
    """
    known = measured_operators() if known is None else known

    def farness(other: Operator) -> tuple[float, int]:
        # Among equal blocks of channels, the nearest channels.
        channels = abs(other.inputs - operator.inputs) + abs(other.outputs - operator.outputs)
        return distance(other, operator), channels

    alike = [each for each in known if _form(each) == _form(operator)]
    found = min(alike, key=farness, default=None)
    if found is None or (far := distance(found, operator)) > LIMIT:
        return None
    times = known[found]
    rates = {gpu: found.flops / us / 1e3 for gpu, us in times.items() if found.flops}
    return Yardstick(ENGINE, operator, found, far, times, rates)


def distance(one: Operator, other: Operator) -> float:
    """Return the sum of ``|log2|`` of the ratios of the sizes of operators of one kind."""
    return sum(abs(log2(a / b)) for a, b in zip(one.sizes, other.sizes, strict=True))


def _form(operator: Operator) -> tuple[str, int, int]:
    return operator.kind, operator.window, operator.stride


@cache
def measured_operators() -> Mapping[Operator, Times]:
    """Return the measured operators of the package."""
    text = files(__package__).joinpath("tflite_gpu.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        kind = row.pop("kind")
        times = {gpu: float(row.pop(column)) for column, gpu in GPUS.items()}
        size = int(row.pop("size"))
        numbers = {name: int(row[name]) for name in ("window", "stride", "groups")}
        channels = int(row["inputs"]), int(row["outputs"])
        found[Operator(kind, *channels, size, size, **numbers)] = times
    return found
