"""Throughput over batches, threads and devices: measured where they exist, predicted elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._versions import REQUIRED_TVM, __version__
from ...errors import DeviceError, InputError, TvmflowError
from ...module.bench import Timing, benchmark
from ...runtime.json_types import JsonObject
from ...runtime.load import disturbance
from ...runtime.process import Worker, WorkerLostError
from .data_parallel import DataParallel
from .predict import Law, Point, counted_along, find_laws, predict

if TYPE_CHECKING:
    from .devices import DevicePool
    from .sources import Network

logger = logging.getLogger(__name__)

#: More of anything than there is, and few enough for the laws' arithmetic.
_MOST = 10**9
#: Seconds for loading and the first calls, in which drivers compile, beside those measured.
_START_LIMIT_S = 600.0


@dataclass(frozen=True)
class Scaling:
    """Points that were measured and predicted, and the laws."""

    target: str
    device_name: str
    points: tuple[Point, ...]
    laws: tuple[Law, ...]
    driver: str = ""  #: Platform, driver and version; empty on a farm.
    #: Part of the processors' time that other programs took, 0 to 1, of the point with most.
    others_share: float | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what measured."""
        return {"tvmflow": __version__, "TVM": REQUIRED_TVM["apache-tvm"]}

    def described(self) -> JsonObject:
        """Return the facts as JSON has them."""
        return {
            "target": self.target,
            "device_name": self.device_name,
            "driver": self.driver,
            "versions": self.versions,
            "points": [point.described(self.laws) for point in self.points],
            "laws": [law.described() for law in self.laws],
            "others_share": self.others_share,
        }


def scale(
    network: Network,
    pool: DevicePool,
    *,
    batches: Sequence[int],
    threads: Sequence[int] = (),
    devices: Sequence[int] = (1,),
    seconds: float = 2.0,
    seed: int = 0,
    watch: Callable[[str], object] = lambda what: None,
) -> Scaling:
    """Measure a network's throughput.

    Every batch is measured with every number of threads on one device, then with each number of
    devices and the most threads.  Predicted are batches that the network has no module of, threads
    above the CPU's cores and devices above the existing ones.

    Parameters
    ----------
    seconds
        Time for the calls of each point.
    watch
        Gets what is measured next.

    Raises
    ------
    InputError
        If a number is not possible, or batches cannot be spread.
    DeviceError
        If threads cannot be set.
    FarmError
        If a server is not free or fails.
    """
    check_numbers("batches", batches)
    check_numbers("devices", devices)
    if threads:
        check_numbers("threads", threads)
    counts: list[int | None] = [*sorted(set(threads))] if threads else [None]
    usable = [count for count in counts if count is None or count <= pool.cores] or [pool.cores]
    # One device is what more are compared with.
    numbers = sorted({1, *(number for number in devices if number <= pool.existing)})
    points: list[Point] = []
    shares: list[float] = []
    for count in usable:
        of_devices = numbers if count == usable[-1] else [1]
        limit_s = _START_LIMIT_S + 10 * seconds
        with closing(Worker({} if count is None else pool.environment(count))) as worker:
            watch("starting")
            pool.prepare(worker, of_devices[-1], limit_s * len(of_devices) * len(network.modules))
            for number in of_devices:
                for batch, path in sorted(network.modules.items()):
                    at = (("batch", batch), ("devices", number), ("threads", count))
                    watch("measuring " + ", ".join(counted_along(name, n) for name, n in at if n))
                    work = (pool, path, network.batched, number, count, seconds, seed)
                    times = _ask(worker, *work, limit_s=limit_s)
                    points.append(Point.of_calls(batch, count, number, times))
                    shares += [] if times.others_share is None else [times.others_share]
    laws = find_laws(points)
    done = {tuple(point.numbers.values()) for point in points}
    wanted = [
        (batch, count, number)
        for number in sorted(set(devices))
        for count in (counts if number == 1 else counts[-1:])
        for batch in sorted(set(batches))
    ]
    points += [predict(where, points, laws) for where in wanted if where not in done]
    order = sorted(points, key=lambda p: (p.devices, p.threads or 0, p.batch))
    # A line through one point is of interest to what it predicted only.
    used = [law for point in points for law in point.laws]
    kept = [law for law in laws if len(law.fitted_to) > 1 or law in used]
    name, share = pool.name(numbers[-1]), max(shares, default=None)
    if (said := disturbance(share)) is not None:
        logger.warning("%s", said)
    return Scaling(network.target, name, tuple(order), tuple(kept), pool.driver, share)


def check_numbers(name: str, numbers: Sequence[int]) -> None:
    """Raise `InputError` for numbers below 1 or beyond all sense, and for none at all."""
    wrong = [str(number) for number in numbers if not 1 <= number <= _MOST]
    if wrong or not numbers:
        raise InputError(
            f"Numbers of {name} have to be from 1 to {_MOST}, got {', '.join(wrong) or 'none'}.",
            remedy=f"Give others, for example `{name}=1,2,4`.",
        )


def _ask(
    worker: Worker, pool: DevicePool, path: Path, *arguments: object, limit_s: float
) -> Timing:
    """Measure in the worker; its errors are raised here as they are."""
    try:
        answer = worker.call(_measure, pool, path, *arguments, timeout_s=limit_s)
    except (WorkerLostError, RuntimeError) as error:
        raise DeviceError(
            f"Measuring {path.name} failed in a process of its own: {error}.",
            remedy="Leave that batch out, or compile it and look at it with `tvmflow run`.",
        ) from error
    if isinstance(answer, TvmflowError):
        raise answer
    return answer


def _measure(
    pool: DevicePool,
    path: Path,
    batched: frozenset[str],
    devices: int,
    threads: int | None,
    seconds: float,
    seed: int,
) -> Timing | TvmflowError:
    """Time calls, in the worker."""
    try:
        modules = pool.modules(path, devices)
        with closing(modules[0] if devices == 1 else DataParallel(modules, batched)) as network:
            times = benchmark(network, seconds=seconds, seed=seed)
        if threads is not None:
            pool.check_threads(threads)
    except TvmflowError as error:
        return error
    return times
