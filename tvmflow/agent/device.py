"""Devices behind an agent: their facts, and the libraries and kernels that run there.

>>> with tvmflow.connect("adb") as phone:
...     print(phone.name, phone.opencl_devices()[0].name)
...     module = tvmflow.compile("mobilenet.onnx", device=phone)
...     print(module(input=image), tvmflow.bench(module))
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from ..devices.choices import BACKENDS
from ..devices.device_file import DeviceFile
from ..devices.host import HOSTS, Host
from ..errors import AgentError
from ..module import elf
from ..module.artifact import SIDECAR_SUFFIX
from ..module.standalone.programs import sidecar_path
from ..module.standalone.read import is_standalone
from ..runtime.devices import DeviceInfo
from ..runtime.json_types import JsonObject
from .connection import Connection, carrying_limit_s
from .frames import Code, Fields, Kind
from .library import OPEN_S, SHARED_CACHE, RemoteLibrary, naming
from .module import AgentModule
from .places import parse_place
from .requirements import find_obstacle, needed_plan
from .transports import Transport

#: Flag of `Kind.FACTS`.
_WITHOUT_OPENCL = 1
#: Flag of `Kind.LAUNCH`.
_RECORDED = 1


class RemoteDevice(AbstractContextManager["RemoteDevice"]):
    """A phone or board behind an agent, which ends with this object."""

    def __init__(self, transport: Transport):
        self.transport = transport
        self.connection = Connection(transport)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteDevice: {self.name}, {self.transport.name}>"

    def close(self) -> None:
        """End the agent."""
        self.connection.close()

    def reopen(self) -> None:
        """End the agent and start another one; what was opened is gone."""
        self.close()
        self.__dict__.pop("facts", None)
        self.connection = Connection(self.transport)

    def reset(self) -> None:
        """End the session there, with all that was opened in it."""
        self.connection.request(Kind.RESET)

    # -- facts ------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> JsonObject:
        """Return the agent's facts about system, processor and OpenCL devices."""
        failure = ""
        try:
            answer = self.connection.request(Kind.FACTS, Fields().u32(0))
        except AgentError as error:
            if error.code not in (Code.LOST, Code.TIMEOUT):
                raise
            # A driver that ends the session while it lists its devices.
            failure = error.message
            answer = self.connection.request(Kind.FACTS, Fields().u32(_WITHOUT_OPENCL))
        found: JsonObject = json.loads(answer.text())
        return {**found, "opencl_tried": failure} if failure else found

    @property
    def name(self) -> str:
        """Return the device's model, or the name of its first OpenCL device or processor."""
        names = [str(self.facts.get("model", ""))]
        names += [device["name"] for device in self.facts.get("opencl", [])]
        names += [str(cpu.get("part", "")) for cpu in self.facts.get("cpus", [])]
        return next(filter(None, names), self.transport.name)

    @property
    def host(self) -> Host:
        """Return the host that libraries for this device are compiled for."""
        name = self.connection.host_name
        return Host.parse(HOSTS.get(name, name))

    def opencl_devices(self) -> list[DeviceInfo]:
        """Return the OpenCL devices, in the order of their indices."""
        names = {fact.name for fact in fields(DeviceInfo)}
        return [
            DeviceInfo(**{key: value for key, value in device.items() if key in names})
            for device in (_as_info(each) for each in self.facts.get("opencl", []))
        ]

    def device_file(self, index: int = 0) -> DeviceFile:
        """Return what the driver reports of an OpenCL device, over the preset of its class.

        Raises `AgentError` if there is no such device.
        """
        return DeviceFile.of(self.require_opencl(index), self.name)

    def require_opencl(self, index: int = 0) -> DeviceInfo:
        """Return an OpenCL device; raise `AgentError`, with what was tried, if it is not there."""
        devices = self.opencl_devices()
        if index < len(devices):
            return devices[index]
        message = f"{self.name} ({self.transport.name}) has no OpenCL device {index}."
        remedy = "Choose another device, or compile with `target=llvm`."
        if not devices and self.facts.get("system") == "android":
            remedy = (
                "A shell may not open the vendor's library on this phone, or it has none; compile "
                "with `fallback=cpu`."
            )
        raise AgentError(message, remedy=remedy, details=str(self.facts.get("opencl_tried", "")))

    def sensors(self) -> JsonObject:
        """Return temperatures, clocks, throttling and battery."""
        found: JsonObject = json.loads(self.connection.request(Kind.SENSORS).text())
        return found

    # -- libraries ----------------------------------------------------------------------------

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        device_index: int = 0,
        check_weights: bool = True,
        backend: str = "auto",
    ) -> AgentModule:
        """Return a standalone library as a module; parameters are those of `tvmflow.load`.

        Raises `AgentError` if the file is no standalone library, or is for another machine.
        """
        if not is_standalone(path):
            raise AgentError(
                f"Running {os.fspath(path)} on {self.name} is not possible: it needs TVM there.",
                remedy="Compile it with `format=standalone`.",
            )
        options = {"device_index": device_index, "check_weights": check_weights}
        return AgentModule(path, self, backend=backend, **options)  # type: ignore[arg-type]

    def open(
        self,
        library: str | os.PathLike[str],
        *,
        backend: str = "auto",
        device_index: int = 0,
        flags: int = 0,
        threads: int = 0,
        cache: int = SHARED_CACHE,
    ) -> RemoteLibrary:
        """Send a standalone library with its sidecars, unless it is there, and open it.

        ``flags`` are those of `tvmflow_options`; ``cache`` is `NO_CACHE`, `SHARED_CACHE` for
        programs that stay in the agent's folder, or `NEW_CACHE`, an empty one.

        Raises `AgentError` if the library is for another machine, does not fit on the device, or
        refuses the device.
        """
        path = Path(library)
        self._check_host(path)
        self._check_opencl(path, backend, device_index)
        files = {"": path}
        weights = path.with_name(path.name + SIDECAR_SUFFIX)
        for sidecar in (weights, sidecar_path(path)):
            if sidecar.is_file():
                files[sidecar.name.removeprefix(path.name)] = sidecar
        # A library's own name may have characters that no file there should have.
        request = Fields().text("lib.so").u32(len(files))
        for suffix, file in files.items():
            request.text(suffix).raw(self.connection.put(file))
        request.u32(BACKENDS.index(backend), device_index, flags, threads, 0).text("").u32(cache)
        with naming(path, self.name):
            answer = self.connection.request(Kind.OPEN, request, OPEN_S)
        handle, ns, about = answer.u32(), answer.u64(), answer.text()
        return RemoteLibrary(self.connection, self.name, path, handle, ns * 1e-6, json.loads(about))

    def _check_host(self, path: Path) -> None:
        found = elf.read_library(path).architecture
        host = self.host
        expected = "arm" if host.architecture.startswith("armv") else host.architecture
        if found != expected:
            raise AgentError(
                f"{path} was not sent to {self.name}: it is for {found}, and the device is "
                f"{expected}.",
                remedy=f"Compile it with `host={self.connection.host_name}`.",
            )
        for_android = bool(elf.read_facts(path).needed.count("libc.so"))
        if for_android != host.is_android:
            raise AgentError(
                f"{path} was not sent to {self.name}: it is for "
                f"{'Android' if for_android else 'Linux'}, and the device has "
                f"{'Android' if host.is_android else 'Linux'}.",
                remedy=f"Compile it with `host={self.connection.host_name}`.",
            )

    def _check_opencl(self, path: Path, backend: str, device_index: int) -> None:
        plan = needed_plan(path, backend)
        if plan is None:
            return
        found = find_obstacle(plan, self.require_opencl(device_index))
        if found is not None:
            obstacle, remedy = found
            raise AgentError(f"{path} was not sent to {self.name}: {obstacle}.", remedy=remedy)

    # -- kernels ------------------------------------------------------------------------------

    def build(
        self, source: str, options: str = "", device_index: int = 0, limit_s: float = OPEN_S
    ) -> RemoteProgram:
        """Build a program of OpenCL C.  Raises `AgentError` with the compiler's log."""
        digest = self.connection.put(source.encode())
        request = Fields().u32(device_index).text("").text(options).raw(digest)
        answer = self.connection.request(Kind.BUILD, request, limit_s)
        return RemoteProgram(answer.u32(), answer.u64() * 1e-6, answer.text())

    def allocate(
        self,
        size_bytes: int = 0,
        *,
        image: tuple[int, int, int] | None = None,
        channel_type: int = 0,
        device_index: int = 0,
    ) -> int:
        """Allocate a buffer, or an array of RGBA images (width, height, layers); return its handle.

        ``channel_type`` is OpenCL's number.
        """
        request = Fields().u32(device_index).text("").u32(int(image is not None)).u64(size_bytes)
        request.u32(channel_type, *(image or (0, 0, 0)))
        return self.connection.request(Kind.ALLOCATE, request).u32()

    def write(self, memory: int, content: bytes, image: tuple[int, int, int] | None = None) -> None:
        """Fill a buffer's beginning, or a whole image."""
        digest = self.connection.put(content)
        request = Fields().u32(memory, 0, 0, 0, *(image or (0, 0, 0))).u64(0)
        request.raw(digest).u64(0).u64(len(content))
        self.connection.request(Kind.WRITE, request)

    def fill(self, memory: int, pattern: bytes) -> None:
        """Fill memory with a pattern of 1, 2, 4, 8 or 16 bytes."""
        self.connection.request(Kind.FILL, Fields().u32(memory, len(pattern)).raw(pattern))

    def read(
        self, memory: int, size_bytes: int, image: tuple[int, int, int] | None = None
    ) -> bytes:
        """Return a buffer's beginning, or a whole image."""
        found = bytearray(size_bytes)
        request = Fields().u32(memory, 0, 0, 0, *(image or (0, 0, 0))).u64(0).u64(size_bytes)
        self.connection.request(
            Kind.READ, request, carrying_limit_s(size_bytes), lambda part: part.take_into(found)
        )
        return bytes(found)

    def launch(
        self,
        sequences: Sequence[Sequence[RemoteLaunch]],
        *,
        warmup: int = 0,
        repeats: int = 1,
        rounds: int = 0,
        limit_s: float = 60.0,
        recorded: bool = False,
    ) -> list[list[RunTime]]:
        """Run sequences of launches in turn; return the times by round and sequence.

        Each time is of ``repeats`` runs in a row; with 0 rounds each sequence runs once.  With
        ``recorded``, each sequence is recorded once and replayed, a run after the end of the one
        before, and only `RunTime.wall_s` is measured.  Raises `AgentError` if the device cannot
        record launches.
        """
        request = Fields().u32(len(sequences))
        for sequence in sequences:
            request.u32(len(sequence))
            for launch in sequence:
                launch.add_to(request)
        request.u32(_RECORDED if recorded else 0, warmup, repeats, rounds)
        numbers: list[int] = []
        self.connection.request(
            Kind.LAUNCH,
            request,
            limit_s,
            lambda part: numbers.extend(np.frombuffer(part.rest(), "<u8").tolist()),
        )
        seconds = [number * 1e-9 for number in numbers]
        times = [RunTime(*seconds[i : i + 3]) for i in range(0, len(seconds), 3)]
        width = len(sequences)
        return [times[i : i + width] for i in range(0, len(times), width)]

    def free(self, handles: Sequence[int]) -> None:
        """Release memory and programs."""
        self.connection.request(Kind.FREE, Fields().u32(len(handles), *handles))


