"""Measures on all servers that a key matches, at the same time."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ..errors import FarmError
from ..tuning.builder import Built
from ..tuning.case import Case
from ..tuning.measure import BUILD, Config, Measured
from ..tuning.runner import MEASURE_LIMIT_S
from .about import About, check_version
from .lane import TICK_S, Lane, Places
from .ledger import Ledger, Listener, Trial
from .tracker import Address, Tracker, check_key

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: So long may the tracker be away.
_TRACKER_PATIENCE_S = 60.0


class FarmRunner:
    """Measures on the servers of a tracker that have a key; a :class:`~.tuning.runner.Runner`.

    Futures fail only with :class:`~tvmflow.errors.FarmError`, when no device is left.

    Parameters
    ----------
    tracker
        Where servers register.
    key
        What they are registered for.
    target
        ``opencl``, ``cuda`` or ``llvm``: the first device of this kind of each server.
    config
        How to measure.
    limit_s
        Seconds that measuring one candidate may take, its kernels' compilation included.
    listener
        Gets events: ``joined``, ``lost``, ``returned``, ``failed``, ``set_aside``.

    Raises
    ------
    FarmError
        If the tracker cannot be reached, nobody serves the key, or only servers of other
        versions do.
    """

    def __init__(
        self,
        tracker: Address,
        key: str,
        target: str,
        config: Config | None = None,
        limit_s: float = MEASURE_LIMIT_S,
        listener: Listener | None = None,
    ):
        self._places = Places(tracker, check_key(key), target, config or Config(), limit_s)
        self._ledger = Ledger(listener or _log, self._places.patience_s)
        self._changed = threading.Condition()
        self._closing = False
        self._failure: FarmError | None = None
        self._running: dict[Address, str] = {}
        self._lanes: list[Lane] = []
        self._watch = Tracker(tracker)
        try:
            self._look(first=True)
        except FarmError:
            self._watch.close()
            raise
        self._watcher = threading.Thread(target=self._keep_looking, daemon=True)
        self._watcher.start()

    def submit(self, built: Built, case: Case, bound_s: float | None = None) -> Future[Measured]:
        """Queue a candidate for the next device that is free."""
        trial = Trial(built, case, bound_s)
        if built.path is None:
            trial.future.set_result(Measured((), BUILD, str(built.error), "", 0.0))
            return trial.future
        with self._changed:
            failure = self._failure
            if failure is None:
                self._ledger.add(trial)
                self._changed.notify_all()
        if failure is not None:
            trial.future.set_exception(failure)
        return trial.future

    def counts(self) -> Counter[Address]:
        """How many trials each device had so far."""
        with self._changed:
            return self._ledger.counts()

    def close(self) -> None:
        """Drop what is queued, and give the devices back."""
        with self._changed:
            self._closing = True
            dropped = self._ledger.give_up()
            self._changed.notify_all()
        for trial in dropped:
            trial.future.cancel()
        self._watcher.join()
        for lane in self._lanes:
            lane.end()
        with self._changed:
            dropped = self._ledger.give_up()
        for trial in dropped:
            # It was being measured: too late to cancel it.
            trial.future.set_exception(CancelledError())
        self._watch.close()

    # -- looking at the tracker --------------------------------------------------------------

    def _keep_looking(self) -> None:
        lost_since: float | None = None
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, TICK_S)
            try:
                if lost_since is not None:
                    self._watch = Tracker(self._places.tracker)
                self._look()
                lost_since = None
            except FarmError as error:
                self._watch.close()
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > _TRACKER_PATIENCE_S:
                    self._give_up(error)
                    return

    def _look(self, first: bool = False) -> None:
        """Bring the ledger up to date; there is a lane for each server."""
        summary = self._watch.summary()
        servers = summary.serving(self._places.key)
        if first:
            if not servers:
                keys = ", ".join(sorted({server.key for server in summary.servers}))
                key, tracker = self._places.key, self._places.tracker
                raise FarmError(
                    f"Nobody serves the key {key!r} at the tracker {tracker}: "
                    + (f"it has servers for {keys}." if keys else "it has no server."),
                    remedy=f"Start one: tvmflow farm serve --tracker {tracker} --key {key}",
                )
            _check_versions({s.address: About.read(s.about) for s in servers})
        self._told(lambda ledger: ledger.update(server.address for server in servers))
        with self._changed:
            is_hopeless = self._ledger.is_hopeless()
            runs = {str(address): task for address, task in self._running.items()}
            missing = len(self._ledger.accounts) - len(self._lanes)
        self._lanes += [Lane(self._places, self) for _ in range(missing)]
        self._watch.publish_runs(self._places.key, runs)
        if is_hopeless:
            self._give_up(self._hopeless())

    def _hopeless(self) -> FarmError:
        return FarmError(
            f"No device is left for the key {self._places.key!r}.",
            remedy="Repair or restart the servers, and start again: what was measured is kept.",
            details=self._ledger.reasons(),
        )

    def _give_up(self, error: FarmError) -> None:
        with self._changed:
            self._failure = error
            trials = self._ledger.give_up()
            self._changed.notify_all()
        for trial in trials:
            if trial.failures or trial.future.set_running_or_notify_cancel():
                trial.future.set_exception(error)

    # -- what lanes ask and tell -------------------------------------------------------------

    def wait_for_work(self) -> bool:
        """Wait until a trial waits; ``False`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._ledger.has_work)
            return not self._closing

    def is_wanted(self) -> bool:
        """Whether one more device is still wanted."""
        with self._changed:
            return not self._closing and self._ledger.has_work

    def accept(self, address: Address) -> bool:
        """Whether an offered device is to be used."""
        return self._told(lambda ledger: ledger.offer(address))

    def refuse(self, address: Address, reason: str) -> None:
        """Set a device aside for good."""
        self._told(lambda ledger: ledger.refuse(address, reason))

    def charge(self, address: Address, reason: str) -> None:
        """Set a device aside, for a while at first."""
        self._told(lambda ledger: ledger.charge(address, reason))

    def take(self, address: Address, wait_s: float) -> Trial | None:
        """Return the next trial for a device, within a time."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not self._closing:
                trial = self._ledger.take(address)
                if trial is not None:
                    self._running[address] = trial.built.task
                    return trial
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        return None

    def finish(self, address: Address, trial: Trial, measured: Measured) -> None:
        """Account for a trial."""
        with self._changed:
            del self._running[address]
        self._told(lambda ledger: ledger.finish(address, trial, measured))

    def _told(self, tell: Callable[[Ledger], T]) -> T:
        """Let the ledger know something, and deliver the trials that this ends."""
        with self._changed:
            answer = tell(self._ledger)
            settled = self._ledger.take_settled()
            self._changed.notify_all()
        # Without the lock: who waits for a result may submit the next candidate at once.
        for trial, measured in settled:
            trial.future.set_result(measured)
        return answer


def _check_versions(told: Mapping[Address, About | None]) -> None:
    """Refuse servers of which none is of this version; stock servers have none."""
    errors = []
    for address, about in told.items():
        if about is None:
            return
        try:
            check_version(address, about)
            return
        except FarmError as error:
            errors.append(error)
    raise errors[0]


def _log(kind: str, address: Address, details: Mapping[str, Any]) -> None:
    level = logging.WARNING if kind == "set_aside" else logging.INFO
    said = ", ".join(f"{name} {value}" for name, value in details.items() if value)
    logger.log(level, "%s: %s %s", address, kind.replace("_", " "), said)
