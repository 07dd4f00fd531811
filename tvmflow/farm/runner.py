"""Parallel measurement on all servers of a key.

Each server has a thread, with a process that talks to it, as a server that hangs blocks whoever
talks to it: :mod:`.session` runs there.  The threads share one :class:`.scheduler.Scheduler`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ..devices.host import Host
from ..errors import FarmError, TargetError, TvmflowError
from ..journal.records import Device, Event
from ..runtime.json_types import JsonMapping
from ..runtime.process import Worker, WorkerLostError
from ..runtime.secret import Address
from ..runtime.tracker import TUNING, Offer, Server, Tracker, are_agents, check_key
from ..tuning.building import Built, Case
from ..tuning.measure import BUILD, CRASH, MEASURE_LIMIT_S, TIMEOUT, Config, Measured, Standing
from . import session
from .connect import last_line
from .scheduler import LENT_WITHIN_S, Scheduler, Trial
from .server_info import check_host, check_preset, check_served, check_version, served_device
from .session import Opened

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long the tracker may be absent.
_TRACKER_PATIENCE_S = 60.0
#: Length of a session, after which clients that wait for the device get it.
SESSION_S = 60.0
#: A session without work ends after so long.
IDLE_S = 5.0
#: Opening a session: the server starts a process, which opens the driver.
CONNECT_S = 30.0
#: The same with an agent, which the server may have to send first.
AGENT_CONNECT_S = 90.0
#: How often threads that wait for others see whether the end has come.
TICK_S = 0.5

_NO_TEXTURES = (
    "its OpenCL runtime is not tvmflow's, which textures need: "
    "run `tvmflow farm serve` there, or tune with `storage=buffer`"
)


@dataclass(frozen=True)
class Farm:
    """Devices at a tracker that measure instead of this machine's."""

    tracker: Address
    key: str

    @cached_property
    def builds_kernels(self) -> bool:
        """Return whether the servers are agents, which need no host code.

        Raises `FarmError` if nobody serves the key.
        """
        with Tracker(self.tracker) as tracker:
            return are_agents(check_served(tracker, self.key))

    def check(self, device: str, host: Host) -> None:
        """Refuse what would fail only after the network's tasks are found.

        Raises `TargetError` if no preset is named for the devices; `FarmError` if nobody serves the
        key, or on machines that load nothing for the host.
        """
        check_preset("Tuning on", device, "OpenCL")
        if not self.builds_kernels:
            with Tracker(self.tracker) as tracker:
                check_host(check_served(tracker, self.key), host)

    def runner(self, kind: str, measuring: Config, listener: Callable[[Event], None]) -> FarmRunner:
        """Return a runner that measures on all devices of the key."""
        return FarmRunner(self.tracker, self.key, kind, measuring, listener=listener)


