"""Tuning of tasks: propose, build, measure and record candidates, all at the same time.

One thread keeps the state.  Builds and measurements run in processes, whose results arrive through
a queue.  A task has up to two batches in progress, and learns from them in the order in which they
were proposed.  Each candidate is measured in turn with the best one so far; trials from earlier
sessions count, too.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from .. import _versions
from ..journal.journal import Journal
from ..journal.records import Device, Error, Trial
from .building import Builder, Built, Case, finished, locked
from .measure import BUILD, CHANGED, CRASH, DEVICE, TIMEOUT, WRONG, Measured, Runner, Standing
from .search import Search, key_of
from .tasks import Knobs, Task
from .timing import rated

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Versions of the software that builds and runs candidates.
TOOLCHAIN = {"tvmflow": _versions.__version__, "tvm": _versions.REQUIRED_TVM["apache-tvm"]}
#: Candidates in a batch.
BATCH = 8
#: Batches of a task in progress.
DEPTH = 2
_ERRORS = {
    BUILD: Error.HOST_BUILD,
    WRONG: Error.WRONG_RESULT,
    CRASH: Error.RUNTIME,
    TIMEOUT: Error.RUN_TIMEOUT,
    DEVICE: Error.RUNTIME,
}
#: Largest cost relative to the best that counts as an improvement.
IMPROVEMENT = 0.99
#: Number of pauses, and seconds of each, before a device whose speed changed is measured again.
REPEATS, PAUSE_S = 2, 5.0
#: Largest change of the reference kernel that leaves a cost without a rival uncorrected.
STEADY = 0.1


# -- progress ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Limits that end tuning."""

    #: Trials of each task, including those of earlier sessions.
    trials: int = 32
    #: Seconds of the whole session, or ``None``.
    seconds: float | None = None
    #: Trials without an improvement after which a task is left, or ``None``.
    patience: int | None = None

    def since(self, began: float) -> Budget:
        """Return the rest of the budget of a session that began at ``began`` (monotonic clock)."""
        if self.seconds is None:
            return self
        return replace(self, seconds=max(0.0, self.seconds - (time.monotonic() - began)))


@dataclass(frozen=True)
class Point:
    """A finished trial of a task."""

    #: Seconds of one run; infinite for a failure.
    cost: float
    error: str | None


@dataclass
class Progress:
    """Progress of a task."""

    task: Task
    heuristic: float = float("inf")
    best: float = float("inf")
    best_knobs: Knobs = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    #: Trials since the last improvement.
    idle: int = 0

    @property
    def trials(self) -> int:
        """Return the number of ended trials: measured, failed or equal to another one."""
        return len(self.points)

    @property
    def failures(self) -> int:
        """Return the number of trials without a cost."""
        return sum(point.error is not None for point in self.points)

    @property
    def time(self) -> float:
        """Return the seconds of all calls in a run of the network, with the best knobs."""
        return self.task.calls * self.best

    @property
    def speedup(self) -> float:
        """Return the speed-up over the heuristic; 1 before both costs are known."""
        return self.heuristic / self.best if math.isfinite(self.heuristic + self.best) else 1.0

    def take(self, knobs: Knobs, point: Point, is_heuristic: bool) -> None:
        """Add a finished trial."""
        self.points.append(point)
        if is_heuristic:
            self.heuristic = point.cost
        self.idle = 0 if point.cost < IMPROVEMENT * self.best else self.idle + 1
        if point.cost < self.best:
            self.best, self.best_knobs = point.cost, knobs


#: Called whenever a trial has ended, with all tasks and the farm's devices.
Watch = Callable[[Sequence[Progress], Sequence[Standing]], None]


# -- prior trials --------------------------------------------------------------------------------

# Costs of different devices, or of one device with different drivers, cannot be compared.  From
# other devices' trials, also in the same journal, only the best knobs are taken, to be tried early.


def trials_of(
    task: Task, journal: Journal, devices: Sequence[Device]
) -> tuple[list[Trial], list[Trial]]:
    """Return a journal's trials of a task on these devices, and the best of each other device.

    Predictions for a device count as another device's.
    """
    own: list[Trial] = []
    others: dict[Device, Trial] = {}
    target = task.journal_target
    measured, predicted = target.compatibility_key, target.predicted.compatibility_key
    for trial in journal.trials(task.workload):
        is_measured = trial.target.compatibility_key == measured
        if trial.target.compatibility_key not in (measured, predicted) or not _fits(task, trial):
            continue
        if is_measured and any(_is_same(trial.device, device) for device in devices):
            own.append(trial)
        elif trial.cost < getattr(others.get(trial.device), "cost", float("inf")):
            others[trial.device] = trial
    return own, list(others.values())


