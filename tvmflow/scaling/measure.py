"""Throughput over batches, threads and devices: measured where they exist, predicted elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench import benchmark
from ..deploy.module import load
from ..errors import DeviceError, InputError, TvmflowError
from ..runtime.devices import DeviceInfo, list_devices
from ..tuning.process import Worker, WorkerLostError
from .data_parallel import DataParallel
from .fit import Fit, fit

if TYPE_CHECKING:
    from .sources import Network

#: PoCL's names of its setting of threads, of old versions and of new ones.
_POCL_THREADS = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")
_POCL = "Portable Computing Language"
#: Seconds for loading and the first calls, in which drivers compile, beside those measured.
_START_LIMIT_S = 600.0


@dataclass(frozen=True)
class Point:
    """Throughput with one batch size, number of threads and number of devices.

    Parameters
    ----------
    batch
        Samples of a call on each device.
    threads
        Of the CPU; ``None`` where the driver does not let them be set, or they were not asked for.
    devices
        How many, each with a batch.
    items_per_s
        Samples a second of all devices.
    median_ms, p10_ms, p90_ms
        Of calls with copies; ``None`` where it was predicted.
    measured
        Whether it was.
    law
        What predicted it: `Fit.law`, or of several axes all of them.
    """

    batch: int
    threads: int | None
    devices: int
    items_per_s: float
    measured: bool
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    law: str = ""

    def along(self, axis: str) -> int:
        """Return the number of an axis."""
        return int(getattr(self, axis))

    def beside(self, axis: str) -> tuple[int | None, ...]:
        """Return the numbers of the other axes."""
        return tuple(getattr(self, other) for other in AXES if other != axis)


AXES = ("batch", "threads", "devices")


@dataclass(frozen=True)
class Law:
    """A model along one axis, with the numbers of the others, which stay."""

    axis: str
    batch: int | None
    threads: int | None
    devices: int | None
    fit: Fit


@dataclass(frozen=True)
class Scaling:
    """What was measured and predicted, and the models."""

    target: str
    device_name: str
    points: tuple[Point, ...]
    laws: tuple[Law, ...]


def scale(
    network: Network,
    *,
    batches: Sequence[int],
    threads: Sequence[int] = (),
    devices: Sequence[int] = (1,),
    device_index: int = 0,
    seconds: float = 2.0,
    seed: int = 0,
) -> Scaling:
    """Measure a network's throughput.

    Every batch is measured with every number of threads on one device, then with each number of
    devices and the most threads.

    Parameters
    ----------
    network
        Its modules by batch.
    batches
        Those that the network has no module of are predicted.
    threads
        Numbers of threads; those above the CPU's cores are predicted.
    devices
        Numbers of devices, which are those behind `device_index`; those above the existing ones
        are predicted.
    seconds
        Time for the calls of each point.

    Raises
    ------
    InputError
        If a number is not positive, or batches cannot be spread.
    DeviceError
        If there is no such device, or its threads cannot be set.
    """
    check_numbers("batches", batches)
    check_numbers("devices", devices)
    if threads:
        check_numbers("threads", threads)
    found = [info for info in list_devices() if info.kind == network.target]
    if device_index >= len(found):
        raise DeviceError(
            f"Measuring failed: there is no {network.target} device {device_index} on this "
            f"machine, which has {len(found)}.",
            remedy="`tvmflow devices` lists the devices and their numbers.",
        )
    info, existing = found[device_index], len(found) - device_index
    cores = next(i for i in list_devices() if i.kind == "llvm").compute_units
    asked: list[int | None] = [*sorted(set(threads))] if threads else [None]
    usable = [count for count in asked if count is None or count <= cores] or [cores]
    wanted = [(b, t, 1) for t in asked for b in sorted(set(batches))] if 1 in devices else []
    wanted += [
        (b, asked[-1], d) for d in sorted(set(devices)) if d > 1 for b in sorted(set(batches))
    ]
    points: list[Point] = []
    for count in usable:
        worker = Worker(_environment(info, count))
        try:
            counts = {d for d in devices if d <= existing} if count == usable[-1] else set()
            for number in sorted({1, *counts}):
                for batch, path in sorted(network.modules.items()):
                    chosen = tuple(range(device_index, device_index + number))
                    timing = _ask(worker, path, network.batched, chosen, count, seconds, seed)
                    points.append(
                        Point(batch, count, number, batch * number / timing[0] * 1e3, True, *timing)
                    )
        finally:
            worker.close()
    laws = _laws(points)
    done = {(point.batch, point.threads, point.devices) for point in points}
    points += [_predict(place, points, laws) for place in wanted if place not in done]
    order = sorted(points, key=lambda p: (p.devices, p.threads or 0, p.batch))
    return Scaling(network.target, info.name, tuple(order), tuple(laws))


def check_numbers(name: str, numbers: Sequence[int]) -> None:
    """Refuse numbers below 1, and none at all.

    Raises
    ------
    InputError
        Naming the smallest.
    """
    if min(numbers, default=0) < 1:
        raise InputError(
            f"Numbers of {name} have to be 1 or more, got {min(numbers, default='none')}.",
            remedy=f"Give others, for example --{name} 1,2,4.",
        )


def _environment(info: DeviceInfo, threads: int | None) -> dict[str, str]:
    if threads is None:
        return {}
    if info.kind == "llvm":
        return {"TVM_NUM_THREADS": str(threads)}
    if info.platform == _POCL:
        return {name: str(threads) for name in _POCL_THREADS}
    raise DeviceError(
        f"Measuring with {threads} threads failed: the threads of {info.name} "
        f"({info.platform or info.kind}) cannot be set, only those of llvm and of PoCL.",
        remedy="Leave --threads out.",
    )


def _ask(worker: Worker, *arguments: object) -> tuple[float, float, float]:
    """Measure in the worker; its errors are raised here as they are."""
    seconds = float(arguments[-2])
    try:
        answer = worker.call(_measure, *arguments, timeout_s=_START_LIMIT_S + 10 * seconds)
    except (WorkerLostError, RuntimeError) as error:
        raise DeviceError(
            f"Measuring {arguments[0]} failed in a process of its own: {error}.",
            remedy="Run the module with `tvmflow run` to see why.",
        ) from error
    if isinstance(answer, TvmflowError):
        raise answer
    times: tuple[float, float, float] = answer
    return times


def _measure(
    path: Path,
    batched: frozenset[str],
    devices: tuple[int, ...],
    threads: int | None,
    seconds: float,
    seed: int,
) -> tuple[float, float, float] | TvmflowError:
    """Time calls, in the worker: median, tenth and ninetieth percentile in milliseconds."""
    try:
        modules = [load(path, device=index) for index in devices]
        network = modules[0] if len(modules) == 1 else DataParallel(modules, batched)
        try:
            timing = benchmark(network, seconds=seconds, seed=seed)
        finally:
            network.close()
        if threads is not None and modules[0].target == "opencl":
            units = next(
                i.compute_units
                for i in list_devices()
                if (i.kind, i.index) == ("opencl", devices[0])
            )
            if units != threads:
                raise DeviceError(
                    f"Measuring with {threads} threads failed: the driver uses {units}.",
                    remedy="Leave --threads out.",
                )
    except TvmflowError as error:
        return error
    return timing.median_ms, timing.p10_ms, timing.p90_ms


def _laws(points: Sequence[Point]) -> list[Law]:
    """A law for each line of points along an axis."""

    def lines() -> Iterator[Law]:
        for axis in AXES:
            known = [point for point in points if getattr(point, axis) is not None]
            for fixed in sorted({p.beside(axis) for p in known}, key=lambda f: [n or 0 for n in f]):
                line = {p.along(axis): p.items_per_s for p in known if p.beside(axis) == fixed}
                others = dict(zip([other for other in AXES if other != axis], fixed, strict=True))
                yield Law(**{axis: None, **others}, axis=axis, fit=fit(line))  # type: ignore[arg-type]

    return list(lines())


def _predict(
    place: tuple[int, int | None, int], points: Sequence[Point], laws: Sequence[Law]
) -> Point:
    """Throughput by the laws: from a measured point along one axis after the other.

    Where several axes leave what was measured, their factors are multiplied.
    """
    wanted: Mapping[str, int | None] = dict(zip(AXES, place, strict=True))
    # What differs in fewest numbers, and then is nearest to what is asked, is known best.
    start = min(
        points,
        key=lambda p: (
            sum(getattr(p, axis) != wanted[axis] for axis in AXES),
            sum(abs((getattr(p, axis) or 0) - (wanted[axis] or 0)) for axis in AXES),
        ),
    )
    rate = start.items_per_s
    used = []
    changed = [axis for axis in AXES if getattr(start, axis) != wanted[axis]]
    for axis in changed:
        others = {other: getattr(start, other) for other in AXES if other != axis}
        law = next(
            law
            for law in laws
            if law.axis == axis and all(getattr(law, o) == n for o, n in others.items())
        )
        used.append(law.fit.law)
        target = law.fit.at(int(wanted[axis] or 1))
        rate *= target / (start.items_per_s if len(changed) == 1 else law.fit.at(start.along(axis)))
    return Point(*place, rate, False, law=", ".join(used))