class FarmRunner:
    """Runner (:class:`~.tuning.measure.Runner`) on the servers of a tracker that have a key.

    It uses each server's first device of the kind ``opencl``, ``cuda`` or ``llvm``.  A candidate
    may take ``limit_s`` seconds, including compilation of its kernels.  Futures fail only if no
    device is left or `listener` fails, which gets events for the journal: ``joined``, ``lost``,
    ``returned``, ``failed``, ``set_aside``.

    Raises `FarmError` if the tracker cannot be reached, nobody serves the key, or only servers of
    other versions do; `TargetError` for targets other than OpenCL if the servers are agents.
    """

    def __init__(
        self,
        tracker: Address,
        key: str,
        target: str,
        config: Config,
        limit_s: float = MEASURE_LIMIT_S,
        listener: Callable[[Event], None] | None = None,
    ):
        self.tracker, self.key, self.target = tracker, check_key(key), target
        self.config, self.limit_s = config, limit_s
        #: The server's time limit of a session; this side ends it earlier.
        self.session_limit_s = SESSION_S + limit_s + CONNECT_S
        #: Time of the reference kernel in each device's first session.
        self.firsts: dict[Address, float | None] = {}
        self._scheduler = Scheduler(self._heard, self.patience_s)
        self._listener = listener
        self._events: list[Event] = []
        self._devices: dict[Address, Device] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._failure: TvmflowError | None = None
        self._running: dict[Address, str] = {}
        self._threads: list[SessionThread] = []
        self._watch = Tracker(tracker)
        try:
            servers = check_served(self._watch, key)
            #: Whether sessions speak the agent's protocol.
            self.uses_agents = are_agents(servers)
            if self.uses_agents and target != "opencl":
                raise TargetError(
                    f"Tuning on the devices of the key {key!r} was asked for the target {target}; "
                    "agents measure OpenCL kernels.",
                    remedy="Use `target=opencl`.",
                )
            self._look(servers)
        except TvmflowError:
            self._watch.close()
            raise
        self._watcher = threading.Thread(target=self._keep_looking, daemon=True)
        self._watcher.start()

    @property
    def patience_s(self) -> float:
        """Return how long to wait for a hung server to come back."""
        return self.session_limit_s + CONNECT_S

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        """Queue a candidate for the next free device."""
        trial = Trial(built, case, incumbent)
        if built.path is None:
            trial.future.set_result(Measured((), BUILD, str(built.error)))
            return trial.future
        with self._changed:
            if self._failure is None:
                self._scheduler.add(trial)
                self._changed.notify_all()
            else:
                trial.future.set_exception(self._failure)
        return trial.future

    def devices(self) -> list[Device]:
        """Return the devices that the tracker has listed so far."""
        with self._changed:
            return list(self._devices.values())

    def standings(self) -> list[Standing]:
        """Return the number of trials of each device, and why some get no more."""
        with self._changed:
            names = {address: device.name for address, device in self._devices.items()}
            return [
                Standing(f"{names[at]} {at}".strip(), count, self._scheduler.aside(at))
                for at, count in sorted(self._scheduler.counts().items())
            ]

    def close(self) -> None:
        """Drop queued trials, and release the devices."""
        with self._changed:
            self._closing = True
            dropped = self._scheduler.give_up()
            self._changed.notify_all()
        _drop(dropped)
        self._watcher.join()
        for thread in self._threads:
            thread.end()
        self._watch.close()

    # -- looking at the tracker --------------------------------------------------------------

    def _keep_looking(self) -> None:
        lost_since: float | None = None
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, TICK_S)
            try:
                if lost_since is not None:
                    self._watch = Tracker(self.tracker)
                self._look(self._watch.summary().serving(self.key))
                lost_since = None
            except FarmError as error:
                self._watch.close()
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > _TRACKER_PATIENCE_S:
                    self._give_up(error)
                    return

    def _look(self, servers: Sequence[Server]) -> None:
        """Update the scheduler from the tracker, with one thread for each server."""
        for server in servers:
            if server.address not in self._devices:
                self.describe(server.address, *served_device(server.about, self.target))
        self.tell(lambda scheduler: scheduler.update(server.address for server in servers))
        with self._changed:
            is_hopeless, is_starved = self._scheduler.is_hopeless(), self._scheduler.is_starved()
            runs = {str(address): task for address, task in self._running.items()}
            missing = len(self._scheduler.devices) - len(self._threads)
        self._threads += [SessionThread(self) for _ in range(missing)]
        self._watch.publish(TUNING + self.key, runs)
        if is_hopeless:
            failure = FarmError(
                f"No device is left for the key {self.key!r}.",
                remedy="Repair or restart the servers, and start again: what was measured is kept.",
                details=self._scheduler.reasons(),
            )
            self._give_up(failure)
        elif is_starved:
            failure = FarmError(
                f"Waiting for a device of the key {self.key!r} failed: the tracker lists some, and "
                f"lent none within {LENT_WITHIN_S:g} s.",
                remedy=f"See who has them with `tvmflow farm status --tracker {self.tracker}`; "
                "end that, or restart their servers, and start again: what was measured is kept.",
            )
            self._give_up(failure)

    def _give_up(self, error: TvmflowError) -> None:
        with self._changed:
            self._failure = error
            trials = self._scheduler.give_up()
            self._changed.notify_all()
        for trial in trials:
            if trial.future.running() or trial.future.set_running_or_notify_cancel():
                trial.future.set_exception(error)

    # -- what threads ask and tell -------------------------------------------------------------

    def wait_for_work(self, limit_s: float | None = None) -> bool:
        """Wait for a queued trial; return ``False`` when closing, or if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._scheduler.has_work, limit_s)
            return not self._closing and self._scheduler.has_work

    def describe(self, address: Address, name: str, driver: str) -> None:
        """Store a device's name and driver; a stock server reports only its device's name."""
        with self._changed:
            self._devices[address] = Device(self.key, name, driver, {"address": str(address)})

    def take(self, address: Address, wait_s: float) -> Trial | None:
        """Return the next trial for a device; ``None`` if there is none in time."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not self._closing:
                trial = self._scheduler.take(address)
                if trial is not None:
                    self._running[address] = trial.built.task
                    return trial
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        return None

    def give_back(self, address: Address, trial: Trial) -> None:
        """Queue a trial again that was taken and not measured."""
        with self._changed:
            del self._running[address]
        self.tell(lambda scheduler: scheduler.give_back(address, trial))

    def finish(self, address: Address, trial: Trial, measured: Measured) -> None:
        """Record the result of a trial."""
        with self._changed:
            del self._running[address]
            failure, closing = self._failure, self._closing
        if closing:
            # The trial may have been interrupted, which is not a failure.
            _drop([trial])
            return
        self.tell(lambda scheduler: scheduler.finish(address, trial, measured))
        if failure is not None:
            # The trial failed, and there is no other device to repeat it on.
            self._give_up(failure)

    def tell(self, tell: Callable[[Scheduler], T]) -> T:
        """Call the scheduler under the lock, and deliver the trials that ended."""
        with self._changed:
            answer = tell(self._scheduler)
            finished = self._scheduler.take_finished()
            events, self._events = self._events, []
            self._changed.notify_all()
        # Without the lock: a thread that gets a result may submit the next candidate at once.
        try:
            if self._listener is not None:
                for event in events:
                    self._listener(event)
        except TvmflowError as error:
            # For example, the journal cannot be written: no trial may go unrecorded.
            self._give_up(error)
        for trial, measured in finished:
            trial.future.set_result(measured)
        return answer

    def _heard(self, kind: str, address: Address, details: JsonMapping) -> None:
        """Log an event of the scheduler, and queue it for the listener."""
        level = logging.WARNING if kind == "set_aside" else logging.INFO
        said = "; ".join(f"{name}: {value}" for name, value in details.items())
        logger.log(level, "%s %s. %s", address, kind.replace("_", " "), said)
        device = self._devices.get(address)
        self._events.append(Event(kind, time.time(), device, {**details, "server": str(address)}))


