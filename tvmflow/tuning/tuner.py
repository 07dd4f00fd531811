"""Tuning of tasks: proposes, builds, measures and records, all at the same time.

One thread keeps the books.  Builds and measurements run in processes; what they finish comes
through a queue.  A task has up to two batches under way, and learns from them in the order in
which they were proposed.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import _versions
from ..journal.journal import Journal
from ..journal.records import Device, Error, Trial
from .budget import Budget
from .builder import Builder, Built
from .contest import Contest
from .earlier import knobs_of_others, trials_of
from .measure import BUILD, CRASH, DEVICE, TIMEOUT, WRONG, Measured
from .progress import Knobs, Point, Progress, Watch
from .quiet import busy
from .runner import Runner
from .search import Search
from .tasks import Task

logger = logging.getLogger(__name__)

#: Versions of what builds and runs candidates.
TOOLCHAIN = {"tvmflow": _versions.__version__, "tvm": _versions.REQUIRED_TVM["apache-tvm"]}
#: Candidates that are proposed at a time.
BATCH = 8
#: Batches of a task under way.
DEPTH = 2
_ERRORS = {
    BUILD: Error.HOST_BUILD,
    WRONG: Error.WRONG_RESULT,
    CRASH: Error.RUNTIME,
    TIMEOUT: Error.RUN_TIMEOUT,
    DEVICE: Error.RUNTIME,
}


@dataclass
class _Trial:
    """A candidate under way."""

    state: _State
    knobs: Knobs
    source: str
    started: float
    built: Built | None = None
    #: What it is learned with, when the others of its batch are done, too.
    cost: float | None = None


@dataclass
class _State:
    """A task's books."""

    progress: Progress
    search: Search
    contest: Contest
    #: Chosen before the search begins: the heuristic's knobs, then relatives'.
    first: list[tuple[Knobs, str]]
    batches: list[list[_Trial]] = field(default_factory=list)
    exhausted: bool = False

    @property
    def under_way(self) -> int:
        return sum(trial.cost is None for batch in self.batches for trial in batch)


