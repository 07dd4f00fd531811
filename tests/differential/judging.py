"""Judge networks: compile and run them in a process that may crash, and ask the oracle here."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
from compiling import CRASH, HANG, INTERNAL, REFUSED, RIGHT, UNJUDGED, WRONG, Outcome, serve
from configurations import CUDA, Configuration
from contexts import Network
from oracle import NoReferenceError, Oracle
from support.cuda_host import ON_GPU, environment
from support.drivers import Driver

#: Time limit for compiling and running one network, on a busy machine.
LIMIT_SECONDS = 180.0
#: Time limit for the start of the process.
START_SECONDS = 120.0


@dataclass(frozen=True)
class Verdict:
    """Verdict on a network in a configuration.

    Parameters
    ----------
    kind
        ``right``, ``wrong``, ``refused``, ``internal``, ``crash`` or ``hang``; ``unjudged`` if it
        differs from the reference, and the reference cannot be run with noise.
    message
        What is wrong, or the reason of the refusal.
    """

    network: Network
    configuration: Configuration
    kind: str
    message: str = ""
    knobs: Any = None

    @property
    def failed(self) -> bool:
        return self.kind not in (RIGHT, REFUSED, UNJUDGED)

    def __str__(self) -> str:
        n = self.network
        return f"{n.operator}, {n.position} ({self.configuration}): {self.kind}: {self.message}"


class Worker:
    """Process that compiles and runs networks with one OpenCL driver, restarted after a crash.

    Machine code is not optimised, for speed, unless requested.  CUDA configurations run in another
    process, on the host.
    """

    def __init__(
        self, driver: Driver | None, *, optimised: bool = False, cuda_on_host: bool = False
    ):
        self._optimised, self._cuda_on_host = optimised, cuda_on_host
        self._host: Worker | None = None
        path = driver.path if driver else None
        self._environment = driver.variables(path) if driver and path else {}
        self._environment |= {"OMP_NUM_THREADS": "1"}
        self._folder = tempfile.TemporaryDirectory(prefix="tvmflow-fuzzer-")
        if cuda_on_host:
            self._environment |= environment()
            self._environment.setdefault("TVMFLOW_CACHE_DIR", self._folder.name)
        self._log = str(Path(self._folder.name) / "log")
        self._process: Any = None
        self._connection: Any = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=serve, args=(other, self._log, self._optimised, self._cuda_on_host), daemon=True
        )
        # The process needs them at its start: importing the main module loads TVM and a driver.
        with mock.patch.dict(os.environ, self._environment):
            self._process.start()
        other.close()
        if self._connection.poll(START_SECONDS):
            self._connection.recv()

    def ask(
        self, networks: Sequence[Network], configuration: Configuration, alone: bool
    ) -> list[Outcome] | str:
        """Return the outcomes, or ``crash`` or ``hang``."""
        if self._process is None or not self._process.is_alive():
            self._start()
        limit = LIMIT_SECONDS * (1 if alone else 2)
        try:
            self._connection.send((list(networks), configuration, alone))
            if self._connection.poll(limit):
                return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self._process = None
            return CRASH
        self.close()
        return HANG

    def output_tail(self) -> str:
        """Return the end of the process's output."""
        return Path(self._log).read_text(errors="replace")[-2000:]

    def cpu_seconds(self) -> float:
        """Return the running process's CPU time; the system counts that of ended ones."""
        if self._process is None or not self._process.is_alive():
            return 0.0
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def close(self) -> None:
        """End the process."""
        if self._host is not None:
            self._host.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
            self._connection.close()

    def judge(
        self,
        networks: Sequence[Network],
        configuration: Configuration,
        expected: Mapping[str, np.ndarray] | None = None,
    ) -> list[Verdict]:
        """Judge networks compiled as one; ``expected`` may hold known results by output name."""
        if configuration.column in CUDA and not ON_GPU and not self._cuda_on_host:
            self._host = self._host or Worker(None, optimised=self._optimised, cuda_on_host=True)
            return self._host.judge(networks, configuration, expected)
        outcomes = self.ask(networks, configuration, alone=len(networks) == 1)
        if isinstance(outcomes, str):
            if len(networks) == 1:
                message = {CRASH: self.output_tail(), HANG: f"no answer in {LIMIT_SECONDS:.0f} s"}
                return [Verdict(networks[0], configuration, outcomes, message[outcomes])]
            return [
                v for network in networks for v in self.judge([network], configuration, expected)
            ]
        verdicts = []
        for network, outcome in zip(networks, outcomes, strict=True):
            verdict = _verdict(network, configuration, outcome, expected)
            if verdict.kind == WRONG and len(networks) > 1:
                # If it is right when compiled alone, compiling it with the others is the fault.
                (single,) = self.judge([network], configuration, expected)
                verdict = (
                    single
                    if single.failed
                    else _wrong_with_others(verdict, networks, configuration)
                )
            verdicts.append(verdict)
        return verdicts


def _wrong_with_others(
    verdict: Verdict, networks: Sequence[Network], configuration: Configuration
) -> Verdict:
    names = ", ".join(f"{n.operator} {n.position}" for n in networks)
    message = f"{verdict.message} (only when compiled with the others: {names})"
    return Verdict(verdict.network, configuration, WRONG, message, verdict.knobs)


def _verdict(
    network: Network,
    configuration: Configuration,
    outcome: Outcome,
    expected: Mapping[str, np.ndarray] | None,
) -> Verdict:
    if outcome.kind != "ran":
        kind = REFUSED if outcome.kind == "refused" else INTERNAL
        return Verdict(network, configuration, kind, outcome.message, outcome.knobs)
    assert outcome.results is not None
    try:
        complaint = oracle_for(network, configuration, expected).judge(outcome.results)
    except NoReferenceError as error:
        return Verdict(network, configuration, UNJUDGED, str(error))
    kind = WRONG if complaint else RIGHT
    return Verdict(network, configuration, kind, complaint or "", outcome.knobs)


def oracle_for(
    network: Network,
    configuration: Configuration,
    expected: Mapping[str, np.ndarray] | None = None,
) -> Oracle:
    """Return the oracle of a network, as tolerant as its configuration requires."""
    options = configuration.options
    return Oracle(
        network,
        half=configuration.half,
        longest_in_half=configuration.longest_in_half,
        winograd=options.get("algorithms") != "direct",
        expected=expected,
    )


def has_reference(network: Network) -> bool:
    """Return whether a reference computes the network."""
    try:
        Oracle(network)
    except NoReferenceError:
        return False
    return True
