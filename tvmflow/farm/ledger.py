"""Who measures what, and whose fault a failure is: the accounts of a farm, without its wires.

A trial that fails is repeated on other devices.  Where one succeeds, those that failed were
at fault and are set aside; where two fail alike, the candidate was.  So each trial ends once,
with one result, whatever happens to the devices meanwhile.  Where no other device is left, a
failure counts as the candidate's.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..tuning.building import Built
from ..tuning.case import Case
from ..tuning.measure import CRASH, DEVICE, TIMEOUT, WRONG, Measured
from .address import Address

#: After its first failure a device may try again, later: phones restart, networks hiccup.
REST_S = 60.0
#: So long may trials wait while the tracker lists devices and lends none.
LENT_WITHIN_S = 600.0

_REASONS = {
    WRONG: "it computed wrong results",
    CRASH: "its server crashed or was lost",
    TIMEOUT: "it did not answer in time",
    DEVICE: "its driver failed",
}


@dataclass(eq=False)
class Trial:
    """A candidate that waits for a device, is measured, or is measured again."""

    built: Built
    case: Case
    rival: Built | None = None
    future: Future[Measured] = field(default_factory=Future)
    failures: dict[Address, Measured] = field(default_factory=dict)


@dataclass
class Account:
    """What is known of one device."""

    #: Whether the tracker lists it, and it has not vanished from a session since it was offered.
    present: bool = True
    #: Why it gets no trials, until when; empty if it gets some.
    reason: str = ""
    aside_until: float = 0.0
    charges: int = 0
    trials: int = 0


#: Takes the kind of an event, the device, and what else there is to say.
Listener = Callable[[str, Address, Mapping[str, Any]], None]


class Ledger:
    """The trials and devices of a tuning run; its caller holds a lock around every call.

    Parameters
    ----------
    listener
        Gets what happens to devices and repeated trials.
    patience_s
        So long may all devices be away before that is the end, and a failure wait for another
        device before it counts as the candidate's.
    clock
        Seconds that only grow.
    """

    def __init__(
        self,
        listener: Listener,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._listener = listener
        self._patience_s = patience_s
        self._clock = clock
        self._waiting: deque[Trial] = deque()
        #: Failed once, at these times, and not yet known by whose fault.
        self._doubtful: dict[Trial, float] = {}
        self._settled: list[tuple[Trial, Measured]] = []
        self.accounts: dict[Address, Account] = {}
        self._hopeless_since: float | None = None
        #: When a device was last lent, took a trial or ended one.
        self._active_at = clock()

    @property
    def has_work(self) -> bool:
        """Whether a trial waits."""
        return bool(self._waiting)

    def add(self, trial: Trial) -> None:
        """Queue a new trial."""
        if not self._waiting:
            self._active_at = self._clock()
        self._waiting.append(trial)

    def take_settled(self) -> list[tuple[Trial, Measured]]:
        """Return the trials that ended since the last call, each once."""
        settled, self._settled = self._settled, []
        return settled

    # -- devices -----------------------------------------------------------------------------

    def update(self, addresses: Iterable[Address]) -> None:
        """Learn which devices the tracker lists."""
        listed = set(addresses)
        for address in listed - self.accounts.keys():
            self._join(address)
        for address, account in self.accounts.items():
            if account.present and address not in listed:
                account.present = False
                self._listener("lost", address, {})
        self._settle_unrepeatable()

    def offer(self, address: Address) -> bool:
        """Learn that the tracker gives a device; say whether it is to be used."""
        self._active_at = self._clock()
        if address not in self.accounts:
            self._join(address)
        account = self.accounts[address]
        if not account.present:
            account.present = True
            self._listener("returned", address, {})
        self._settle_unrepeatable()
        return self._is_usable(address)

    def refuse(self, address: Address, reason: str) -> None:
        """Set a device aside for good."""
        self._set_aside(address, reason, math.inf)

    def charge(self, address: Address, reason: str, final: bool = False) -> None:
        """Set a device aside: for a while at first, then for good."""
        account = self.accounts[address]
        account.charges += 1
        final |= account.charges > 1
        self._set_aside(address, reason, math.inf if final else self._clock() + REST_S)

    def _join(self, address: Address) -> None:
        self.accounts[address] = Account()
        self._listener("joined", address, {})

    def _set_aside(self, address: Address, reason: str, until: float) -> None:
        account = self.accounts[address]
        account.reason, account.aside_until = reason, until
        for_s = None if math.isinf(until) else REST_S
        self._listener("set_aside", address, {"reason": reason, "for_s": for_s})
        self._settle_unrepeatable()

    def _is_usable(self, address: Address) -> bool:
        account = self.accounts[address]
        return account.present and account.aside_until <= self._clock()

    # -- trials ------------------------------------------------------------------------------

    def take(self, address: Address) -> Trial | None:
        """Return the next trial for a device, if there is one for it.

        A device whose last failure is in doubt gets only what others failed at.
        """
        if not self._is_usable(address):
            return None
        suspect = any(address in trial.failures for trial in self._doubtful)
        for trial in list(self._waiting):
            if address in trial.failures or (suspect and not trial.failures):
                continue
            self._waiting.remove(trial)
            if trial.future.running() or trial.future.set_running_or_notify_cancel():
                self.accounts[address].trials += 1
                self._active_at = self._clock()
                return trial
        return None

    def give_back(self, address: Address, trial: Trial) -> None:
        """Take back a trial that was not measured."""
        self.accounts[address].trials -= 1
        self._waiting.appendleft(trial)

    def finish(self, address: Address, trial: Trial, measured: Measured) -> None:
        """Take what became of a trial on a device."""
        self._active_at = self._clock()
        if measured.error in (CRASH, TIMEOUT):
            # Its session has gone; whether it comes back, the tracker's next offer tells.
            self.accounts[address].present = False
        if measured.error is None:
            self._settle(trial, measured)
            for suspect, failure in trial.failures.items():
                self._blame(suspect, failure, address)
            return
        is_confirmed = any(measured.error == other.error for other in trial.failures.values())
        trial.failures[address] = measured
        details = {"task": trial.built.task, "error": measured.error, "message": measured.message}
        self._listener("failed", address, details)
        if is_confirmed:
            self._settle(trial, measured)
            return
        self._doubtful.setdefault(trial, self._clock())
        self._waiting.appendleft(trial)
        self._settle_unrepeatable()

    def _blame(self, suspect: Address, failure: Measured, witness: Address) -> None:
        assert failure.error is not None
        reason = f"{_REASONS[failure.error]} where {witness} succeeded: {failure.message}"
        # Wrong numbers are no accident, and would not be noticed a second time.
        self.charge(suspect, reason, final=failure.error == WRONG)

    def _settle(self, trial: Trial, measured: Measured) -> None:
        self._doubtful.pop(trial, None)
        self._settled.append((trial, measured))

    def _settle_unrepeatable(self) -> None:
        """End the trials that failed where there is no other device to repeat them on."""
        usable = {address for address in self.accounts if self._is_usable(address)}
        latest = self._clock() - self._patience_s
        for trial, since in list(self._doubtful.items()):
            # A device that the tracker lists may be busy for others, or may not live any more.
            is_over = usable <= trial.failures.keys() or since < latest
            if usable and is_over and trial in self._waiting:
                self._waiting.remove(trial)
                self._settle(trial, next(iter(trial.failures.values())))

    # -- the end -----------------------------------------------------------------------------

    def is_hopeless(self) -> bool:
        """Whether no device is left, and none is likely to come back."""
        now = self._clock()
        if any(self._is_usable(address) for address in self.accounts):
            self._hopeless_since = None
            return False
        if all(math.isinf(account.aside_until) for account in self.accounts.values()):
            return True
        # Those that rest, or were lost a moment ago, may come back.
        returns = [a.aside_until for a in self.accounts.values() if not math.isinf(a.aside_until)]
        if self._hopeless_since is None:
            self._hopeless_since = now
        return now > max(self._hopeless_since, *returns) + self._patience_s

    def is_starved(self) -> bool:
        """Whether trials wait, and no device was lent for longer than any trial takes."""
        return self.has_work and self._clock() - self._active_at > LENT_WITHIN_S

    def give_up(self) -> list[Trial]:
        """Return all trials that wait, and forget them."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._doubtful.clear()
        return waiting

    def reasons(self) -> str:
        """Why each device gets no trials."""
        return "\n".join(
            f"{address}: {account.reason or 'the tracker does not offer it any more'}"
            for address, account in sorted(self.accounts.items())
        )

    def aside(self, address: Address) -> str:
        """Why a device gets no trials now; empty if it gets some."""
        account = self.accounts[address]
        if account.aside_until > self._clock():
            return account.reason
        return "" if account.present else "it was lost"

    def counts(self) -> Counter[Address]:
        """How many trials each device had."""
        return Counter({address: account.trials for address, account in self.accounts.items()})