class Tuner:
    """Tunes the tasks of a network.

    Parameters
    ----------
    tasks
        What to tune; those without knobs are measured once.
    builder, runner
        Where candidates are built and measured.  The caller closes them.
    journal
        Gets every trial, and has those of earlier sessions.
    budget
        When to stop.
    search
        Makes the search of a task.
    relatives
        Journals of other devices, whose best knobs are tried first.
    key
        Of the devices at a tracker, for the records.
    watch
        Called whenever a trial has ended.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        builder: Builder,
        runner: Runner,
        journal: Journal,
        budget: Budget,
        search: Callable[[Task], Search],
        *,
        relatives: Sequence[Journal] = (),
        key: str = "",
        watch: Watch | None = None,
    ):
        self._builder, self._runner = builder, runner
        self._journal = journal
        self._budget = budget
        self._relatives = relatives
        self._key = key
        self._watch = watch
        self._began = time.monotonic()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._devices = runner.devices()
        self._pauses: Counter[str] = Counter()
        self._states = [self._state(task, search(task)) for task in tasks]
        self.progress = [state.progress for state in self._states]
        self._open = 0

    def run(self) -> list[Progress]:
        """Tune until the budget is used up; what is found is also in the journal."""
        while True:
            self._propose()
            if not self._open:
                return self.progress
            self._events.get()()

    # -- what comes next ---------------------------------------------------------------------

    def _state(self, task: Task, search: Search) -> _State:
        """A task's books with the trials of earlier sessions."""
        contest = Contest(task, self._builder, self._runner, self._tell, self._pauses)
        state = _State(Progress(task), search, contest, [])
        learned: list[tuple[Knobs, float]] = []
        own, others = trials_of(task, self._journal, self._devices)
        for trial in own:
            knobs = dict(trial.knobs)
            if not search.note(knobs):
                continue
            error = f"{trial.error.name}: {trial.message}" if trial.error else None
            state.progress.take(knobs, Point(0.0, trial.cost, error), knobs == task.heuristic)
            learned.append((knobs, trial.cost))
        search.learn(learned)
        if math.isfinite(state.progress.best):
            contest.resume(state.progress.best_knobs, state.progress.best)
        chosen = [(task.heuristic, "heuristic")]
        elsewhere = knobs_of_others(task, others, self._relatives)
        chosen += [(knobs, "relative") for knobs in elsewhere]
        state.first = [(knobs, source) for knobs, source in chosen if search.note(knobs)]
        return state

    def _propose(self) -> None:
        """Give builds and devices work, as long as there is some and they have too little."""
        while self._open < 3 * BATCH:
            ready = [state for state in self._states if self._may_propose(state)]
            if not ready or self._out_of_time():
                return
            state = max(ready, key=self._urgency)
            if not self._propose_for(state):
                state.exhausted = True

    def _may_propose(self, state: _State) -> bool:
        progress, budget = state.progress, self._budget
        if state.exhausted or len(state.batches) >= DEPTH:
            return False
        if progress.trials + state.under_way >= budget.trials and not self._owes(state):
            return False
        if budget.patience is not None and progress.idle >= budget.patience:
            return False
        # Whatever the search proposes, it should know the heuristic's cost.
        return bool(state.first) or not (state.batches and progress.trials == 0)

    @staticmethod
    def _owes(state: _State) -> bool:
        """Whether the heuristic itself is still to be measured."""
        return bool(state.first) and state.first[0][1] == "heuristic"

    def _urgency(self, state: _State) -> tuple[bool, float]:
        """Unmeasured tasks first, then those that take most of the time and still improve."""
        progress = state.progress
        if not math.isfinite(progress.best):
            return progress.trials == 0, float(progress.task.operations)
        return False, progress.time / (1 + (progress.idle + state.under_way) / BATCH)

    def _out_of_time(self) -> bool:
        seconds = self._budget.seconds
        if seconds is None or time.monotonic() - self._began < seconds:
            return False
        # Without its heuristic's cost, nothing is known of a task.
        return not any(self._owes(state) for state in self._states)

    def _propose_for(self, state: _State) -> bool:
        left = self._budget.trials - state.progress.trials - state.under_way
        chosen = state.first[: max(1, min(BATCH, left))]
        del state.first[: len(chosen)]
        if not chosen and state.progress.task.is_tunable:
            with busy(self._builder.quiet.lock):
                chosen = [(k, "measured") for k in state.search.propose(min(BATCH, left))]
        if not chosen:
            return False
        batch = [_Trial(state, knobs, source, time.monotonic()) for knobs, source in chosen]
        state.batches.append(batch)
        for trial in batch:
            self._open += 1
            done = self._builder.submit(state.progress.task, trial.knobs)
            self._tell(done, partial(self._built, trial))
        return True

    # -- what comes back ---------------------------------------------------------------------

    def _tell(self, done: Future[Any], callback: Callable[[Any], None]) -> None:
        """Have the books told of a result, or of what ends the session."""

        def tell(done: Future[Any]) -> None:
            if not done.cancelled():
                self._events.put(lambda: callback(done.result()))

        # Called by another thread, or at once.
        done.add_done_callback(tell)

    def _built(self, trial: _Trial, built: Built) -> None:
        trial.built = built
        trial.state.contest.enter(built, lambda measured: self._finish(trial, measured))

    def _finish(self, trial: _Trial, measured: Measured) -> None:
        """Write a trial down, and let the search learn from batches that are complete."""
        state = trial.state
        self._open -= 1
        trial.cost = measured.cost
        now = time.monotonic()
        self._journal.append(self._record(trial, measured, now - trial.started))
        error = f"{measured.error}: {measured.message}" if measured.error else None
        point = Point(now - self._began, measured.cost, error)
        state.progress.take(trial.knobs, point, trial.source == "heuristic")
        while state.batches and all(t.cost is not None for t in state.batches[0]):
            batch = state.batches.pop(0)
            with busy(self._builder.quiet.lock):
                state.search.learn([(t.knobs, float(t.cost or 0)) for t in batch])
        if self._watch is not None:
            self._watch(self.progress, self._runner.standings())

    def _record(self, trial: _Trial, measured: Measured, seconds: float) -> Trial:
        task = trial.state.progress.task
        assert trial.built is not None
        error = Error.NONE if measured.error is None else _ERRORS[measured.error]
        if measured.error == BUILD and not trial.built.source_hash:
            error = Error.NO_SCHEDULE if "schedule" in measured.message else Error.HOST_BUILD
        return Trial(
            task.workload,
            task.journal_target,
            Device(self._key, measured.device, measured.driver),
            trial.knobs,
            measured.costs,
            error,
            measured.message,
            time.time(),
            seconds,
            TOOLCHAIN,
            "heuristic" if trial.source == "heuristic" else "measured",
        )
