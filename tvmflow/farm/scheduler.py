"""Scheduling of trials on a farm's devices, and fault attribution, without threads and network.

A trial that fails is repeated on other devices.  If it succeeds on one, the devices where it
failed were at fault and are set aside; if two fail alike, the candidate is at fault.  Each trial
ends once, with one result, whatever happens to the devices.  If no other device is left, a failure
counts as the candidate's.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..runtime.json_types import JsonMapping
from ..runtime.secret import Address
from ..tuning.building import Built, Case
from ..tuning.measure import CRASH, DEVICE, TIMEOUT, WRONG, Measured

#: Rest of a device after its first failure: phones restart, networks fail briefly.
REST_S = 60.0
#: Longest wait of trials while the tracker lists devices but lends none.
LENT_WITHIN_S = 600.0

_REASONS = {
    WRONG: "it computed wrong results",
    CRASH: "its server crashed, was killed or was lost",
    TIMEOUT: "it did not answer in time",
    DEVICE: "the kernel failed in its driver",
}


@dataclass(eq=False)
class Trial:
    """A candidate that waits for its first or a repeated measurement."""

    built: Built
    case: Case
    incumbent: Built | None = None
    future: Future[Measured] = field(default_factory=Future)
    failures: dict[Address, Measured] = field(default_factory=dict)


@dataclass
class DeviceState:
    """State of one device."""

    #: Whether the tracker lists it and no session lost it since its last offer.
    present: bool = True
    #: Why it gets no trials until `aside_until`; empty if it gets trials.
    reason: str = ""
    aside_until: float = 0.0
    trials: int = 0


#: Callback that gets the kind of an event, the device, and details.
Listener = Callable[[str, Address, JsonMapping], None]


class Scheduler:
    """Trials and devices of a tuning run; callers hold a lock around every call.

    ``listener`` gets events of devices and repeated trials.  ``patience_s`` is how long all devices
    may be away before the run ends, and how long a failure waits for another device before it
    counts as the candidate's.
    """

    def __init__(
        self, listener: Listener, patience_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._listener = listener
        self._patience_s = patience_s
        self._clock = clock
        self._waiting: deque[Trial] = deque()
        #: Trials that failed once with the fault still open, and when they failed.
        self._unconfirmed: dict[Trial, float] = {}
        self._finished: list[tuple[Trial, Measured]] = []
        self.devices: dict[Address, DeviceState] = {}
        self._hopeless_since: float | None = None
        #: When a device was last lent, or took or ended a trial.
        self._active_at = clock()

    @property
    def has_work(self) -> bool:
        """Return whether a trial waits."""
        return bool(self._waiting)

    def add(self, trial: Trial) -> None:
        """Queue a new trial."""
        if not self._waiting:
            self._active_at = self._clock()
        self._waiting.append(trial)

    def take_finished(self) -> list[tuple[Trial, Measured]]:
        """Return the trials that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    # -- devices -----------------------------------------------------------------------------

    def update(self, addresses: Iterable[Address]) -> None:
        """Update the devices that the tracker lists."""
        listed = set(addresses)
        for address in listed - self.devices.keys():
            self._join(address)
        for address, state in self.devices.items():
            if state.present and address not in listed:
                state.present = False
                self._listener("lost", address, {})
        self._end_unrepeatable()

    def offer(self, address: Address) -> bool:
        """Note that the tracker offers a device; return whether to use it."""
        self._active_at = self._clock()
        if address not in self.devices:
            self._join(address)
        state = self.devices[address]
        if not state.present:
            state.present = True
            self._listener("returned", address, {})
        self._end_unrepeatable()
        return self._is_usable(address)

    def set_aside(self, address: Address, reason: str, final: bool = False) -> None:
        """Stop giving a device trials: at first for a while; again, or ``final``, for good."""
        state = self.devices[address]
        final |= bool(state.reason)
        state.reason, state.aside_until = reason, math.inf if final else self._clock() + REST_S
        for_s = None if final else REST_S
        self._listener("set_aside", address, {"reason": reason, "for_s": for_s})
        self._end_unrepeatable()

    def _join(self, address: Address) -> None:
        self.devices[address] = DeviceState()
        self._listener("joined", address, {})

    def _is_usable(self, address: Address) -> bool:
        state = self.devices[address]
        return state.present and state.aside_until <= self._clock()

    # -- trials ------------------------------------------------------------------------------

    def take(self, address: Address) -> Trial | None:
        """Return the next trial for a device, if there is one.

        A device with a failure whose fault is open gets only trials that failed elsewhere.
        """
        if not self._is_usable(address):
            return None
        suspect = any(address in trial.failures for trial in self._unconfirmed)
        for trial in list(self._waiting):
            if address in trial.failures or (suspect and not trial.failures):
                continue
            self._waiting.remove(trial)
            if trial.future.running() or trial.future.set_running_or_notify_cancel():
                self.devices[address].trials += 1
                self._active_at = self._clock()
                return trial
        return None

    def give_back(self, address: Address, trial: Trial) -> None:
        """Queue a trial again that was taken and not measured."""
        self.devices[address].trials -= 1
        self._waiting.appendleft(trial)

    def finish(self, address: Address, trial: Trial, measured: Measured) -> None:
        """Record the result of a trial on a device."""
        self._active_at = self._clock()
        if measured.error in (CRASH, TIMEOUT):
            # Its session is lost; the tracker's next offer shows whether it came back.
            self.devices[address].present = False
        if measured.error is None:
            self._end(trial, measured)
            for suspect, failure in trial.failures.items():
                fault = f"{_REASONS[str(failure.error)]} where {address} succeeded"
                # Wrong results are no accident, and might go unnoticed a second time.
                final = failure.error == WRONG
                self.set_aside(suspect, f"{fault}: {failure.message}", final=final)
            return
        is_confirmed = any(measured.error == other.error for other in trial.failures.values())
        trial.failures[address] = measured
        details = {"task": trial.built.task, "error": measured.error, "message": measured.message}
        self._listener("failed", address, details)
        if is_confirmed:
            self._end(trial, measured)
            return
        self._unconfirmed.setdefault(trial, self._clock())
        self._waiting.appendleft(trial)
        self._end_unrepeatable()

    def _end(self, trial: Trial, measured: Measured) -> None:
        self._unconfirmed.pop(trial, None)
        self._finished.append((trial, measured))

    def _end_unrepeatable(self) -> None:
        """End failed trials for which there is no other device."""
        usable = {address for address in self.devices if self._is_usable(address)}
        latest = self._clock() - self._patience_s
        for trial, since in list(self._unconfirmed.items()):
            # A listed device may be busy with other clients, or dead.
            is_over = usable <= trial.failures.keys() or since < latest
            if usable and is_over and trial in self._waiting:
                self._waiting.remove(trial)
                self._end(trial, next(iter(trial.failures.values())))

    # -- the end -----------------------------------------------------------------------------

    def is_hopeless(self) -> bool:
        """Return whether no device is left and none is likely to come back."""
        now = self._clock()
        if any(self._is_usable(address) for address in self.devices):
            self._hopeless_since = None
            return False
        if all(math.isinf(state.aside_until) for state in self.devices.values()):
            return True
        # Devices that rest, or were lost a moment ago, may come back.
        returns = [a.aside_until for a in self.devices.values() if not math.isinf(a.aside_until)]
        if self._hopeless_since is None:
            self._hopeless_since = now
        return now > max(self._hopeless_since, *returns) + self._patience_s

    def is_starved(self) -> bool:
        """Return whether trials wait and no device was lent for longer than any trial takes."""
        return self.has_work and self._clock() - self._active_at > LENT_WITHIN_S

    def give_up(self) -> list[Trial]:
        """Remove and return all waiting trials."""
        waiting, self._waiting, self._unconfirmed = self._waiting, deque(), {}
        return [*waiting]

    def reasons(self) -> str:
        """Return why each device gets no trials, one line per device."""
        return "\n".join(
            f"{address}: {state.reason or 'the tracker does not offer it any more'}"
            for address, state in sorted(self.devices.items())
        )

    def aside(self, address: Address) -> str:
        """Return why a device gets no trials now; empty if it gets trials."""
        state = self.devices[address]
        if state.aside_until > self._clock():
            return state.reason
        return "" if state.present else "it was lost"

    def counts(self) -> Counter[Address]:
        """Return the number of trials of each device."""
        return Counter({address: state.trials for address, state in self.devices.items()})
