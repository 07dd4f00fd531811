"""A tuning session: a network's tasks, a device, a journal, and what came of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..compiler.compilation import Compilation
from ..compiler.options import CompileOptions
from ..compiler.pipeline import compile as compile_network
from ..compiler.pipeline import run_stages
from ..devices.host import Host
from ..devices.target import TargetSpec
from ..errors import TvmflowError
from ..journal.journal import Journal
from ..journal.records import Event
from ..module.link import check_linker
from ..module.module import Module
from .budget import Budget
from .builder import Builder
from .comparison import Comparison, compare
from .measure import Config
from .progress import Knobs, Progress, Standing, Watch
from .reference import reference_task
from .runner import LocalRunner, Runner
from .search import GridSearch, NeighbourhoodSearch, RandomSearch, Search, check_search
from .tasks import Task, extract_tasks
from .tuner import Tuner
from .variants import Settled, tune_variants, variants_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Network:
    """What is tuned: a model, and how it is compiled."""

    model: Any
    options: CompileOptions = field(default_factory=CompileOptions)

    def tasks(self) -> list[Task]:
        """The network's tasks."""
        job = self.job()
        return extract_tasks(run_stages(job, until="weights"), job.target)

    def job(self) -> Compilation:
        """A compilation of it that has run no stage yet."""
        return Compilation(self.model, self.options)

    def compile(self, knobs: Mapping[str, Knobs]) -> Module:
        """Compile it with knobs by the names of primary functions."""
        return compile_network(self.model, options=self.options, knobs=knobs)


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


class Devices(Protocol):
    """Devices of other machines that measure; :class:`tvmflow.farm.tuning.Farm` has some."""

    @property
    def key(self) -> str:
        """What they are lent for: trials of one key are compared."""

    def check(self, device: str, host: Host) -> None:
        """Refuse a preset or a host that they cannot have; raises a `TvmflowError`."""

    def runner(self, kind: str, measuring: Config, listener: Callable[[Event], None]) -> Runner:
        """What measures on all of them, and tells the journal of its events."""


def tune(
    network: Network,
    journal: str | os.PathLike[str],
    options: Options | None = None,
    *,
    relatives: Sequence[str | os.PathLike[str]] = (),
    farm: Devices | None = None,
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
    asked = network.options
    host = Host.parse(asked.host) if asked.host else Host.native()
    if farm is not None:
        farm.check(asked.device, host)
    spec = asked.resolve()
    check_linker(host)
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
        chosen = replace(asked, storage=result.storage, algorithms=result.algorithms)
        after = replace(network, options=chosen)
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
            remedy="python -m pip install 'tvmflow[tuning]', or choose `search=random`.",
        ) from error


def _runner(
    spec: TargetSpec, options: Options, builder: Builder, farm: Devices | None, journal: Journal
) -> Runner:
    """What measures."""
    if farm is not None:
        return farm.runner(spec.kind, options.measuring, journal.append)
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
