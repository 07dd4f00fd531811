"""Measure throughput over batches, threads and devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._versions import REQUIRED_TVM, __version__
from ...errors import DeviceError, TvmflowError
from ...ir.units import counted
from ...module.bench import Timing, benchmark
from ...runtime.json_types import JsonObject
from ...runtime.load import disturbance
from ...runtime.process import Worker, WorkerLostError
from .data_parallel import DataParallel
from .devices import check_numbers

if TYPE_CHECKING:
    from ...runtime.timing import Spread
    from .devices import DevicePool
    from .sources import Network

logger = logging.getLogger(__name__)

#: Time limit for loading and the first calls, in which drivers compile; measuring adds to it.
_START_LIMIT_S = 600.0


@dataclass(frozen=True)
class Point:
    """Throughput with one batch size, number of threads and number of devices."""

    #: Samples of a call on each device.
    batch: int
    #: Threads of the CPU; ``None`` if no number was requested.
    threads: int | None
    #: Number of devices, each of which computes a batch.
    devices: int
    #: Samples per second of all devices together, in the median call.
    items_per_s: float
    #: Samples per second at the 90th and at the 10th percentile of the calls' times.
    low_per_s: float
    high_per_s: float
    #: Time of a call, including copies to and from the device.
    median_ms: float
    p10_ms: float
    p90_ms: float

    @classmethod
    def of_calls(cls, batch: int, threads: int | None, devices: int, times: Spread) -> Point:
        """Compute throughput from the times of calls."""
        ms = times.median_ms, times.p10_ms, times.p90_ms
        rate, high, low = (batch * devices / each * 1e3 for each in ms)
        return cls(batch, threads, devices, rate, low, high, *ms)


@dataclass(frozen=True)
class Scaling:
    """Measured points, and the device and driver they were measured with."""

    target: str
    device_name: str
    points: tuple[Point, ...]
    driver: str = ""  #: Platform, driver and version; empty on a farm.
    #: Largest share of the processors' time, 0 to 1, that other programs took at one of the points.
    others_share: float | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of tvmflow and TVM that measured."""
        return {"tvmflow": __version__, "TVM": REQUIRED_TVM["apache-tvm"]}

    def described(self) -> JsonObject:
        """Return the points, the device and the versions as a JSON object."""
        return asdict(self) | {"versions": self.versions}


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
    devices and the most threads.  Each point has ``seconds`` for its calls, and ``watch`` is called
    with a description of the next step.

    `InputError` if a number is not possible, or a batch cannot be split over devices; `DeviceError`
    if threads cannot be set; `FarmError` if a server is busy or fails.
    """
    batches = check_numbers("batches", batches, network.modules)
    # One device is always measured, for comparison with several.
    numbers = check_numbers("devices", [1, *devices], range(1, pool.existing + 1))
    counts: Sequence[int | None] = check_numbers("threads", threads) if threads else [None]
    points: list[Point] = []
    shares: list[float] = []
    for count in counts:
        of_devices = numbers if count == counts[-1] else [1]
        limit_s = _START_LIMIT_S + 10 * seconds
        with closing(Worker({} if count is None else pool.environment(count))) as worker:
            watch("starting")
            pool.prepare(worker, of_devices[-1], limit_s * len(of_devices) * len(batches))
            for number in of_devices:
                for batch in batches:
                    named = [f"batch {batch}", counted(number, "device")]
                    named += [] if count is None else [counted(count, "thread")]
                    watch("measuring " + ", ".join(named))
                    path = network.modules[batch]
                    work = (pool, path, network.batched, number, count, seconds, seed)
                    times = _ask(worker, *work, limit_s=limit_s)
                    points.append(Point.of_calls(batch, count, number, times))
                    shares += [] if times.others_share is None else [times.others_share]
    points.sort(key=lambda p: (p.devices, p.threads or 0, p.batch))
    share = max(shares, default=None)
    if (said := disturbance(share)) is not None:
        logger.warning("%s", said)
    return Scaling(network.target, pool.name(numbers[-1]), tuple(points), pool.driver, share)


def _ask(
    worker: Worker, pool: DevicePool, path: Path, *arguments: object, limit_s: float
) -> Timing:
    """Measure in the worker, and raise its errors here."""
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
