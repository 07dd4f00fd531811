"""Tuning on a device behind an agent, which needs no TVM there."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..agent.device import RemoteDevice, RemoteLaunch, connect
from ..agent.frames import Code
from ..devices.host import Host
from ..errors import AgentError, TargetError
from ..ir.scope import is_half
from ..journal.records import Device, Event
from ..module.standalone.encode import BUILD_OPTIONS, CHANNEL_TYPES
from ..module.standalone.plan import Allocation
from ..runtime.json_types import JsonObject
from .building import Built, Case, StoredArgument
from .candidate_kernels import CandidateKernels
from .measure import (
    BUILD,
    CRASH,
    DEVICE,
    MEASURE_LIMIT_S,
    TIMEOUT,
    CandidateDevice,
    Config,
    Measured,
    Runner,
    Session,
    Standing,
)
from .tasks import Argument

logger = logging.getLogger(__name__)

#: How long to try to reach a device again whose connection broke.  Its agent holds the folder for
#: up to 30 s.
PATIENCE_S = 90.0
#: Pause between two attempts to connect.
_AGAIN_S = 2.0
#: Pause between two attempts to cancel the request of a trial, which has many.
_CANCEL_S = 0.5
#: Attempts at a trial during which the connection or an earlier session ended.
_ATTEMPTS = 3
#: Most characters of a message in a journal: compilers' logs may be long.
_MOST_MESSAGE = 2000
#: OpenCL's code for source that the driver does not compile.
_BUILD_FAILURE = -11 & 0xFFFFFFFF


class RemoteMemory:
    """Memory of an argument on a device: a buffer or an image."""

    def __init__(self, kernels: RemoteKernels, argument: Argument):
        self._remote, self._stored = kernels.remote, StoredArgument(argument)
        info = self._stored.info
        self._dtype = "float16" if is_half(info.scope or "") else info.dtype
        found = Allocation.of(info.shape, info.dtype, info.scope)
        self._image: tuple[int, int, int] | None = None
        channel_type = 0
        if found.extent is not None:
            self._image = (found.extent.width, found.extent.height, found.extent.layers)
            channel_type = CHANNEL_TYPES[found.channels]
        self._bytes = int(np.prod(info.shape)) * np.dtype(self._dtype).itemsize
        self.handle = self._remote.allocate(
            found.bytes,
            image=self._image,
            channel_type=channel_type,
            device_index=kernels.device_index,
        )
        kernels.free_with(self, self.handle)

    def write(self, array: np.ndarray) -> None:
        """Copy an array to the device."""
        stored = self._stored.to_stored(array).astype(self._dtype, copy=False)
        self._remote.write(self.handle, np.ascontiguousarray(stored).tobytes(), self._image)

    def read(self) -> np.ndarray:
        """Copy the array back to the host."""
        content = self._remote.read(self.handle, self._bytes, self._image)
        info = self._stored.info
        array = np.frombuffer(content, self._dtype).reshape(info.shape).astype(info.dtype)
        return self._stored.from_stored(array)


class LoadedKernels:
    """A candidate whose program was built on a device."""

    def __init__(self, kernels: RemoteKernels, candidate: CandidateKernels):
        remote, index = kernels.remote, kernels.device_index
        program = remote.build(candidate.source, BUILD_OPTIONS, index, kernels.left_s())
        self._program, self._launches = program.handle, candidate.launches
        kernels.free_with(self, self._program)
        self._workspaces: list[int] = []
        for size in candidate.workspaces:
            self._workspaces.append(remote.allocate(size, device_index=index))
            kernels.free_with(self, self._workspaces[-1])

    def bound_to(self, memory: Sequence[RemoteMemory]) -> list[RemoteLaunch]:
        """Return the launches with handles of memory as arguments."""
        handles = [*(each.handle for each in memory), *self._workspaces]
        return [
            RemoteLaunch(
                self._program,
                launch.kernel,
                [a if isinstance(a, bytes) else handles[a] for a in launch.arguments],
                launch.global_size,
                launch.local_size,
            )
            for launch in self._launches
        ]


class RemoteKernels(CandidateDevice):
    """A device that builds and launches the kernels of candidates."""

    def __init__(self, remote: RemoteDevice, device_index: int = 0):
        self.remote, self.device_index = remote, device_index
        #: Time limit of the current trial, on the monotonic clock.
        self.ends = math.inf
        self._unused: deque[int] = deque()

    def load(self, path: Path) -> LoadedKernels:
        """Build a candidate's program."""
        self._free_unused()
        return LoadedKernels(self, CandidateKernels.read(path))

    def reserve(self, argument: Argument) -> RemoteMemory:
        """Allocate memory for an argument."""
        self._free_unused()
        return RemoteMemory(self, argument)

    def run(self, loaded: LoadedKernels, memory: Sequence[RemoteMemory]) -> None:
        """Run the launches once."""
        self.remote.launch([loaded.bound_to(memory)], limit_s=self.left_s())

    def time(
        self, loaded: LoadedKernels, memory: Sequence[RemoteMemory], times: int, rounds: int
    ) -> Sequence[float]:
        """Return the mean time of some runs in seconds for each round.

        It is by the device's clock where it has one.
        """
        found = self.remote.launch(
            [loaded.bound_to(memory)], warmup=1, repeats=times, rounds=rounds, limit_s=self.left_s()
        )
        return [(one.kernels_s or one.wall_s) / times for (one,) in found]

    def left_s(self) -> float:
        """Return the time that is left of the trial; raise `AgentError` if there is none."""
        left_s = self.ends - time.monotonic()
        if left_s <= 0:
            raise AgentError("The trial took longer than its limit.", code=Code.TIMEOUT)
        return min(left_s, MEASURE_LIMIT_S)

    def free_with(self, owner: object, handle: int) -> None:
        """Free an object of the device some time after ``owner`` was deleted."""
        # Not at once: the garbage collector may delete it during another request.
        weakref.finalize(owner, self._unused.append, handle).atexit = False

    def _free_unused(self) -> None:
        handles = [self._unused.popleft() for _ in range(len(self._unused))]
        if handles:
            self.remote.free(handles)


