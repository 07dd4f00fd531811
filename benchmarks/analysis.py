"""Static analysis against a device: kernels with a higher predicted cost are slower there.

Kernels that are good and bad at one property each, and the same otherwise, are analysed
(`tvmflow.explain.analysis`) for the device that runs them, and timed in turn by its own clock.
Each pair of a series with different costs is a prediction; a ratio is the median over the rounds.

    python benchmarks/analysis.py [--target opencl|cuda] [--device-index 0] [--rounds 9]

A driver is chosen as for tvmflow itself (TVMFLOW_OPENCL_LIBRARY).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import analysis_kernels as kernels
import numpy as np
import tvm
from common import arguments, in_turn, report, summary, write_json
from tvm import tirx
from tvm.script import tirx as T

from tvmflow.devices.target import TargetSpec
from tvmflow.explain.analysis import (
    bank_conflicts,
    coalescing,
    divergence,
    registers,
    texture_locality,
    vector_width,
)
from tvmflow.explain.analysis.hardware import hardware_of
from tvmflow.explain.profiling.ceilings import build, target_of
from tvmflow.runtime.devices import DeviceInfo, cuda_devices, opencl_devices

#: Elements of an array of 128 MiB, which exceeds the last cache of the devices measured.
ELEMENTS = 1 << 25
#: Costs, and times, that differ by less are the same.
SAME = 0.05
POCL = "Portable Computing Language"


@dataclass(frozen=True)
class Series:
    """Kernels that differ in one property."""

    name: str
    #: Unit of the predicted costs.
    unit: str
    kernels: Mapping[str, tirx.PrimFunc]
    #: Function that returns the cost of a kernel.
    cost: Callable[[tirx.PrimFunc, TargetSpec], float]
    #: Why a device has no such cost; empty if it has.
    hidden: str = ""


@dataclass(frozen=True)
class Pair:
    """Two kernels, the second of which is predicted to cost more."""

    cheap: str
    dear: str
    #: Their costs, and their times by the device's clock; ``None`` where that was not measured.
    predicted: float
    measured: float | None = None
    #: Whether the dearer one is slower, is not (``False``), or makes no difference (``None``).
    agrees: bool | None = None


@dataclass(frozen=True)
class Result:
    """A series, predicted and measured."""

    property: str
    unit: str
    predicted: dict[str, float]
    times_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    #: Why it was not measured.
    not_shown: str = ""

    @property
    def verdict(self) -> str:
        """Return ``yes`` if the measured order is the predicted one, else the difference."""
        if self.not_shown:
            return "not shown by this kind of device: " + self.not_shown
        wrong = [
            f"{pair.dear} {'no slower' if pair.agrees is None else 'faster'} than {pair.cheap}"
            for pair in self.pairs
            if not pair.agrees
        ]
        return "no: " + ", ".join(wrong) if wrong else "yes"


def all_series(target: TargetSpec, elements: int, platform: str = "") -> list[Series]:
    """Return every property's kernels, sized by the elements of an array."""
    side = 1 << (elements // 8).bit_length() // 2
    few = (hardware_of(target).registers_each + 1) // 2
    kept = elements // 128
    images = {"squares": kernels.squares(side, 8, 8)}
    if target.device.is_cpu:
        # A texel takes tens of nanoseconds there, which hide a factor of two in lines.
        images["columns"] = kernels.texel_columns(side)
    else:
        # The second cache would hold the other texels of a column's blocks.
        images["every other row and column"] = kernels.squares(side, 8, 8, 2)
    return [
        Series(
            "coalescing",
            "lines",
            {
                "rows": kernels.row_major(elements),
                "every fourth element": kernels.strided(elements, 4),
                "columns": kernels.column_major(elements // 16, 16),
                "random": kernels.gathered(elements),
            },
            lambda function, target: sum(a.transactions for a in coalescing(function, target)),
        ),
        Series(
            "divergence",
            "masked lanes",
            {
                "groups choose of 4": kernels.branching(kept, 4, 64, by_group=True),
                "items choose of 2": kernels.branching(kept, 2, 64, by_group=False),
                "items choose of 4": kernels.branching(kept, 4, 64, by_group=False),
            },
            lambda function, target: sum(d.masked_lanes for d in divergence(function, target)),
        ),
        Series(
            "bank conflicts",
            "cycles",
            {f"rows of {n} words": kernels.tile_columns(elements // 4096, n) for n in (33, 40, 32)},
            lambda function, target: sum(a.cycles for a in bank_conflicts(function, target)),
            "its local memory has no banks" if hardware_of(target).banks == 1 else "",
        ),
        Series(
            "texture locality",
            "lines",
            images,
            lambda function, target: sum(use.blocks for use in texture_locality(function, target)),
            "" if target.device.image_extent else "it has no images",
        ),
        Series(
            "vector width",
            "instructions",
            {
                "vectors of 4": kernels.copied(elements // 8, 4, T.vectorized),
                "one by one": kernels.copied(elements // 8, 4, T.serial),
            },
            lambda function, target: sum(v.instructions for v in vector_width(function, target)),
            "its compiler makes vectors of neighbours itself" if platform == POCL else "",
        ),
        Series(
            "registers",
            "spilled bytes of an item",
            {
                f"{count} numbers": kernels.chains(max(kernels.GROUP, kept // count), count, 64)
                for count in (few, 4 * few)
            },
            lambda function, target: sum(use.spilled_bytes for use in registers(function, target)),
        ),
    ]


def predicted(series: Series, target: TargetSpec) -> Result:
    """Predict the costs of a series, and which kernels differ."""
    if series.hidden:
        return Result(series.name, series.unit, {}, not_shown=series.hidden)
    costs = {name: float(series.cost(f, target)) for name, f in series.kernels.items()}
    ordered = sorted(costs, key=lambda name: costs[name])
    pairs = tuple(
        Pair(cheap, dear, costs[dear] / max(1.0, costs[cheap]))
        for cheap, dear in combinations(ordered, 2)
        if costs[dear] > costs[cheap] * (1 + SAME)
    )
    return Result(series.name, series.unit, costs, pairs=pairs)


def measured(series: Series, result: Result, device: Device, rounds: int) -> Result:
    """Add the times of a series' kernels to its predictions, measured in turn."""
    if result.not_shown:
        return result
    runs = {name: device.prepare(function) for name, function in series.kernels.items()}
    # The first run brings memory into place.
    times = in_turn(runs, rounds=rounds, warmup=1, timed=lambda run: run())
    pairs = tuple(_judged(pair, times) for pair in result.pairs)
    spreads = {name: summary(taken) for name, taken in times.items()}
    return Result(result.property, result.unit, result.predicted, spreads, pairs)


def _judged(pair: Pair, times: Mapping[str, Sequence[float]]) -> Pair:
    together = zip(times[pair.cheap], times[pair.dear], strict=True)
    ratio = statistics.median(dear / cheap for cheap, dear in together)
    agrees = None if abs(ratio - 1) < SAME else ratio > 1
    return Pair(pair.cheap, pair.dear, pair.predicted, round(ratio, 3), agrees)


class Device:
    """A device that runs kernels."""

    def __init__(self, kind: str, info: DeviceInfo):
        self.target = target_of(kind, info)
        self.device = tvm.device(kind, info.index)

    def prepare(self, function: tirx.PrimFunc) -> Callable[[], float]:
        """Return a function that runs a kernel once and returns its time in milliseconds."""
        module = build(function, self.target)
        arguments = [self._tensor(parameter) for parameter in function.params]
        timer = module.time_evaluator("main", self.device, number=1, repeat=1)
        return lambda: float(timer(*arguments).results[0]) * 1e3

    def _tensor(self, parameter: Any) -> Any:
        shape, dtype = [int(extent) for extent in parameter.ty.shape], str(parameter.ty.dtype)
        scope = str(parameter.scope())
        if dtype == "int32":
            # Indices: a place for each element.
            values = np.random.default_rng(0).permutation(shape[0]).astype(dtype)
        else:
            values = np.full(shape, 0.5, dtype)
        image = scope if scope.startswith("global.texture") else None
        tensor = tvm.runtime.empty(shape, dtype, self.device, mem_scope=image)
        tensor.copyfrom(values)
        return tensor


def table(results: Sequence[Result]) -> None:
    """Print a row for each kernel, cheap ones first, and a sentence for each property."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        for name in sorted(result.predicted, key=lambda name: result.predicted[name]):
            cost = f"{result.predicted[name]:,.0f}"
            median = f"{result.times_ms[name]['median_ms']:.3f}"
            rows.append((f"{result.property}: {name}", cost, result.unit, median))
    report("Predicted and measured costs", ("kernel", "predicted", "of", "median ms"), rows)
    print("Is the measured order the predicted one?")
    for result in results:
        print(f"{result.property}: {result.verdict}")


def main() -> None:
    """Measure all series on one device, and write the results."""
    parser = arguments(__doc__, elements=ELEMENTS, rounds=9, name="analysis")
    parser.add_argument("--target", choices=("opencl", "cuda"), default="opencl")
    parser.add_argument("--device-index", type=int, default=0)
    options = parser.parse_args()
    found = opencl_devices() if options.target == "opencl" else cuda_devices()
    if options.device_index >= len(found):
        print(f"no {options.target} device {options.device_index}: nothing measured")
        return
    info = found[options.device_index]
    device = Device(options.target, info)
    results = [
        measured(series, predicted(series, device.target), device, options.rounds)
        for series in all_series(device.target, options.elements, info.platform)
    ]
    table(results)
    facts = {name: getattr(info, name) for name in ("name", "platform", "driver", "version")}
    facts["preset"] = device.target.device.name
    properties = [{**asdict(result), "verdict": result.verdict} for result in results]
    data = {"device": facts, "elements": options.elements, "properties": properties}
    print(f"written: {write_json(options.name, data)}")


if __name__ == "__main__":
    main()
