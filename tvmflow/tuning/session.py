"""A tuning session: a network's tasks, a device, a journal, and the results."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..compiler.compilation import Compilation
from ..compiler.options import CompileOptions
from ..compiler.pipeline import compile as compile_network
from ..devices.host import Host
from ..errors import TvmflowError
from ..ir.units import counted
from ..journal.journal import Journal
from ..journal.records import Device, Event
from ..module.link import check_linker
from ..module.load import load
from ..module.module import Module
from ..module.samples import random_inputs
from ..runtime.load import Watch as LoadWatch
from ..runtime.load import disturbance
from ..runtime.timing import elapsed_ms
from .alternatives import Decision, alternatives_of, tune_alternatives
from .building import Builder
from .choose_search import check_search, searches
from .cluster import ClusterBuilder
from .measure import Config, LocalRunner, Runner, Standing
from .tasks import Knobs, Task, network_tasks, reference_task
from .timing import is_faster
from .tuner import Budget, Progress, Tuner, Watch

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

#: Runs of each module when two networks are compared.
COMPARED_RUNS = 30


@dataclass(frozen=True)
class Network:
    """A model to tune, and its compile options."""

    model: str | os.PathLike[str] | onnx.ModelProto
    options: CompileOptions = field(default_factory=CompileOptions)

    def tasks(self) -> list[Task]:
        """Return the network's tasks."""
        return network_tasks(self.job())

    def job(self) -> Compilation:
        """Return a compilation of the network that has run no stage yet."""
        return Compilation(self.model, self.options)


@dataclass(frozen=True)
class Comparison:
    """Times of the whole network with the heuristics' knobs and with the tuned ones, in turn."""

    before_ms: float
    after_ms: float
    #: Whether it is significantly slower with the tuned knobs, despite disturbances of single runs.
    is_slower: bool = False


@dataclass(frozen=True)
class Tuned:
    """Results of a session."""

    progress: list[Progress]
    seconds: float
    #: ``None`` if another machine's device measured, or no comparison was requested.
    comparison: Comparison | None
    #: Measured decisions on algorithms and storage; ``progress`` is of the network with them.
    settled: list[Decision]
    #: Contribution of each device of a farm.
    devices: Sequence[Standing] = ()
    #: Devices that measured, with their drivers.
    measured_on: Sequence[Device] = ()
    #: Share of the processors' time that other programs used meanwhile, 0 to 1, if it is known and
    #: this machine measured.
    others_share: float | None = None

    def __repr__(self) -> str:
        tasks, trials = len(self.progress), sum(p.trials for p in self.progress)
        text = f"{counted(tasks, 'task')}, {counted(trials, 'trial')} in {self.seconds:.0f} s"
        if self.comparison is not None:
            before, after = self.comparison.before_ms, self.comparison.after_ms
            text += f"; network {before:.2f} ms before, {after:.2f} ms after"
        return f"<Tuned: {text}>"

    @property
    def knobs(self) -> dict[str, Knobs]:
        """Return the best knobs by primary function, without those that equal the heuristic's."""
        return {
            name: progress.best_knobs
            for progress in self.progress
            if progress.best_knobs and progress.best_knobs != progress.task.heuristic
            for name in progress.task.names
        }


@dataclass(frozen=True)
class Options:
    """Settings of a session's search and measurements."""

    budget: Budget = field(default_factory=Budget)
    search: str = "evolutionary"
    seed: int = 0
    #: Build processes; ``None`` means one a core.
    workers: int | None = None
    #: Address of a Dask scheduler whose workers build candidates; ``None`` means this machine.
    build_on: str | None = None
    device_index: int = 0
    measuring: Config = field(default_factory=Config)
    #: Whether the whole network is compared before and after.
    compare: bool = True


class Devices(Protocol):
    """Interface of remote devices that measure, as :class:`tvmflow.farm.runner.Farm` has."""

    @property
    def key(self) -> str:
        """Return the key that the devices are lent for; trials of one key are compared."""

    @property
    def builds_kernels(self) -> bool:
        """Return whether candidates are kernels without host code (`CandidateKernels`)."""

    def check(self, device: str, host: Host) -> None:
        """Check whether the devices can have this preset and host; raises a `TvmflowError`."""

    def runner(self, kind: str, measuring: Config, listener: Callable[[Event], None]) -> Runner:
        """Return a runner on all devices, which reports its events to ``listener``."""