class KernelSession(Session):
    """Measurements in one session of an agent.

    ``first`` is the time of the reference kernel in the device's first session, if there was one.
    """

    def __init__(
        self, remote: RemoteDevice, config: Config, device: Device, index: int, first: float | None
    ):
        self.remote, self._device, self._index = remote, device, index
        self._kernels = RemoteKernels(remote, index)
        super().__init__(self._kernels, config, device.name, device.driver)
        self.first = first
        # The device may have become hot since its last session.
        self._since = config.reference_every

    def renewed(self) -> KernelSession:
        """End the session there, after a failure, and return a new one."""
        with suppress(AgentError):
            self.remote.reset()
        return KernelSession(self.remote, self.config, self._device, self._index, self.first)

    def attempt(
        self, built: Built, case: Case, incumbent: Built | None, limit_s: float
    ) -> tuple[Measured, AgentError | None]:
        """Measure a candidate; return also the device's error, if there was one."""
        facts = self._device.facts
        try:
            before = self.remote.sensors()
            self._kernels.ends = time.monotonic() + limit_s + self.config.cool_down_s
            measured = replace(self.measure(built, case, incumbent), facts=facts)
            failure = self.failure
            if isinstance(failure, AgentError):
                return replace(measured, message=failure.message[:_MOST_MESSAGE]), failure
            return replace(measured, conditions=_heat(before, self.remote.sensors())), None
        except AgentError as failure:
            failed = Measured((), DEVICE, failure.message, self.name, driver=self.driver)
            return replace(failed, facts=facts), failure


def failure_kind(failure: AgentError) -> str:
    """Return why a candidate has failed: `CRASH`, `TIMEOUT` or `DEVICE`."""
    kinds = {0: CRASH, Code.LOST: CRASH, Code.TIMEOUT: TIMEOUT}
    return kinds.get(failure.code, DEVICE)