def _drop(trials: Iterable[Trial]) -> None:
    """End trials without a result."""
    for trial in trials:
        # Trials that were being measured cannot be cancelled any more.
        if not trial.future.cancel():
            trial.future.set_exception(CancelledError())


class SessionThread:
    """A thread with a process that talks to one server at a time."""

    def __init__(self, runner: FarmRunner):
        self._runner = runner
        # A server that hangs blocks the process that talks to it, which can be ended.
        self._worker = Worker()
        self._thread = threading.Thread(target=self._run, name="tvmflow-session", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the session, in the middle of a trial if need be."""
        self._worker.interrupt()
        self._thread.join()
        self._worker.close()

    def _run(self) -> None:
        while self._runner.wait_for_work():
            try:
                # Starts the process, because an offer is valid for seconds only.
                self._disconnect()
                offer = self._next_offer()
            except FarmError:
                # The runner sees the same failure, and decides when to give up.
                time.sleep(TICK_S)
                continue
            if offer is not None:
                self._serve(offer)
                self._disconnect()

    def _next_offer(self) -> Offer | None:
        with Tracker(self._runner.tracker) as tracker:
            tracker.request(self._runner.key)
            while self._runner.wait_for_work(0):
                if offer := tracker.offer(TICK_S):
                    return offer
        return None

    def _serve(self, offer: Offer) -> None:
        """Measure trials in one session while there are any."""
        address, ends = offer.address, time.monotonic() + SESSION_S
        is_usable = self._runner.tell(lambda scheduler: scheduler.offer(address))
        opened = self._connect(offer) if is_usable else None
        if opened is None:
            return
        while time.monotonic() < ends:
            trial = self._runner.take(address, IDLE_S)
            if trial is None:
                return
            if not opened.has_plugin and any(a.scope for a in trial.built.arguments):
                # Leave the trial to another server.
                self._runner.give_back(address, trial)
                self._runner.tell(
                    lambda scheduler: scheduler.set_aside(address, _NO_TEXTURES, final=True)
                )
                return
            measured = self._measure(address, trial)
            self._runner.finish(address, trial, measured)
            if measured.error in (CRASH, TIMEOUT):
                return

    def _connect(self, offer: Offer) -> Opened | None:
        """Open a session; on failure set the device aside and return ``None``."""
        runner, address = self._runner, offer.address
        first = runner.firsts.get(address)
        try:
            opened = self._begin(offer, first)
            if opened is None:
                return None
            runner.describe(address, opened.name, opened.driver)
            if opened.about is not None:
                check_version(address, opened.about)
            return opened
        except FarmError as error:
            reason = error.message
            runner.tell(lambda scheduler: scheduler.set_aside(address, reason, final=True))
        except (WorkerLostError, RuntimeError) as error:
            reason = f"no session could be opened: {last_line(error)}"
            runner.tell(lambda scheduler: scheduler.set_aside(address, reason))
        return None

    def _begin(self, offer: Offer, first: float | None) -> Opened | None:
        """Open a session in the process; return ``None`` if the device was withdrawn."""
        runner = self._runner
        opened: Opened | None
        if runner.uses_agents:
            opened = self._worker.call(
                session.begin_agent,
                *(offer, runner.config, runner.limit_s, first),
                timeout_s=AGENT_CONNECT_S,
            )
        else:
            opened = self._worker.call(
                session.begin,
                *(offer, runner.target, runner.config, runner.session_limit_s, first),
                timeout_s=CONNECT_S,
            )
        return opened

    def _measure(self, address: Address, trial: Trial) -> Measured:
        try:
            measured, first = self._worker.call(
                session.measure,
                *(trial.built, trial.case, trial.incumbent),
                timeout_s=self._runner.limit_s,
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, the trial is not lost)
            timed_out = isinstance(error, WorkerLostError) and error.timed_out
            kind = TIMEOUT if timed_out else CRASH
            return Measured((), kind, str(error))
        self._runner.firsts[address] = first
        return measured

    def _disconnect(self) -> None:
        with suppress(WorkerLostError, RuntimeError):
            self._worker.call(session.end, timeout_s=CONNECT_S)