def tune(
    network: Network,
    journal: str | os.PathLike[str],
    options: Options | None = None,
    *,
    relatives: Sequence[str | os.PathLike[str]] = (),
    farm: Devices | None = None,
    watch: Watch | None = None,
) -> Tuned:
    """Tune a network's primary functions, continuing after the journal's last trial.

    The journal gets every trial, and is created if it does not exist.  ``relatives`` are journals
    of other devices, whose best knobs are tried first; the devices of a ``farm`` measure instead of
    this machine's; ``watch`` is called whenever a trial has ended.

    Raises `TvmflowError` if the model, the target, a journal or the device fails.
    """
    options = options or Options()
    check_search(options.search)
    began, load_watch = time.monotonic(), LoadWatch()
    requested = network.options
    host = Host.parse(requested.host)
    if farm is not None:
        farm.check(requested.device, host)
    spec = requested.resolve()
    as_kernels = farm is not None and farm.builds_kernels
    if not as_kernels:
        check_linker(host)
    with ExitStack() as stack:
        output = stack.enter_context(Journal.open(journal, "a"))
        others = [stack.enter_context(Journal.open(path)) for path in relatives]
        # On a CPU, the driver's compiler takes most of a trial's time, so builds run it.
        compiles = farm is None and spec.kind == "opencl" and spec.device.is_cpu
        builder: Builder
        if options.build_on is not None:
            builder = ClusterBuilder(
                *(options.build_on, host), workers=options.workers, as_kernels=as_kernels
            )
        else:
            builder = Builder(
                options.workers,
                device_index=options.device_index if compiles else None,
                as_kernels=as_kernels,
            )
        stack.callback(builder.close)
        alternatives = alternatives_of(network.job())
        measuring = replace(
            options.measuring, reference=builder.submit(reference_task(spec), None).result()
        )
        runner: Runner
        if farm is not None:
            runner = farm.runner(spec.kind, measuring, output.append)
        else:
            runner = LocalRunner(
                *(spec.kind, options.device_index, measuring),
                # On a CPU, builds would run on the same cores as the measured kernels.
                exclusive_cpu=(lambda: builder.exclusive_cpu) if spec.device.is_cpu else None,
                programs=builder.programs,
            )
        stack.callback(runner.close)

        def measure(tasks: Sequence[Task], budget: Budget) -> list[Progress]:
            tuner = Tuner(
                *(tasks, builder, runner, output, budget),
                searches(options.search, options.seed, budget.trials),
                relatives=others,
                key=farm.key if farm is not None else "",
                watch=watch,
            )
            return tuner.run()

        result = tune_alternatives(alternatives, measure, options.budget.since(began), output)
        standings, measured_on = runner.standings(), runner.devices()
    points = [point for p in result.progress for point in p.points]
    if points and all(point.error for point in points):
        # If all trials failed, the candidates are not the cause.
        raise TvmflowError(
            f"Tuning found nothing: all of its {len(points)} trials failed.",
            remedy="Try `tvmflow compile` and `tvmflow bench` with the same options, which show "
            "whether the device works.",
            details=points[0].error,
        )
    spent = time.monotonic() - began
    found = Tuned(result.progress, spent, None, result.settled, standings, measured_on)
    if farm is None and options.compare and any(p.trials for p in found.progress):
        chosen = replace(requested, storage=result.storage, algorithms=result.algorithms)
        after = replace(network, options=chosen)
        comparison = compare_networks(network, after, found.knobs, options.device_index)
        found = replace(found, comparison=comparison)
        if comparison.is_slower:
            logger.warning(
                "The network is slower with the knobs that were found than with the heuristics. "
                "Compile it without %s, or tune with a new journal while nothing else uses the "
                "device.",
                journal,
            )
    if farm is not None:
        return found
    share = load_watch.others_share()
    if (said := disturbance(share)) is not None:
        logger.warning("%s The knobs that were found may not be the best.", said)
    return replace(found, others_share=share)


def compare_networks(
    before: Network, after: Network, knobs: Mapping[str, Knobs], device_index: int = 0
) -> Comparison:
    """Measure a network before and after, with knobs, in turn on the same device."""
    with ExitStack() as stack:
        old = _running(stack, before, {}, device_index)
        new = _running(stack, after, knobs, device_index)
        inputs, modules = random_inputs(old, 0), (old, new)
        times = [[elapsed_ms(partial(m, inputs)) for m in modules] for _ in range(COMPARED_RUNS)]
    # The first calls build kernels.
    earlier, later = zip(*times[3:], strict=True)
    is_slower = is_faster([a / b for a, b in zip(earlier, later, strict=True)])
    return Comparison(statistics.median(earlier), statistics.median(later), is_slower)


def _running(
    stack: ExitStack, network: Network, knobs: Mapping[str, Knobs], device_index: int
) -> Module:
    """Compile a network with knobs by the names of primary functions, and load it."""
    compiled = compile_network(network.model, options=network.options, knobs=knobs)
    path = stack.enter_context(compiled).path
    return stack.enter_context(load(path, device=device_index))