def _is_same(measured: Device, device: Device) -> bool:
    """Return whether two devices are the same, as far as both are known."""
    if not measured.name:
        # It was not measured: the build failed, or the process ended.
        return True
    if not device.name:
        # A stock server reports its name only when it is lent.
        return measured.rpc_key == device.rpc_key
    drivers = {measured.driver, device.driver} - {""}
    return measured.name == device.name and len(drivers) < 2


def knobs_of_others(
    task: Task, others: Iterable[Trial], relatives: Iterable[Journal]
) -> list[Knobs]:
    """Return the best knobs of other devices that this device allows.

    Journals of ``relatives`` may have the same loops only with other storage.
    """
    targets = task.journal_target, task.journal_target.predicted
    nearest = (j.nearest(task.workload, target) for j in relatives for target in targets)
    trials = [t for t in (*others, *nearest) if t is not None and _fits(task, t)]
    return list({key_of(trial.knobs): dict(trial.knobs) for trial in trials}.values())


def _fits(task: Task, trial: Trial) -> bool:
    """Return whether a trial has this task's knobs, and this device allows them."""
    return trial.knobs.keys() == task.space.keys() and task.allows(trial.knobs)


# -- candidates against the best one so far ------------------------------------------------------

#: A function that has a callback called with a future's result, in the thread of the state.
WhenDone = Callable[[Future[T], Callable[[T], None]], None]


@dataclass(frozen=True)
class _Incumbent:
    built: Future[Built]
    cost: float


@dataclass
class PairedComparison:
    """Measurement of a task's candidates, each against the best one so far, the *incumbent*.

    A cost is the incumbent's cost times the ratio of both, timed in turn: a chain of ratios that
    starts with the heuristic's cost, which is measured first and the only one that is measured
    alone.
    """

    task: Task
    builder: Builder
    runner: Runner
    when_done: WhenDone
    #: Number of vain pauses for each device, shared by all tasks.
    pauses: Counter[str]
    #: Best knobs of an earlier session and their cost; they are built when needed.
    prior: tuple[Knobs, float] | None

    def __post_init__(self) -> None:
        self._case: Future[Case] | None = None
        self._incumbent: _Incumbent | None = None
        #: Results of candidates, and callbacks that wait for results, by the hash of their source.
        self._known: dict[str, Measured] = {}
        self._waiting: dict[str, list[Callable[[Measured], None]]] = {}

    def submit(self, built: Built, done: Callable[[Measured], None]) -> None:
        """Queue a candidate for measurement, unless it is identical to another one."""
        source = built.source_hash
        if not source:
            done(Measured((), BUILD, str(built.error)))
        elif source in self._known:
            done(self._known[source])
        elif source in self._waiting:
            self._waiting[source].append(done)
        else:
            self._waiting[source] = [done]
            self._measure(built)

    def _measure(self, candidate: Built) -> None:
        """Queue a candidate once its task's case and its incumbent are built."""
        if self._case is None:
            self._case = self.builder.make_case(self.task)
        if self.prior is not None:
            knobs, cost = self.prior
            self._incumbent = _Incumbent(self.builder.submit(self.task, knobs), cost)
            self.prior = None
        rival = self._incumbent

        def submit(case: Case, built: Built | None) -> None:
            against = rival
            if built is not None and built.path is None:
                logger.warning("The best knobs so far can no longer be built: %s", built.error)
                self._incumbent = against = built = None
            done = self.runner.submit(candidate, case, built)
            self.when_done(done, partial(self._measured, candidate, against))

        def with_case(case: Case) -> None:
            if rival is None:
                submit(case, None)
            else:
                self.when_done(rival.built, partial(submit, case))

        self.when_done(self._case, with_case)

    def _measured(self, candidate: Built, rival: _Incumbent | None, measured: Measured) -> None:
        # An incumbent is slowed in the same way, so that the ratio is not affected.
        if rival is None and self._worth_waiting(measured):
            time.sleep(PAUSE_S)
            self._measure(candidate)
            return
        if measured.error is None:
            measured = replace(measured, costs=_costs(rival, measured), ratios=())
            best = self._incumbent
            is_better = best is None or measured.cost < best.cost
            # If another candidate became the best meanwhile, measure again against that one.
            # Without a rival, the cost is not part of the chain of ratios, and may be of another
            # device.
            if (best is not rival) if is_better else (rival is None):
                self._measure(candidate)
                return
            if is_better:
                self._incumbent = _Incumbent(finished(candidate), measured.cost)
        self._known[candidate.source_hash] = measured
        for done in self._waiting.pop(candidate.source_hash):
            done(measured)

    def _worth_waiting(self, measured: Measured) -> bool:
        """Return whether to wait for a device to return to its initial speed."""
        device = measured.device
        if max(measured.drift, 1 / measured.drift) <= CHANGED:
            self.pauses[device] = 0
        elif self.pauses[device] < REPEATS:
            logger.info("%s has %.2f times its first costs: pausing", device, measured.drift)
            self.pauses[device] += 1
            return True
        return False


