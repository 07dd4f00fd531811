"""A tuning session: a network's tasks, a device, a journal, and what came of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compilation import Compilation
from ..deploy.artifact import EMBED_LIMIT_BYTES
from ..deploy.link import Host, check_linker
from ..deploy.module import Module
from ..errors import TargetError, TvmflowError
from ..pipeline import compile as compile_network
from ..precision import check_accumulate, check_dtype
from ..target import TargetSpec, resolve, with_dtype, with_storage
from .budget import Budget
from .builder import Builder
from .comparison import Comparison, compare
from .journal import Journal
from .measure import Config
from .progress import Knobs, Progress, Standing, Watch
from .reference import reference_task
from .runner import LocalRunner, Runner
from .search import GridSearch, NeighbourhoodSearch, RandomSearch, Search, check_search
from .tasks import Task, extract_tasks, run_part
from .tuner import Tuner
from .variants import Settled, tune_variants, variants_of

if TYPE_CHECKING:
    from ..farm.address import Address

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Network:
    """What is tuned: a model, and how it is compiled; see :func:`tvmflow.compile`."""

    model: Any
    target: str = "opencl"
    device: str = "auto"
    host: str | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    storage: str = "auto"
    dtype: str = "fp32"
    accumulate: str = "fp32"
    algorithms: Mapping[str, str] = field(default_factory=dict)

    def spec(self) -> TargetSpec:
        """The target, checked.

        Raises
        ------
        TargetError
            If something of it is unknown or impossible.
        """
        spec = with_storage(resolve(self.target, self.device, self.host), self.storage)
        check_dtype(spec, self.dtype)
        check_accumulate(spec, self.accumulate, self.dtype, self.device)
        return with_dtype(spec, self.dtype)

    def tasks(self) -> list[Task]:
        """The network's tasks."""
        job = self.job()
        return extract_tasks(run_part(job, "import", "schedule"), job.target)

    def job(self) -> Compilation:
        """A compilation of it that has run no stage yet."""
        return Compilation(
            source=self.model,
            shapes=self.shapes,
            target=self.spec(),
            output=Path(),
            embed_limit_bytes=EMBED_LIMIT_BYTES,
            options={},
            storage=self.storage,
            dtype=self.dtype,
            accumulate=self.accumulate,
            algorithms=self.algorithms,
        )

    def compile(self, knobs: Mapping[str, Knobs]) -> Module:
        """Compile it with knobs by the names of primary functions."""
        return compile_network(
            self.model,
            target=self.target,
            device=self.device,
            host=self.host,
            shapes=self.shapes,
            storage=self.storage,
            dtype=self.dtype,
            accumulate=self.accumulate,
            algorithms=self.algorithms,
            knobs=knobs,
        )


@dataclass(frozen=True)
class Tuned:
    """What a session found."""

    progress: list[Progress]
    seconds: float
    #: ``None`` where the device is not of this machine, or nobody asked.
    comparison: Comparison | None
    #: Algorithms and storage that were measured; the progress is that of the network with them.
    settled: list[Settled]
    #: What each device of a farm contributed.
    devices: Sequence[Standing] = ()

    @property
    def knobs(self) -> dict[str, Knobs]:
        """The best knobs by the names of primary functions, those of heuristics left out."""
        return {
            name: progress.best_knobs
            for progress in self.progress
            if progress.best_knobs and progress.best_knobs != progress.task.heuristic
            for name in progress.task.names
        }


@dataclass(frozen=True)
class Options:
    """How a session searches and measures."""

    budget: Budget = field(default_factory=Budget)
    search: str = "evolutionary"
    seed: int = 0
    #: Build processes; ``None`` is one a core.
    workers: int | None = None
    device_index: int = 0
    measuring: Config = field(default_factory=Config)
    #: Whether the whole network is compared before and after.
    compare: bool = True


@dataclass(frozen=True)
class Farm:
    """Devices at a tracker that measure instead of this machine's."""

    tracker: str
    key: str
    #: Holds the secret that the tracker and its servers ask for.
    secret_file: Path | None = None

    def address(self) -> Address:
        """Return the tracker's address, with the secret.

        Raises
        ------
        FarmError
            If it is not of the form, or the secret cannot be used.
        """
        from ..farm.address import Address

        return Address.parse(self.tracker, self.secret_file)


