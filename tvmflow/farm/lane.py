"""One of a farm's lanes: takes the server that the tracker offers, and measures on it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import FarmError
from ..runtime.process import Worker, WorkerLostError
from ..tuning.measure import CRASH, TIMEOUT, Config, Measured
from . import session
from .about import check_version
from .address import Address
from .ledger import Trial
from .session import Opened
from .tracker import Offer, Tracker

if TYPE_CHECKING:
    from .runner import FarmRunner

#: A session ends after about so long, so that others who wait for the device get it.
SESSION_S = 60.0
#: A session without work ends after so long.
IDLE_S = 5.0
#: Opening a session: the server starts a process, which opens the driver.
CONNECT_S = 30.0
#: How often threads that wait for others see whether the end has come.
TICK_S = 0.5

_NO_TEXTURES = (
    "its OpenCL runtime is not tvmflow's, which textures need: "
    "run `tvmflow farm serve` there, or tune with `storage=buffer`"
)


@dataclass(frozen=True)
class Places:
    """Where and how candidates are measured."""

    tracker: Address
    key: str
    target: str
    config: Config
    limit_s: float
    #: Time of the reference kernel in each device's first session.
    firsts: dict[Address, float | None] = field(default_factory=dict)

    @property
    def session_limit_s(self) -> float:
        """After so long the server ends a session; this side has ended it before."""
        return SESSION_S + self.limit_s + CONNECT_S

    @property
    def patience_s(self) -> float:
        """A server that hung is back by then, if it comes back at all."""
        return self.session_limit_s + CONNECT_S


class Lane:
    """A thread with a process that talks to one server at a time."""

    def __init__(self, places: Places, runner: FarmRunner):
        self._places = places
        self._runner = runner
        # A server that hangs blocks the process that talks to it, which can be ended.
        self._worker = Worker()
        self._thread = threading.Thread(target=self._run, name="tvmflow-lane", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the session, in the middle of a trial if need be."""
        self._worker.interrupt()
        self._thread.join()
        self._worker.close()

    def _run(self) -> None:
        while self._runner.wait_for_work():
            try:
                # Starts the process: an offer holds for some seconds only.
                self._disconnect()
                offer = self._next_offer()
            except FarmError:
                # The runner knows, too, and decides when that is the end.
                time.sleep(TICK_S)
                continue
            if offer is not None and self._runner.accept(offer.address):
                self._serve(offer)
                self._disconnect()

    def _next_offer(self) -> Offer | None:
        with Tracker(self._places.tracker) as tracker:
            tracker.request(self._places.key)
            while self._runner.is_wanted():
                if offer := tracker.offer(TICK_S):
                    return offer
        return None

    def _serve(self, offer: Offer) -> None:
        """Measure in one session, for as long as there is something to measure."""
        address, ends = offer.address, time.monotonic() + SESSION_S
        opened = self._connect(offer)
        if opened is None:
            return
        while time.monotonic() < ends:
            trial = self._runner.take(address, IDLE_S)
            if trial is None:
                return
            if not opened.has_plugin and any(a.scope for a in trial.built.arguments):
                # Unmeasured: another server may have it.
                self._runner.give_back(address, trial)
                self._runner.refuse(address, _NO_TEXTURES)
                return
            measured = self._measure(address, trial)
            self._runner.finish(address, trial, measured)
            if measured.error in (CRASH, TIMEOUT):
                return

    def _connect(self, offer: Offer) -> Opened | None:
        """Open a session; if there is to be none, the runner knows why."""
        places, address = self._places, offer.address
        settings = (places.target, places.config, places.session_limit_s)
        first = places.firsts.get(address)
        try:
            opened: Opened = self._worker.call(
                session.connect, offer, *settings, first, timeout_s=CONNECT_S
            )
            self._runner.describe(address, opened.name, opened.about)
            if opened.about is not None:
                check_version(address, opened.about)
            return opened
        except FarmError as error:
            self._runner.refuse(address, error.message)
        except (WorkerLostError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1]
            self._runner.charge(address, f"no session could be opened: {reason}")
        return None

    def _measure(self, address: Address, trial: Trial) -> Measured:
        started = time.monotonic()
        try:
            measured, first = self._worker.call(
                session.measure,
                *(trial.built, trial.case, trial.rival),
                timeout_s=self._places.limit_s,
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, the trial is not lost)
            timed_out = isinstance(error, WorkerLostError) and error.timed_out
            kind = TIMEOUT if timed_out else CRASH
            return Measured((), kind, str(error), "", time.monotonic() - started)
        self._places.firsts[address] = first
        return measured

    def _disconnect(self) -> None:
        with suppress(WorkerLostError, RuntimeError):
            self._worker.call(session.disconnect, timeout_s=CONNECT_S)