def _costs(rival: _Incumbent | None, measured: Measured) -> tuple[float, ...]:
    """Return the costs of a candidate, corrected for the rival or for drift."""
    if rival is not None:
        return rated(measured.ratios, rival.cost)
    if abs(measured.drift - 1) <= STEADY:
        return measured.costs
    return tuple(cost / measured.drift for cost in measured.costs)


# -- the tuner -----------------------------------------------------------------------------------


@dataclass
class _Trial:
    """A candidate in progress."""

    state: _State
    knobs: Knobs
    source: str
    started: float
    #: Its cost, which is learnt once the whole batch is done.
    cost: float | None = None


@dataclass
class _State:
    """State of a task."""

    progress: Progress
    search: Search
    comparison: PairedComparison
    #: Knobs to try before the search begins, with their source in the records: the heuristic's
    #: knobs, then those of relatives.
    first: list[tuple[Knobs, str]]
    batches: list[list[_Trial]] = field(default_factory=list)
    exhausted: bool = False

    @property
    def under_way(self) -> int:
        return sum(trial.cost is None for batch in self.batches for trial in batch)

    @property
    def awaits_heuristic(self) -> bool:
        return any(source == "heuristic" for _, source in self.first)


@dataclass
class Tuner:
    """Tuner for the tasks of a network."""

    #: Tasks to tune; those without knobs are measured once.
    tasks: Sequence[Task]
    #: Builder and runner of candidates, which the caller closes.
    builder: Builder
    runner: Runner
    #: Journal for every trial, which also has those of earlier sessions.
    journal: Journal
    budget: Budget
    #: Creates the search of a task.
    search: Callable[[Task], Search]
    #: Journals of other devices, whose best knobs are tried first.
    relatives: Sequence[Journal] = ()
    #: Key of the devices at a tracker, for the records.
    key: str = ""
    #: Called whenever a trial has ended.
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._devices = self.runner.devices()
        self._pauses: Counter[str] = Counter()
        self._states = [self._state(task, self.search(task)) for task in self.tasks]
        self.progress = [state.progress for state in self._states]
        self._open = 0
        #: Trials of this session that have ended.
        self._ended = 0

    def run(self) -> list[Progress]:
        """Tune until the budget is used up; results are also in the journal."""
        while True:
            self._propose()
            if not self._open:
                return self.progress
            self._events.get()()

    # -- proposing ---------------------------------------------------------------------------

    def _state(self, task: Task, search: Search) -> _State:
        """Return a task's state with the trials of earlier sessions."""
        progress = Progress(task)
        own, others = trials_of(task, self.journal, self._devices)
        learned = [(dict(t.knobs), t) for t in own if search.note(t.knobs)]
        for knobs, trial in learned:
            error = f"{trial.error.name}: {trial.message}" if trial.error else None
            progress.take(knobs, Point(trial.cost, error), knobs == task.heuristic)
        search.learn([(knobs, trial.cost) for knobs, trial in learned])
        prior = (progress.best_knobs, progress.best) if math.isfinite(progress.best) else None
        shared = self.builder, self.runner, self._when_done, self._pauses
        elsewhere = knobs_of_others(task, others, self.relatives)
        chosen = [(task.heuristic, "heuristic"), *((knobs, "measured") for knobs in elsewhere)]
        first = [(knobs, source) for knobs, source in chosen if search.note(knobs)]
        return _State(progress, search, PairedComparison(task, *shared, prior), first)

    def _propose(self) -> None:
        """Propose candidates while there are any, until builds and devices have enough work."""
        while self._open < 3 * BATCH:
            ready = [state for state in self._states if self._may_propose(state)]
            if not ready or self._out_of_time():
                return
            state = max(ready, key=self._urgency)
            state.exhausted = not self._propose_for(state)

    def _may_propose(self, state: _State) -> bool:
        progress, budget = state.progress, self.budget
        if state.exhausted or len(state.batches) >= DEPTH:
            return False
        if progress.trials + state.under_way >= budget.trials and not state.awaits_heuristic:
            return False
        if budget.patience is not None and progress.idle >= budget.patience:
            return False
        # The search should know the heuristic's cost before it proposes.
        return bool(state.first) or not (state.batches and progress.trials == 0)

    def _urgency(self, state: _State) -> tuple[bool, float]:
        """Prefer unmeasured tasks, then those that take most time and still improve."""
        progress = state.progress
        if not math.isfinite(progress.best):
            return progress.trials == 0, float(progress.task.operations)
        return False, progress.time / (1 + (progress.idle + state.under_way) / BATCH)

    def _out_of_time(self) -> bool:
        seconds = self.budget.seconds
        if seconds is None or self._fitting() >= 1:
            return False
        # Without its heuristic's cost, a task has no result at all.
        return not any(state.awaits_heuristic for state in self._states)

    def _fitting(self) -> float:
        """Return how many more trials can end in time at the rate so far, without those queued."""
        spent = time.monotonic() - self._began
        if self.budget.seconds is None or spent >= self.budget.seconds:
            return math.inf if self.budget.seconds is None else 0.0
        if not self._ended:
            return math.inf
        return (self.budget.seconds - spent) * self._ended / spent - self._open

    def _propose_for(self, state: _State) -> bool:
        left = self.budget.trials - state.progress.trials - state.under_way
        left = int(min(left, max(1.0, self._fitting())))
        chosen = state.first[: max(1, min(BATCH, left))]
        del state.first[: len(chosen)]
        if not chosen and state.progress.task.is_tunable:
            with locked(self.builder.exclusive_cpu.lock):
                chosen = [(k, "measured") for k in state.search.propose(min(BATCH, left))]
        if not chosen:
            return False
        batch = [_Trial(state, knobs, source, time.monotonic()) for knobs, source in chosen]
        state.batches.append(batch)
        self._open += len(batch)
        for trial in batch:
            done = self.builder.submit(state.progress.task, trial.knobs)
            self._when_done(done, partial(self._built, trial))
        return True

    # -- results -----------------------------------------------------------------------------

    def _when_done(self, done: Future[T], callback: Callable[[T], None]) -> None:
        """Queue a callback with a future's result, or the exception that ends the session."""

        def enqueue(done: Future[T]) -> None:
            if not done.cancelled():
                self._events.put(lambda: callback(done.result()))

        # Called by another thread, or immediately.
        done.add_done_callback(enqueue)

    def _built(self, trial: _Trial, built: Built) -> None:
        trial.state.comparison.submit(built, partial(self._finish, trial, built))

    def _finish(self, trial: _Trial, built: Built, measured: Measured) -> None:
        """Record a trial, and let the search learn from complete batches."""
        state = trial.state
        self._open -= 1
        self._ended += 1
        trial.cost = measured.cost
        self.journal.append(self._record(trial, built, measured))
        error = f"{measured.error}: {measured.message}" if measured.error else None
        state.progress.take(trial.knobs, Point(measured.cost, error), trial.source == "heuristic")
        while state.batches and all(t.cost is not None for t in state.batches[0]):
            batch = state.batches.pop(0)
            with locked(self.builder.exclusive_cpu.lock):
                state.search.learn([(t.knobs, float(t.cost or 0)) for t in batch])
        if self.watch is not None:
            self.watch(self.progress, self.runner.standings())

    def _record(self, trial: _Trial, built: Built, measured: Measured) -> Trial:
        task = trial.state.progress.task
        error = Error.NONE if measured.error is None else _ERRORS[measured.error]
        if measured.error == BUILD and not built.source_hash and "schedule" in measured.message:
            error = Error.NO_SCHEDULE
        device = Device(self.key, measured.device, measured.driver, measured.facts)
        return Trial(
            *(task.workload, task.journal_target, device, trial.knobs, measured.costs, error),
            message=measured.message,
            timestamp=time.time(),
            seconds=time.monotonic() - trial.started,
            toolchain=TOOLCHAIN,
            source=trial.source,
            provenance=measured.conditions,
        )