def is_build_failure(failure: AgentError) -> bool:
    """Return whether the driver has only refused to compile source."""
    return (failure.code, failure.detail) == (Code.DEVICE, _BUILD_FAILURE)


@dataclass
class _Trial:
    built: Built
    case: Case
    incumbent: Built | None
    future: Future[Measured]


class RemoteRunner(Runner):
    """A runner on one device behind an agent.

    After an error of the driver, a crash, or ``limit_s`` seconds the candidate has failed, and the
    next one gets a new session there.  A connection that breaks is opened again, for ``patience_s``
    seconds at most; then all futures fail with the `AgentError`.  ``listener`` gets the events
    ``lost`` and ``returned``.
    """

    def __init__(
        self,
        remote: RemoteDevice,
        config: Config,
        device_index: int = 0,
        limit_s: float = MEASURE_LIMIT_S,
        patience_s: float = PATIENCE_S,
        listener: Callable[[Event], None] | None = None,
    ):
        self._remote, self._config, self._index = remote, config, device_index
        self._limit_s, self._patience_s, self._listener = limit_s, patience_s, listener
        self._device = identify(remote, device_index)
        self._session: KernelSession | None = None
        #: Time of the reference kernel in the first session.
        self._first: float | None = None
        self._count = 0
        self._queue: queue.SimpleQueue[_Trial | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tvmflow-remote", daemon=True)
        self._thread.start()

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        """Queue a candidate; see `Runner`.  Its future fails if the device is gone."""
        future: Future[Measured] = Future()
        if built.path is None:
            future.set_result(Measured((), BUILD, str(built.error)))
        else:
            self._queue.put(_Trial(built, case, incumbent, future))
        return future

    def devices(self) -> Sequence[Device]:
        """Return the device."""
        return [self._device]

    def standings(self) -> Sequence[Standing]:
        """Return the number of its trials."""
        return [Standing(f"{self._device.name} {self._remote.transport.name}", self._count, "")]

    def close(self) -> None:
        """Drop queued candidates, and cancel the current one."""
        self._closing.set()
        self._queue.put(None)
        while self._thread.is_alive():
            with suppress(AgentError):
                self._remote.connection.cancel()
            self._thread.join(_CANCEL_S)
        with suppress(AgentError):
            self._remote.reset()

    # -- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        failure: Exception | None = None
        while (trial := self._queue.get()) is not None:
            if self._closing.is_set():
                trial.future.cancel()
                continue
            if not trial.future.set_running_or_notify_cancel():
                continue
            measured: Measured | None = None
            if failure is None:
                try:
                    measured = self._measure(trial)
                except Exception as error:  # noqa: BLE001 (a future without a result never ends)
                    failure = error
            if self._closing.is_set():
                # The trial may have been cancelled, which is not a failure.
                trial.future.set_exception(CancelledError())
            elif measured is not None:
                self._count += 1
                trial.future.set_result(measured)
            else:
                trial.future.set_exception(failure)

    def _measure(self, trial: _Trial) -> Measured:
        """Measure a candidate; raise `AgentError` if the device cannot be reached any more."""
        for attempt in range(_ATTEMPTS):
            measured, failure = self._attempt(trial)
            if failure is None or self._closing.is_set():
                return measured
            self._end_session(failure)
            if failure.code in (0, Code.STORE):
                # A new connection can also replace blobs that the old one has used.
                self._connect_again(failure)
            elif failure.code != Code.MISSING:
                return replace(measured, error=failure_kind(failure))
            # Otherwise the cause may be the cable, or a candidate before this one.
            logger.info("Attempt %d of a trial failed: %s", attempt + 1, failure.message)
        return replace(measured, error=CRASH)

    def _attempt(self, trial: _Trial) -> tuple[Measured, AgentError | None]:
        """Measure a candidate in the current session, or in a new one."""
        if self._session is None:
            about = self._device, self._index, self._first
            self._session = KernelSession(self._remote, self._config, *about)
        session = self._session
        found = session.attempt(trial.built, trial.case, trial.incumbent, self._limit_s)
        self._first = session.first
        return found

    def _end_session(self, failure: AgentError) -> None:
        """End the session there, unless the driver has only refused to build a kernel."""
        if is_build_failure(failure):
            return
        self._session = None
        if failure.code:
            with suppress(AgentError):
                self._remote.reset()

    def _connect_again(self, failure: AgentError) -> None:
        """Open the connection again; raise `AgentError` if that is not possible in time."""
        self._report("lost", failure.message)
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                self._remote.reopen()
                found = identify(self._remote, self._index)
                break
            except AgentError as error:
                if time.monotonic() > ends or self._closing.wait(_AGAIN_S):
                    raise
                logger.info("%s", error.message)
        if found != self._device:
            raise AgentError(
                f"Tuning on {self._device.name} cannot continue: {self._remote.transport.name} is "
                f"now {found.name} with the driver {found.driver!r}; {self._device.driver!r} was "
                "expected.",
                remedy="Attach the first device again, or start again with a new journal.",
            )
        self._report("returned", "")

    def _report(self, kind: str, reason: str) -> None:
        logger.warning("%s was %s. %s", self._device.name, kind, reason)
        if self._listener is not None:
            details = {"reason": reason} if reason else {}
            self._listener(Event(kind, time.time(), self._device, details))


def identify(remote: RemoteDevice, index: int = 0) -> Device:
    """Return the device as journals name it; raise `AgentError` if it has no OpenCL."""
    info = remote.require_opencl(index)
    reported = {**remote.facts, **remote.facts["opencl"][index]}
    names = ("version", "compiler_version", "system", "release", "build")
    facts = {name: str(reported[name]) for name in names if reported.get(name)}
    return Device(remote.name, info.name, info.driver, {"place": remote.transport.name, **facts})


def _heat(before: JsonObject, after: JsonObject) -> dict[str, float]:
    """Return the highest temperatures before and after a trial, and the number of throttles."""
    facts: dict[str, float] = {}
    for name, sensors in (("celsius_before", before), ("celsius_after", after)):
        if celsius := sensors.get("temperatures"):
            facts[name] = max(map(float, celsius.values()))
    if throttled := after.get("throttled"):
        facts["throttled"] = len(throttled)
    return facts


@dataclass(frozen=True)
class RemoteDevices:
    """A device behind an agent that measures instead of this machine's."""

    remote: RemoteDevice
    device_index: int = 0
    #: Candidates need no host code there.
    builds_kernels = True

    @classmethod
    def at(cls, where: str, secret_file: Path | None = None, index: int = 0) -> RemoteDevices:
        """Connect to a device; raise `AgentError` if it cannot be reached or has no OpenCL."""
        remote = connect(where, secret_file=secret_file)
        try:
            remote.require_opencl(index)
        except AgentError:
            remote.close()
            raise
        return cls(remote, index)

    @property
    def key(self) -> str:
        """Return the device's name: trials of devices of one name are compared."""
        return self.remote.name

    def check(self, device: str, host: Host) -> None:
        """Raise `TargetError` if the preset is that of this machine."""
        del host
        if device == "auto":
            raise TargetError(
                f"Tuning on {self.remote.name} needs a preset, but the device is 'auto', which "
                "stands for the OpenCL device of this machine.",
                remedy="Name it, for example with `device=adreno`.",
            )

    def runner(
        self, kind: str, measuring: Config, listener: Callable[[Event], None]
    ) -> RemoteRunner:
        """Return a runner on the device.  Raises `TargetError` for targets other than OpenCL."""
        if kind != "opencl":
            raise TargetError(
                f"Tuning on {self.remote.name} was asked for the target {kind}; agents measure "
                "OpenCL kernels.",
                remedy="Use `target=opencl`.",
            )
        return RemoteRunner(self.remote, measuring, self.device_index, listener=listener)