@dataclass(frozen=True)
class RemoteProgram:
    """A program that was built on a device."""

    handle: int
    build_ms: float
    log: str


@dataclass(frozen=True)
class RemoteLaunch:
    """A launch of a kernel: arguments are handles of memory, or values as bytes."""

    program: int
    kernel: str
    arguments: Sequence[int | bytes]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] = ()

    def add_to(self, request: Fields) -> None:
        """Add the launch to a request."""
        request.u32(self.program).text(self.kernel).u32(len(self.global_size))
        request.u32(*(*self.global_size, 1, 1)[:3])
        # Zeros leave the size to the driver.
        request.u32(*(*self.local_size, 1, 1)[:3] if self.local_size else (0, 0, 0))
        request.u32(len(self.arguments))
        for argument in self.arguments:
            if isinstance(argument, bytes):
                request.u32(1, len(argument)).raw(argument)
            else:
                request.u32(0, argument)


@dataclass(frozen=True)
class RunTime:
    """Times of runs in a row in seconds; 0 where the driver does not report kernels' times."""

    kernels_s: float  #: Sum of the kernels' times.
    span_s: float  #: From the first kernel's begin to the last one's end.
    wall_s: float  #: On the agent's clock, with the launches.


def connect(where: str, *, secret_file: str | os.PathLike[str] | None = None) -> RemoteDevice:
    """Connect to a phone or board.

    Parameters
    ----------
    where
        ``adb`` (the only attached phone), ``adb:SERIAL``, ``ssh:USER@HOST``, ``local`` (a process
        of this machine), ``tcp:HOST:PORT`` (an agent that listens) or ``farm:HOST:PORT/KEY`` (the
        next free device of a key at a farm's tracker, which is waited for).
    secret_file
        File of the secret that an agent at an address, or the farm, was started with.

    Raises `AgentError` for each obstacle, with its remedy.
    """
    return RemoteDevice(parse_place(where, None if secret_file is None else Path(secret_file)))


def _as_info(found: JsonObject) -> JsonObject:
    return {**found, "extensions": tuple(sorted(found.get("extensions", ())))}
