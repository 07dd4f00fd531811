"""Tuning on a device behind an agent, which needs no TVM there."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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

#: How long to try to reach a device again whose connection broke.
PATIENCE_S = 60.0
_AGAIN_S = 2.0


class RemoteMemory:
    """Memory of an argument on a device: a buffer or an image."""

    def __init__(self, remote: RemoteDevice, argument: Argument, device_index: int):
        self._remote, self._stored = remote, StoredArgument(argument)
        info = self._stored.info
        self._dtype = "float16" if is_half(info.scope or "") else info.dtype
        found = Allocation.of(info.shape, info.dtype, info.scope)
        self._image: tuple[int, int, int] | None = None
        channel_type = 0
        if found.extent is not None:
            self._image = (found.extent.width, found.extent.height, found.extent.layers)
            channel_type = CHANNEL_TYPES[found.channels]
        self._bytes = int(np.prod(info.shape)) * np.dtype(self._dtype).itemsize
        self.handle = remote.allocate(
            found.bytes, image=self._image, channel_type=channel_type, device_index=device_index
        )
        self._end = weakref.finalize(self, _free, remote, [self.handle])

    def write(self, array: np.ndarray) -> None:
        """Copy an array to the device."""
        stored = self._stored.to_stored(array).astype(self._dtype, copy=False)
        self._remote.write(self.handle, np.ascontiguousarray(stored).tobytes(), self._image)

    def read(self) -> np.ndarray:
        """Copy the array back."""
        content = self._remote.read(self.handle, self._bytes, self._image)
        info = self._stored.info
        array = np.frombuffer(content, self._dtype).reshape(info.shape).astype(info.dtype)
        return self._stored.from_stored(array)


class _Loaded:
    """A candidate whose program was built on the device."""

    def __init__(self, remote: RemoteDevice, kernels: CandidateKernels, device_index: int):
        program = remote.build(kernels.source, BUILD_OPTIONS, device_index)
        self.program, self.launches = program.handle, kernels.launches
        self.workspaces = [
            remote.allocate(size, device_index=device_index) for size in kernels.workspaces
        ]
        self._end = weakref.finalize(self, _free, remote, [self.program, *self.workspaces])

    def bound_to(self, memory: Sequence[RemoteMemory]) -> list[RemoteLaunch]:
        """Return the launches with handles of memory as arguments."""
        handles = [*(each.handle for each in memory), *self.workspaces]
        return [
            RemoteLaunch(
                self.program,
                launch.kernel,
                [a if isinstance(a, bytes) else handles[a] for a in launch.arguments],
                launch.global_size,
                launch.local_size,
            )
            for launch in self.launches
        ]


def _free(remote: RemoteDevice, handles: list[int]) -> None:
    # A session that has ended holds nothing.
    with suppress(AgentError):
        remote.free(handles)


@dataclass
class RemoteKernels(CandidateDevice):
    """A device that builds and launches the kernels of candidates."""

    remote: RemoteDevice
    device_index: int = 0

    def load(self, path: Path) -> _Loaded:
        """Build a candidate's program."""
        return _Loaded(self.remote, CandidateKernels.read(path), self.device_index)

    def reserve(self, argument: Argument) -> RemoteMemory:
        """Allocate memory for an argument."""
        return RemoteMemory(self.remote, argument, self.device_index)

    def run(self, loaded: _Loaded, memory: Sequence[RemoteMemory]) -> None:
        """Run the launches once."""
        self.remote.launch([loaded.bound_to(memory)], limit_s=MEASURE_LIMIT_S)

    def time(self, loaded: _Loaded, memory: Sequence[RemoteMemory], times: int) -> float:
        """Return the mean time of some runs in seconds, by the device's clock where it has one."""
        launches = loaded.bound_to(memory)
        ((found,),) = self.remote.launch(
            [launches], warmup=1, repeats=times, rounds=1, limit_s=MEASURE_LIMIT_S
        )
        return (found.kernels_s or found.wall_s) / times


@dataclass
class _Trial:
    built: Built
    case: Case
    incumbent: Built | None
    future: Future[Measured]


class RemoteRunner(Runner):
    """A runner on one device behind an agent.

    A candidate that crashes its session there, or hangs, has failed, and the next one has a new
    session.  A connection that breaks is opened again for `PATIENCE_S` seconds; then all futures
    fail with the `AgentError`.
    """

    def __init__(self, remote: RemoteDevice, config: Config, device_index: int = 0):
        self._remote, self._config, self._index = remote, config, device_index
        info = remote.require_opencl(device_index)
        self._device = Device(remote.name, info.name, info.driver, {"place": remote.transport.name})
        self._session: Session | None = None
        self._first: float | None = None
        self._count = 0
        self._queue: queue.SimpleQueue[_Trial | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tvmflow-remote", daemon=True)
        self._thread.start()

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        """Queue a candidate."""
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
        """Drop queued candidates, and end the connection."""
        self._closing = True
        self._queue.put(None)
        self._thread.join()
        self._session = None
        self._remote.close()

    def _run(self) -> None:
        failure: AgentError | None = None
        while (trial := self._queue.get()) is not None:
            if self._closing:
                trial.future.cancel()
                continue
            if not trial.future.set_running_or_notify_cancel():
                continue
            if failure is None:
                try:
                    trial.future.set_result(self._measure(trial))
                    self._count += 1
                    continue
                except AgentError as error:
                    failure = error
            trial.future.set_exception(failure)

    def _measure(self, trial: _Trial) -> Measured:
        ends = time.monotonic() + PATIENCE_S
        while True:
            measured = self._measure_once(trial)
            if measured is not None:
                return measured
            # The connection broke, which is not the candidate's fault.
            self._session = None
            while True:
                try:
                    self._remote.close()
                    self._remote = RemoteDevice(self._remote.transport)
                    break
                except AgentError as error:
                    if time.monotonic() > ends or self._closing:
                        raise
                    logger.info("%s", error.message)
                    time.sleep(_AGAIN_S)

    def _measure_once(self, trial: _Trial) -> Measured | None:
        """Measure a candidate; return ``None`` if the connection broke."""
        if self._session is None:
            kernels = RemoteKernels(self._remote, self._index)
            self._session = Session(kernels, self._config, self._device.name, self._device.driver)
            self._session.first = self._first
        measured = self._session.measure(trial.built, trial.case, trial.incumbent)
        self._first = self._session.first
        failure = self._session.failure
        if measured.error != DEVICE or not isinstance(failure, AgentError):
            return measured
        if failure.code in (Code.LOST, Code.TIMEOUT):
            # Memory and programs there are gone.
            self._session = None
            kind = TIMEOUT if failure.code == Code.TIMEOUT else CRASH
            return replace(measured, error=kind, message=failure.message)
        return None if failure.code == 0 else measured


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
        del listener
        if kind != "opencl":
            raise TargetError(
                f"Tuning on {self.remote.name} was asked for the target {kind}; agents measure "
                "OpenCL kernels.",
                remedy="Use `target=opencl`.",
            )
        return RemoteRunner(self.remote, measuring, self.device_index)
