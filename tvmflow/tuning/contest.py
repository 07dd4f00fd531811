"""The candidates of one task against each other: each is measured against the best one so far.

A cost is the best one's times the ratio of both, timed in turn: a chain of ratios that begins with
the heuristic's cost, the first that is measured and the only one that is taken by itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from .builder import Builder, Built
from .case import Case
from .measure import BUILD, CHANGED, Measured
from .progress import Knobs
from .runner import Runner
from .tasks import Task
from .timing import rated

logger = logging.getLogger(__name__)

#: A device that changed is waited for so often, so long, and measured again.
REPEATS, PAUSE_S = 2, 5.0
#: Below this change of the reference kernel a cost that has no rival's is taken as it is.
STEADY = 0.1

#: Has a callback called with a future's result, by the thread that keeps the books.
Tell = Callable[[Future[Any], Callable[[Any], None]], None]


@dataclass(frozen=True)
class Champion:
    """The best candidate so far."""

    built: Future[Built]
    cost: float


@dataclass
class _Entrant:
    """A candidate that is being measured."""

    built: Built
    rival: Champion | None = None


class Contest:
    """Measures a task's candidates.

    Parameters
    ----------
    task
        The task.
    builder, runner
        Where candidates are built and measured.
    tell
        How results reach the one thread that calls this.
    pauses
        How often each device was waited for in vain; shared by all contests.
    """

    def __init__(
        self, task: Task, builder: Builder, runner: Runner, tell: Tell, pauses: Counter[str]
    ):
        self._task = task
        self._builder, self._runner = builder, runner
        self._tell = tell
        self._pauses = pauses
        self._case: Future[Case] | None = None
        self._earlier: tuple[Knobs, float] | None = None
        self._champion: Champion | None = None
        #: What became of candidates, and who waits for that, by the hash of their source.
        self._known: dict[str, Measured] = {}
        self._waiting: dict[str, list[Callable[[Measured], None]]] = {}

    def resume(self, knobs: Knobs, cost: float) -> None:
        """Go on with the best of an earlier session, which is built when it is needed."""
        self._earlier = knobs, cost

    def enter(self, built: Built, done: Callable[[Measured], None]) -> None:
        """Have a candidate measured, unless it is the same as another."""
        source = built.source_hash
        if not source:
            done(Measured((), BUILD, str(built.error), "", 0.0))
        elif source in self._known:
            done(self._known[source])
        elif source in self._waiting:
            self._waiting[source].append(done)
        else:
            self._waiting[source] = [done]
            self._measure(_Entrant(built))

    def _measure(self, entrant: _Entrant) -> None:
        """Have a candidate measured once its task's case is made, and its rival built."""
        if self._case is None:
            self._case = self._builder.make_case(self._task)
        if self._earlier is not None:
            knobs, cost = self._earlier
            self._champion = Champion(self._builder.submit(self._task, knobs), cost)
            self._earlier = None
        entrant.rival = self._champion
        self._tell(self._case, lambda case: self._with_rival(entrant, case))

    def _with_rival(self, entrant: _Entrant, case: Case) -> None:
        def submit(rival: Built | None) -> None:
            if rival is not None and rival.path is None:
                logger.warning("What was best before cannot be built any more: %s", rival.error)
                self._champion = entrant.rival = rival = None
            done = self._runner.submit(entrant.built, case, rival)
            self._tell(done, lambda measured: self._measured(entrant, measured))

        if entrant.rival is None:
            submit(None)
        else:
            self._tell(entrant.rival.built, submit)

    def _measured(self, entrant: _Entrant, measured: Measured) -> None:
        # A rival meets the same drift, so that their ratio tells nothing of it.
        if entrant.rival is None and self._worth_waiting(measured):
            time.sleep(PAUSE_S)
            self._measure(entrant)
            return
        if measured.error is None:
            measured = replace(measured, costs=_costs(entrant, measured), ratios=())
            champion = self._champion
            if champion is None or measured.cost < champion.cost:
                if champion is not entrant.rival:
                    # Another one became the best meanwhile: that is whom it has to beat.
                    self._measure(entrant)
                    return
                built: Future[Built] = Future()
                built.set_result(entrant.built)
                self._champion = Champion(built, measured.cost)
            elif entrant.rival is None:
                # Its cost has no place in the chain, and may be another device's.
                self._measure(entrant)
                return
        source = entrant.built.source_hash
        self._known[source] = measured
        for done in self._waiting.pop(source):
            done(measured)

    def _worth_waiting(self, measured: Measured) -> bool:
        """Whether a device may come back to the speed that it began with."""
        device = measured.device
        if max(measured.drift, 1 / measured.drift) <= CHANGED:
            self._pauses[device] = 0
        elif self._pauses[device] < REPEATS:
            logger.info("%s has %.2f times its first costs: a pause", device, measured.drift)
            self._pauses[device] += 1
            return True
        return False


def _costs(entrant: _Entrant, measured: Measured) -> tuple[float, ...]:
    """Costs of a candidate as they count."""
    if entrant.rival is not None:
        return rated(measured.ratios, entrant.rival.cost)
    if abs(measured.drift - 1) <= STEADY:
        return measured.costs
    return tuple(cost / measured.drift for cost in measured.costs)