def tune(
    network: Network,
    journal: str | os.PathLike[str],
    options: Options | None = None,
    *,
    relatives: Sequence[str | os.PathLike[str]] = (),
    farm: Farm | None = None,
    watch: Watch | None = None,
) -> Tuned:
    """Tune a network's primary functions, beginning where the journal left off.

    Parameters
    ----------
    network
        What is tuned.
    journal
        Gets every trial; made where there is none.
    options
        How to search and measure.
    relatives
        Journals of other devices, whose best knobs are tried first.
    farm
        Devices that measure; default this machine's.
    watch
        Called whenever a trial has ended.

    Raises
    ------
    TvmflowError
        If the model, the target, a journal or the device does not work.
    """
    options = options or Options()
    check_search(options.search)
    _check_packages(options.search)
    began = time.monotonic()
    if farm is not None:
        _check_farm(farm, network)
    spec = network.spec()
    check_linker(Host.parse(network.host) if network.host else Host.native())
    with ExitStack() as stack:
        book = stack.enter_context(Journal.open(journal, "a"))
        others = [stack.enter_context(Journal.open(path)) for path in relatives]
        variants = variants_of(network.job())
        # On a CPU, the driver's compiler takes most of a trial's time.
        compiles = farm is None and spec.kind == "opencl" and spec.device.is_cpu
        builder = Builder(options.workers, device_index=options.device_index if compiles else None)
        stack.callback(builder.close)
        measuring = replace(
            options.measuring, reference=builder.submit(reference_task(spec), None).result()
        )
        devices = _runner(spec, replace(options, measuring=measuring), builder, farm, book)
        stack.callback(devices.close)

        def measure(tasks: Sequence[Task], budget: Budget) -> list[Progress]:
            tuner = Tuner(
                *(tasks, builder, devices, book, budget),
                searches(options.search, options.seed, budget.trials),
                relatives=others,
                key=farm.key if farm is not None else "",
                watch=watch,
            )
            return tuner.run()

        result = tune_variants(variants, measure, options.budget, book)
        standings = devices.standings()
    _refuse_silence(result.progress)
    found = Tuned(result.progress, time.monotonic() - began, None, result.settled, standings)
    if farm is None and options.compare and any(p.trials for p in found.progress):
        after = replace(network, storage=result.storage, algorithms=result.algorithms)
        comparison = compare(network, after, found.knobs, options.device_index)
        found = replace(found, comparison=comparison)
        if comparison.is_slower:
            logger.warning(
                "The network is slower with the knobs that were found than with the heuristics. "
                "Compile it without %s, or tune with a new journal while nothing else uses the "
                "device.",
                journal,
            )
    return found


def _refuse_silence(progress: Sequence[Progress]) -> None:
    """Raise where every trial failed: then it is not for the candidates."""
    points = [point for p in progress for point in p.points]
    if points and all(point.error for point in points):
        raise TvmflowError(
            f"Tuning found nothing: all of its {len(points)} trials failed.",
            remedy="Try `tvmflow compile` and `tvmflow bench` with the same options, which show "
            "whether the device works.",
            details=points[0].error,
        )


def _check_packages(search: str) -> None:
    """Refuse a search that lacks a package, before minutes of work that need none."""
    if search != "evolutionary":
        return
    try:
        import xgboost  # noqa: F401
    except ImportError as error:
        raise TvmflowError(
            "The evolutionary search needs the package xgboost, which is not installed.",
            remedy="python -m pip install 'tvmflow[tuning]', or choose --search random.",
        ) from error


def _check_farm(farm: Farm, network: Network) -> None:
    """Refuse what would fail only after the network's tasks are found."""
    from ..farm.tracker import Tracker, check_host, check_served

    if network.device == "auto":
        raise TargetError(
            "Tuning on a farm needs the preset of its devices, but the device is 'auto', which "
            "stands for the OpenCL device of this machine.",
            remedy="Name it, for example with --device adreno.",
        )
    with Tracker(farm.address()) as tracker:
        servers = check_served(tracker, farm.key)
    check_host(servers, Host.parse(network.host) if network.host else Host.native())


def _runner(
    spec: TargetSpec, options: Options, builder: Builder, farm: Farm | None, journal: Journal
) -> Runner:
    """What measures."""
    if farm is not None:
        from ..farm.runner import FarmRunner

        return FarmRunner(
            *(farm.address(), farm.key, spec.kind, options.measuring), listener=journal.append
        )
    # On a CPU, builds would run on the cores that are to be measured.
    quiet = (lambda: builder.quiet) if spec.device.is_cpu else None
    return LocalRunner(
        *(spec.kind, options.device_index, options.measuring),
        quiet=quiet,
        programs=builder.programs,
    )


def searches(kind: str, seed: int, trials: int) -> Callable[[Task], Search]:
    """What makes the search of each task."""
    models: dict[str, Any] = {}

    def make(task: Task) -> Search:
        if kind == "grid":
            return GridSearch(task, seed, trials)
        if kind == "neighbourhood":
            return NeighbourhoodSearch(task, seed)
        if kind == "random" or not task.is_tunable:
            return RandomSearch(task, seed)
        from .evolution import EvolutionarySearch, cost_model

        # Tasks of a family share what is learnt.
        model = models.setdefault(task.family.NAME, cost_model(seed))
        return EvolutionarySearch(task, seed, model)

    return make
