"""Measures on all servers that a key matches, at the same time."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ..errors import FarmError, TvmflowError
from ..journal.records import Device, Event
from ..tuning.building import Built
from ..tuning.case import Case
from ..tuning.measure import BUILD, Config, Measured
from ..tuning.progress import Standing
from ..tuning.runner import MEASURE_LIMIT_S
from .about import About
from .address import Address
from .lane import TICK_S, Lane, Places
from .ledger import LENT_WITHIN_S, Ledger, Trial
from .summary import Server
from .tracker import Tracker, check_key, check_served

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: So long may the tracker be away.
_TRACKER_PATIENCE_S = 60.0


class FarmRunner:
    """Measures on the servers of a tracker that have a key; a :class:`~.tuning.runner.Runner`.

    Futures fail only when no device is left, or `listener` does.

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
        Gets events for the journal: ``joined``, ``lost``, ``returned``, ``failed``, ``set_aside``.

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
        listener: Callable[[Event], None] | None = None,
    ):
        self._places = Places(tracker, check_key(key), target, config or Config(), limit_s)
        self._ledger = Ledger(self._heard, self._places.patience_s)
        self._listener = listener
        self._events: list[Event] = []
        self._devices: dict[Address, Device] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._failure: TvmflowError | None = None
        self._running: dict[Address, str] = {}
        self._lanes: list[Lane] = []
        self._watch = Tracker(tracker)
        try:
            self._look(check_served(self._watch, key))
        except FarmError:
            self._watch.close()
            raise
        self._watcher = threading.Thread(target=self._keep_looking, daemon=True)
        self._watcher.start()

    def submit(self, built: Built, case: Case, rival: Built | None = None) -> Future[Measured]:
        """Queue a candidate for the next device that is free."""
        trial = Trial(built, case, rival)
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

    def devices(self) -> list[Device]:
        """The devices that the tracker showed so far."""
        with self._changed:
            return list(self._devices.values())

    def standings(self) -> list[Standing]:
        """How many trials each device had, and why some get no more."""
        with self._changed:
            ledger = self._ledger
            return [
                Standing(
                    f"{self._devices[address].name} {address}".strip(), count, ledger.aside(address)
                )
                for address, count in sorted(ledger.counts().items())
            ]

    def close(self) -> None:
        """Drop what is queued, and give the devices back."""
        with self._changed:
            self._closing = True
            dropped = self._ledger.give_up()
            self._changed.notify_all()
        _drop(dropped)
        self._watcher.join()
        for lane in self._lanes:
            lane.end()
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
                self._look(self._watch.summary().serving(self._places.key))
                lost_since = None
            except FarmError as error:
                self._watch.close()
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > _TRACKER_PATIENCE_S:
                    self._give_up(error)
                    return

    def _look(self, servers: Sequence[Server]) -> None:
        """Bring the ledger up to date; there is a lane for each server."""
        for server in servers:
            if server.address not in self._devices:
                self.describe(server.address, "", About.read(server.about))
        self._told(lambda ledger: ledger.update(server.address for server in servers))
        with self._changed:
            is_hopeless, is_starved = self._ledger.is_hopeless(), self._ledger.is_starved()
            runs = {str(address): task for address, task in self._running.items()}
            missing = len(self._ledger.accounts) - len(self._lanes)
        self._lanes += [Lane(self._places, self) for _ in range(missing)]
        self._watch.publish_runs(self._places.key, runs)
        if is_hopeless:
            self._give_up(self._hopeless())
        elif is_starved:
            self._give_up(self._starved())

    def _hopeless(self) -> FarmError:
        return FarmError(
            f"No device is left for the key {self._places.key!r}.",
            remedy="Repair or restart the servers, and start again: what was measured is kept.",
            details=self._ledger.reasons(),
        )

    def _starved(self) -> FarmError:
        key, tracker = self._places.key, self._places.tracker
        return FarmError(
            f"Waiting for a device of the key {key!r} failed: the tracker lists some, and lent "
            f"none within {LENT_WITHIN_S:g} s.",
            remedy=f"See who has them with `tvmflow farm status --tracker {tracker}`; end that, or "
            "restart their servers, and start again: what was measured is kept.",
        )

    def _give_up(self, error: TvmflowError) -> None:
        with self._changed:
            self._failure = error
            trials = self._ledger.give_up()
            self._changed.notify_all()
        for trial in trials:
            if trial.future.running() or trial.future.set_running_or_notify_cancel():
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

    def describe(self, address: Address, name: str, about: About | None) -> None:
        """Learn what a device is; a stock server tells no more than its device's name."""
        devices = about.devices if about is not None else ()
        served = next((device for device in devices if device.kind == self._places.target), None)
        driver = ""
        if served is not None:
            name, driver = served.name, served.driver
        with self._changed:
            facts = {"address": str(address)}
            self._devices[address] = Device(self._places.key, name, driver, facts)

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

    def give_back(self, address: Address, trial: Trial) -> None:
        """Return a trial that was taken and not measured."""
        with self._changed:
            del self._running[address]
        self._told(lambda ledger: ledger.give_back(address, trial))

    def finish(self, address: Address, trial: Trial, measured: Measured) -> None:
        """Account for a trial."""
        with self._changed:
            del self._running[address]
            failure, closing = self._failure, self._closing
        if closing:
            # It may have been stopped in the middle, which is nobody's failure.
            _drop([trial])
            return
        self._told(lambda ledger: ledger.finish(address, trial, measured))
        if failure is not None:
            # It failed, and there will be no other device to repeat it on.
            self._give_up(failure)

    def _told(self, tell: Callable[[Ledger], T]) -> T:
        """Let the ledger know something, and deliver the trials that this ends."""
        with self._changed:
            answer = tell(self._ledger)
            settled = self._ledger.take_settled()
            events, self._events = self._events, []
            self._changed.notify_all()
        # Without the lock: who waits for a result may submit the next candidate at once.
        try:
            if self._listener is not None:
                for event in events:
                    self._listener(event)
        except TvmflowError as error:
            # A journal that cannot be written, say: no trial may go unrecorded.
            self._give_up(error)
        for trial, measured in settled:
            trial.future.set_result(measured)
        return answer

    def _heard(self, kind: str, address: Address, details: Mapping[str, Any]) -> None:
        """Take an event from the ledger."""
        level = logging.WARNING if kind == "set_aside" else logging.INFO
        said = "; ".join(f"{name}: {value}" for name, value in details.items())
        logger.log(level, "%s %s. %s", address, kind.replace("_", " "), said)
        device = self._devices.get(address)
        self._events.append(Event(kind, time.time(), device, {**details, "server": str(address)}))


def _drop(trials: Iterable[Trial]) -> None:
    """End trials without a result."""
    for trial in trials:
        # Those that were being measured can no longer be cancelled.
        if not trial.future.cancel():
            trial.future.set_exception(CancelledError())
